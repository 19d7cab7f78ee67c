"""What a campaign does next, what its jobs may claim, what they are told, and what may be asked of it."""

from __future__ import annotations

import json
from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.core.parsing import InvalidField
from scheduling.evaluation import campaign_requests, job_output, orders, priors
from scheduling.evaluation.coordinator import (
    MAX_TRIAL_PARTS,
    CampaignSnapshot,
    InferredShard,
    NodeSlots,
    RetryShard,
    UnassignedSamples,
    decide,
)
from scheduling.evaluation.orders import TrialPart
from scheduling.evaluation.priors import DatasetDescription, ShardMeasurement
from scheduling.evaluation.work import SliceCost


def cost(infer: float, score: float = 0.0) -> SliceCost:
    return SliceCost(prepare=0.0, infer=infer, score=score)


def wanted(
    number: int = 1, checkpoint: str = "a", samples: int = 100, seconds: float = 600, **more
) -> UnassignedSamples:
    plain = {"start": 0, "parts": 1000, "dataset": f"d{number}", "cost": cost(seconds)}
    return UnassignedSamples(evaluation=number, checkpoint=checkpoint, samples=samples, **{**plain, **more})


def board(*work: UnassignedSamples, nodes: int = 1, slots: int = 8, **more) -> CampaignSnapshot:
    rooms = [NodeSlots(name=f"n{number}", slots=slots) for number in range(nodes)]
    plain = {"most_nodes": nodes, "slots_per_node": slots, "stages": False, "nodes": rooms}
    return CampaignSnapshot(wanted=work, **{**plain, **more})


# --- the coordinator


def test_one_large_dataset_is_spread_over_all_free_gpus():
    moves = decide(board(wanted(seconds=8000), slots=8))

    assert len(moves.trials) == 8
    starts = sorted((cut.start, cut.samples) for trial in moves.trials for cut in trial.cuts)
    assert all(one[0] + one[1] == other[0] for one, other in pairwise(starts))


def test_small_datasets_are_packed_into_one_trial():
    moves = decide(board(*(wanted(n, seconds=2) for n in range(30)), slots=8))

    assert len(moves.trials) <= 8
    assert sum(len(trial.cuts) for trial in moves.trials) == 30


def test_a_trial_never_has_more_parts_than_it_can_be_told_of():
    moves = decide(board(*(wanted(n, seconds=0.1) for n in range(500)), slots=1))

    assert [len(trial.cuts) for trial in moves.trials] == [MAX_TRIAL_PARTS]


def test_datasets_that_nobody_measured_are_probed_first_evenly_and_nothing_else_rides_along():
    known = wanted(99, seconds=9000)
    moves = decide(board(known, *(wanted(n, seconds=1000, measured=False) for n in range(16)), slots=8))

    assert [len(trial.cuts) for trial in moves.trials] == [2] * 8
    cuts = [cut for trial in moves.trials for cut in trial.cuts]
    assert {cut.evaluation for cut in cuts} == set(range(16))
    assert all(cut.expected_s <= 10 for cut in cuts)


def test_where_fewer_are_unknown_than_gpus_are_free_the_others_go_on_with_what_is_known():
    moves = decide(board(wanted(99, seconds=9000), wanted(1, seconds=1000, measured=False), slots=4))

    first, *rest = moves.trials
    assert [cut.evaluation for cut in first.cuts] == [1]
    assert {cut.evaluation for trial in rest for cut in trial.cuts} >= {99}


def test_while_a_probe_is_out_its_dataset_is_not_probed_again_and_is_cut_short():
    begun = wanted(1, seconds=9000, measured=False, begun=True, start=3)
    moves = decide(board(begun, slots=2))

    assert all(cut.expected_s <= 90 for trial in moves.trials for cut in trial.cuts)
    assert sum(len(trial.cuts) for trial in moves.trials) > 2


def test_one_that_may_not_be_cut_is_its_own_probe():
    moves = decide(board(wanted(1, seconds=1000, measured=False, parts=1), slots=2))

    assert [[cut.samples for cut in trial.cuts] for trial in moves.trials] == [[100]]


def test_nothing_is_dealt_where_no_gpu_is_free():
    assert decide(board(wanted(), slots=0)).nothing


def test_a_node_goes_on_with_what_it_has_while_the_next_is_fetched():
    work = [wanted(1, "a"), wanted(2, "b")]
    moves = decide(board(*work, nodes=1, stages=True, staged={"n0": frozenset({"b"})}))

    assert {trial.checkpoint for trial in moves.trials} == {"b"}
    assert moves.stage == (("n0", "a"),)


def test_where_no_copy_is_there_one_is_fetched_first_and_once():
    moves = decide(board(wanted(), nodes=2, stages=True))

    assert sorted(moves.stage) == [("n0", "a"), ("n1", "a")]
    assert not moves.trials
    coming = {"n0": frozenset({"a"}), "n1": frozenset({"a"})}
    assert decide(board(wanted(), nodes=2, stages=True, coming=coming)).nothing


def test_two_nodes_stage_two_checkpoints_rather_than_both_the_same():
    moves = decide(board(wanted(1, "a"), wanted(2, "b"), nodes=2, stages=True))

    assert {checkpoint for _, checkpoint in moves.stage} == {"a", "b"}


def test_a_shard_that_came_back_is_dealt_whole():
    loose = RetryShard(shard=7, evaluation=1, checkpoint="a", dataset="d", start=40, samples=60, cost=cost(6000))
    moves = decide(board(loose=[loose]))

    (trial,) = moves.trials
    assert [(cut.shard, cut.start, cut.samples) for cut in trial.cuts] == [(7, 40, 60)]


def test_no_more_nodes_are_used_than_allowed_and_first_those_that_it_is_on():
    rooms = [NodeSlots(name="n0", slots=8), NodeSlots(name="n1", slots=4, ours=4), NodeSlots(name="n2", slots=8)]
    moves = decide(
        CampaignSnapshot(wanted=[wanted(seconds=9000)], nodes=rooms, most_nodes=1, slots_per_node=8, stages=False)
    )

    assert {trial.node for trial in moves.trials} == {"n1"}


def test_long_metrics_are_scored_alone_and_first_and_short_ones_together():
    inferred = [InferredShard(shard=n, checkpoint="a", score_s=s) for n, s in enumerate([1, 1, 900, 1])]
    moves = decide(board(inferred=inferred, slots=0))

    assert [scoring.shards for scoring in moves.scorings] == [(2,), (0, 1, 3)]


def test_no_more_metrics_are_scored_at_once_than_the_suite_allows():
    inferred = [InferredShard(shard=n, checkpoint="a", score_s=100) for n in range(9)]

    assert len(decide(board(inferred=inferred, slots=0, scoring=14, most_scoring=16)).scorings) == 2


@given(
    sizes=st.lists(st.tuples(st.integers(1, 500), st.floats(0.1, 5000)), min_size=1, max_size=30),
    slots=st.integers(1, 16),
    nodes=st.integers(1, 4),
)
def test_what_is_dealt_is_there_and_no_sample_is_dealt_twice(sizes, slots, nodes):
    work = [wanted(n, "ab"[n % 2], samples=s, seconds=seconds) for n, (s, seconds) in enumerate(sizes)]
    moves = decide(board(*work, nodes=nodes, slots=slots))

    samples = {one.evaluation: one.samples for one in work}
    at = dict.fromkeys(samples, 0)
    for cut in sorted((c for t in moves.trials for c in t.cuts), key=lambda c: (c.evaluation, c.start)):
        assert cut.start == at[cut.evaluation]
        at[cut.evaluation] += cut.samples
    assert all(at[number] <= samples[number] for number in samples)
    on = [trial.node for trial in moves.trials]
    assert all(on.count(f"n{n}") <= slots for n in range(nodes))
    assert moves.trials


# --- priors


def test_before_anything_was_measured_a_known_dataset_costs_what_arithmetic_says():
    small, large = (priors.guess(DatasetDescription(name="gsm8k", samples=1319), gb) for gb in (14.0, 28.0))

    assert large.infer == pytest.approx(2 * small.infer)
    assert small.infer > 60


def test_what_was_measured_counts_in_proportion_to_samples_and_model():
    seen = [ShardMeasurement(dataset="x", gpu_model="a100", weights_gb=14, samples=10, infer_s=20, score_s=1)] * 3
    found = priors.expected_costs([DatasetDescription(name="x", samples=100)], seen, "a100", 28.0)

    assert found["x"] == SliceCost(prepare=0.0, infer=400.0, score=10.0)


def test_another_type_of_gpu_says_nothing_of_this_one():
    seen = [ShardMeasurement(dataset="x", gpu_model="h100", weights_gb=14, samples=10, infer_s=20)]
    found = priors.expected_costs([DatasetDescription(name="x", samples=10, infer_s=3)], seen, "a100", 14.0)

    assert found["x"].infer == 3


def test_guesses_that_were_all_off_by_the_same_factor_correct_those_nobody_has_seen():
    known = [DatasetDescription(name=name, samples=10, infer_s=10) for name in ("a", "b", "c", "d")]
    seen = [
        ShardMeasurement(dataset=name, gpu_model="", weights_gb=14, samples=10, infer_s=200) for name in ("a", "b", "c")
    ]

    assert priors.expected_costs(known, seen, "", 14.0)["d"].infer == pytest.approx(200)


def test_the_newest_measurements_outlive_the_old_ones():
    new = [ShardMeasurement(dataset="x", gpu_model="", weights_gb=14, samples=1, infer_s=1)] * priors.MAX_MEASUREMENTS
    old = [ShardMeasurement(dataset="x", gpu_model="", weights_gb=14, samples=1, infer_s=99)] * 50

    assert priors.expected_costs([DatasetDescription(name="x", samples=1)], [*new, *old], "", 14.0)["x"].infer == 1


# --- what a log says


def line(nonce: str = "n", **values) -> str:
    return f"acme:{nonce} {json.dumps(values)}"


def test_only_lines_with_the_jobs_own_word_are_heard():
    said = job_output.parse_job_output([line("x", part=1, code=0, took=1, at=1), "acme: {}", "hello"], "n")

    assert said == job_output.JobOutput()


def test_the_last_word_on_a_part_counts():
    said = job_output.parse_job_output([line(part=1, code=1, took=1, at=1), line(part=1, code=0, took=2, at=3)], "n")

    assert [(part.code, part.took_s) for part in said.parts] == [(0, 2.0)]


@pytest.mark.parametrize(
    "values",
    [
        {"part": "1", "code": 0, "took": 1, "at": 1},
        {"part": True, "code": 0, "took": 1, "at": 1},
        {"part": 1, "code": 0, "took": -1, "at": 1},
        {"part": 1, "code": 0, "took": 1},
        {"part": 1, "code": 10**400, "took": 1, "at": 1},
        {"part": 1, "code": 0, "took": 10**400, "at": 1},
    ],
)
def test_a_line_that_cannot_be_true_is_put_aside(values):
    said = job_output.parse_job_output([line(**values)], "n")

    assert not said.parts
    assert len(said.stray) == 1


@pytest.mark.parametrize(
    ("scores", "why"),
    [
        ([1], "its result is no object of names and numbers"),
        ({}, "its result is no object of names and numbers"),
        ({"a": float("nan")}, "its result says of a what is no number"),
        ({"a": float("inf")}, "its result says of a what is no number"),
        ({"a": True}, "its result says of a what is no number"),
        ({"a": "1"}, "its result says of a what is no number"),
        ({"<b>": 1}, "its result has a name that is none: '<b>'"),
        ({str(n): 1 for n in range(65)}, "its result has 65 entries, more than the 64 allowed"),
    ],
)
def test_a_result_that_is_none_is_a_failure_with_a_sentence(scores, why):
    (part,) = job_output.parse_job_output([line(part=1, code=0, took=1, at=1, scores=scores)], "n").parts

    assert part.code
    assert part.why == why


def test_a_sentence_of_a_job_is_short_and_has_no_control_characters():
    (part,) = job_output.parse_job_output(
        [line(part=1, code=1, took=1, at=1, why="a\x1b[31m\u202e" + "x" * 900)], "n"
    ).parts

    assert len(part.why) <= 500
    assert part.why.isprintable()


@given(st.text())
def test_no_line_is_too_strange(text):
    job_output.parse_job_output([f"acme:n {text}", text], "n")


# --- what a job is told


def part(shard: int = 1, command: str = "true", **more) -> TrialPart:
    plain = {"dataset": "d", "start": 0, "samples": 5, "whole": True, "output": "/out", "scores": False}
    plain["expected_s"] = 60.0
    return TrialPart(shard=shard, command=command, **{**plain, **more})


def test_a_job_is_told_of_as_many_parts_as_its_environment_holds():
    long = [part(number, command=f"{number}" + "x" * 8000) for number in range(30)]
    kept = orders.parts_that_fit(long, "/model", "")

    assert 1 <= len(kept) < 30
    assert (
        len(orders.trial_instructions(kept, model="/model", serve="", nonce="n" * 24)) <= orders.MAX_INSTRUCTIONS_BYTES
    )


def test_one_part_is_always_told_of_however_long():
    assert len(orders.parts_that_fit([part(command="x" * 100_000)], "/model", "")) == 1


def test_a_limit_is_generous_and_four_times_as_long_for_whoever_ran_into_it():
    assert orders.trial_time_limit([part(expected_s=60)]) == timedelta(minutes=14)
    assert orders.trial_time_limit([part(expected_s=60, tries=1)]) == 4 * timedelta(minutes=14)
    assert orders.trial_time_limit([part(expected_s=1e9, tries=3)]) == orders.MAX_TIME_LIMIT


def test_a_copy_has_a_name_that_says_nothing_and_belongs_to_one_team():
    one, other = (orders.copy_path("/dev/shm/", team, "/ckpt/../../etc") for team in ("a", "b"))

    assert one != other
    assert one.startswith("/dev/shm/acme-")
    assert "etc" not in one


# --- what may be asked


SUITE = {
    "name": "core",
    "output_root": "/shared/out",
    "infer": "run",
    "datasets": [{"name": "gsm8k", "samples": 1319}],
}


@pytest.mark.parametrize(
    ("wish", "sentence"),
    [
        ({"name": "Core!"}, "name: 'Core!' is no name: small letters, digits and dashes, at most 40"),
        ({"datasets": []}, "datasets: has 0 entries; between 1 and 500 are allowed"),
        ({"datasets": ["gsm8k"]}, "datasets[1]: is text, not an object"),
        ({"datasets": [{"name": "x"}]}, "datasets[1].samples: is missing"),
        ({"datasets": [{"name": "x", "samples": 0}]}, "datasets[1].samples: 0 is not between 1 and 100000000"),
        ({"datasets": [{"name": "x", "samples": 1}] * 2}, "datasets: names x twice"),
        ({"datasets": [{"name": "../x", "samples": 1}]}, "datasets[1].name: '../x' is no name of a dataset"),
        ({"output_root": "/"}, "output_root: is the root of the file system"),
        ({"output_root": "out"}, "output_root: 'out' is no absolute path without .."),
        ({"stage_root": "/dev/../etc"}, "stage_root: '/dev/../etc' is no absolute path without .."),
        ({"framework": "helm"}, "framework: 'helm' is none of plain, lm-eval, opencompass"),
        ({"infer": ""}, "infer: is missing, and dataset 1 (gsm8k) has none of its own"),
        ({"colour": "red"}, "colour: is no field of a suite"),
        ({"gpus": 65}, "gpus: 65 is not between 0 and 64"),
    ],
)
def test_a_suite_that_cannot_be_is_refused_with_one_sentence(wish, sentence):
    with pytest.raises(InvalidField) as refused:
        campaign_requests.parse_suite(SUITE | wish)

    assert str(refused.value) == sentence


def test_frameworks_bring_their_commands_and_say_whether_they_can_split():
    harness = campaign_requests.parse_suite({**SUITE, "infer": "", "framework": "lm-eval"})
    compass = campaign_requests.parse_suite({**SUITE, "infer": "", "framework": "opencompass"})

    assert "lm_eval" in harness.infer
    assert harness.datasets[0].parts > 1
    assert "--mode infer" in compass.infer
    assert "--mode eval" in compass.metric
    assert compass.datasets[0].parts == 1


@pytest.mark.parametrize(
    ("wish", "sentence"),
    [
        ({}, "checkpoints: is missing"),
        ({"checkpoints": ["relative"]}, "checkpoints: 'relative' is no absolute path without .."),
        ({"checkpoints": [""]}, "checkpoints: is empty"),
        (
            {"checkpoints": ["/a"], "nodes": 1, "deadline_at": "2099-01-01T00:00:00Z"},
            "nodes: and deadline_at are two ways to say the same; give one of them",
        ),
        ({"checkpoints": ["/a"], "weights_gb": 0}, "weights_gb: is 0, no number of GB from 0.001 to 100000"),
    ],
)
def test_a_campaign_that_cannot_be_is_refused_with_one_sentence(wish, sentence):
    with pytest.raises(InvalidField) as refused:
        campaign_requests.parse_campaign(wish)

    assert str(refused.value) == sentence


def test_a_checkpoint_named_twice_is_evaluated_once():
    assert campaign_requests.parse_campaign({"checkpoints": ["/a", "/b", "/a"]}).checkpoints == ("/a", "/b")
