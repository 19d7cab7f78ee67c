"""Decisions of the coordinator, validation of job output, job instructions, and request parsing."""

from __future__ import annotations

import json
from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.core.parsing import InvalidField
from scheduling.evaluation.rules import campaign_requests, job_output, orders, priors
from scheduling.evaluation.rules.coordinator import (
    MAX_TRIAL_PARTS,
    CampaignSnapshot,
    InferredShard,
    NodeSlots,
    RetryShard,
    UnassignedSamples,
    decide,
)
from scheduling.evaluation.rules.orders import TrialPart
from scheduling.evaluation.rules.priors import DatasetDescription, ShardMeasurement
from scheduling.evaluation.rules.work import SliceCost


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


def test_large_dataset_is_split_over_all_free_gpus():
    moves = decide(board(wanted(seconds=8000), slots=8))

    assert len(moves.trials) == 8
    starts = sorted((cut.start, cut.samples) for trial in moves.trials for cut in trial.cuts)
    assert all(one[0] + one[1] == other[0] for one, other in pairwise(starts))


def test_small_datasets_are_packed_into_one_trial():
    moves = decide(board(*(wanted(n, seconds=2) for n in range(30)), slots=8))

    assert len(moves.trials) <= 8
    assert sum(len(trial.cuts) for trial in moves.trials) == 30


def test_trial_has_a_limited_number_of_parts():
    moves = decide(board(*(wanted(n, seconds=0.1) for n in range(500)), slots=1))

    assert [len(trial.cuts) for trial in moves.trials] == [MAX_TRIAL_PARTS]


def test_unmeasured_datasets_are_probed_first_in_separate_trials():
    known = wanted(99, seconds=9000)
    moves = decide(board(known, *(wanted(n, seconds=1000, is_measured=False) for n in range(16)), slots=8))

    assert [len(trial.cuts) for trial in moves.trials] == [2] * 8
    cuts = [cut for trial in moves.trials for cut in trial.cuts]
    assert {cut.evaluation for cut in cuts} == set(range(16))
    assert all(cut.expected_s <= 10 for cut in cuts)


def test_free_gpus_beside_probes_get_measured_datasets():
    moves = decide(board(wanted(99, seconds=9000), wanted(1, seconds=1000, is_measured=False), slots=4))

    first, *rest = moves.trials
    assert [cut.evaluation for cut in first.cuts] == [1]
    assert {cut.evaluation for trial in rest for cut in trial.cuts} >= {99}


def test_dataset_with_a_running_probe_gets_short_slices_only():
    begun = wanted(1, seconds=9000, is_measured=False, begun=True, start=3)
    moves = decide(board(begun, slots=2))

    assert all(cut.expected_s <= 90 for trial in moves.trials for cut in trial.cuts)
    assert sum(len(trial.cuts) for trial in moves.trials) > 2


def test_dataset_that_may_not_be_split_is_its_own_probe():
    moves = decide(board(wanted(1, seconds=1000, is_measured=False, parts=1), slots=2))

    assert [[cut.samples for cut in trial.cuts] for trial in moves.trials] == [[100]]


def test_no_trial_is_created_without_a_free_gpu():
    assert decide(board(wanted(), slots=0)).nothing


def test_node_continues_with_its_copy_while_the_next_is_made():
    work = [wanted(1, "a"), wanted(2, "b")]
    moves = decide(board(*work, nodes=1, stages=True, staged={"n0": frozenset({"b"})}))

    assert {trial.checkpoint for trial in moves.trials} == {"b"}
    assert moves.stage == (("n0", "a"),)


def test_copy_is_made_once_before_the_first_trial():
    moves = decide(board(wanted(), nodes=2, stages=True))

    assert sorted(moves.stage) == [("n0", "a"), ("n1", "a")]
    assert not moves.trials
    coming = {"n0": frozenset({"a"}), "n1": frozenset({"a"})}
    assert decide(board(wanted(), nodes=2, stages=True, coming=coming)).nothing


def test_two_nodes_copy_different_checkpoints():
    moves = decide(board(wanted(1, "a"), wanted(2, "b"), nodes=2, stages=True))

    assert {checkpoint for _, checkpoint in moves.stage} == {"a", "b"}


def test_returned_shard_is_reassigned_as_a_whole():
    loose = RetryShard(shard=7, evaluation=1, checkpoint="a", dataset="d", start=40, samples=60, cost=cost(6000))
    moves = decide(board(loose=[loose]))

    (trial,) = moves.trials
    assert [(cut.shard, cut.start, cut.samples) for cut in trial.cuts] == [(7, 40, 60)]


def test_node_limit_prefers_nodes_with_running_trials():
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
def test_each_sample_is_assigned_at_most_once(sizes, slots, nodes):
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


def test_unmeasured_known_dataset_costs_the_modeled_time():
    small, large = (priors.guess(DatasetDescription(name="gsm8k", samples=1319), gb) for gb in (14.0, 28.0))

    assert large.infer == pytest.approx(2 * small.infer)
    assert small.infer > 60


def test_measurements_scale_with_samples_and_model_size():
    seen = [ShardMeasurement(dataset="x", gpu_model="a100", checkpoint_gb=14, samples=10, infer_s=20, score_s=1)] * 3
    found = priors.expected_costs([DatasetDescription(name="x", samples=100)], seen, "a100", 28.0)

    assert found["x"] == SliceCost(prepare=0.0, infer=400.0, score=10.0)


def test_measurements_of_another_gpu_model_are_ignored():
    seen = [ShardMeasurement(dataset="x", gpu_model="h100", checkpoint_gb=14, samples=10, infer_s=20)]
    found = priors.expected_costs([DatasetDescription(name="x", samples=10, infer_s=3)], seen, "a100", 14.0)

    assert found["x"].infer == 3


def test_common_error_of_estimates_corrects_unmeasured_datasets():
    known = [DatasetDescription(name=name, samples=10, infer_s=10) for name in ("a", "b", "c", "d")]
    seen = [
        ShardMeasurement(dataset=name, gpu_model="", checkpoint_gb=14, samples=10, infer_s=200)
        for name in ("a", "b", "c")
    ]

    assert priors.expected_costs(known, seen, "", 14.0)["d"].infer == pytest.approx(200)


def test_the_newest_measurements_outlive_the_old_ones():
    new = [
        ShardMeasurement(dataset="x", gpu_model="", checkpoint_gb=14, samples=1, infer_s=1)
    ] * priors.MAX_MEASUREMENTS
    old = [ShardMeasurement(dataset="x", gpu_model="", checkpoint_gb=14, samples=1, infer_s=99)] * 50

    assert priors.expected_costs([DatasetDescription(name="x", samples=1)], [*new, *old], "", 14.0)["x"].infer == 1


# --- what a log says


def line(nonce: str = "n", **values) -> str:
    return f"acme:{nonce} {json.dumps(values)}"


def test_only_lines_with_the_jobs_nonce_count():
    said = job_output.parse_job_output([line("x", part=1, code=0, took=1, at=1), "acme: {}", "hello"], "n")

    assert said == job_output.JobOutput()


def test_last_report_of_a_part_counts():
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
def test_invalid_report_line_is_ignored(values):
    said = job_output.parse_job_output([line(**values)], "n")

    assert not said.parts
    assert len(said.stray) == 1


@pytest.mark.parametrize(
    ("scores", "why"),
    [
        ([1], "the result is not an object of names and numbers"),
        ({}, "the result is not an object of names and numbers"),
        ({"a": float("nan")}, "the result has a value for a that is not a finite number"),
        ({"a": float("inf")}, "the result has a value for a that is not a finite number"),
        ({"a": True}, "the result has a value for a that is not a finite number"),
        ({"a": "1"}, "the result has a value for a that is not a finite number"),
        ({"<b>": 1}, "the result has an invalid name: '<b>'"),
        ({str(n): 1 for n in range(65)}, "the result has 65 entries; at most 64 are allowed"),
    ],
)
def test_invalid_result_is_a_failure_with_a_reason(scores, why):
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
def test_any_log_line_can_be_parsed(text):
    job_output.parse_job_output([f"acme:n {text}", text], "n")


# --- what a job is told


def part(shard: int = 1, command: str = "true", **more) -> TrialPart:
    plain = {"dataset": "d", "start": 0, "samples": 5, "whole": True, "output": "/out", "scores": False}
    plain["expected_s"] = 60.0
    return TrialPart(shard=shard, command=command, **{**plain, **more})


def test_job_gets_as_many_parts_as_its_environment_holds():
    long = [part(number, command=f"{number}" + "x" * 8000) for number in range(30)]
    kept = orders.parts_that_fit(long, "/model", "", "")

    assert 1 <= len(kept) < 30
    assert (
        len(orders.trial_instructions(kept, checkpoint="/model", serve="", nonce="n" * 24))
        <= orders.MAX_INSTRUCTIONS_BYTES
    )


def test_job_always_gets_at_least_one_part():
    assert len(orders.parts_that_fit([part(command="x" * 100_000)], "/model", "", "")) == 1


def test_time_limit_is_generous_and_grows_after_each_try():
    assert orders.trial_time_limit([part(expected_s=60)]) == timedelta(minutes=14)
    assert orders.trial_time_limit([part(expected_s=60, tries=1)]) == 4 * timedelta(minutes=14)
    assert orders.trial_time_limit([part(expected_s=1e9, tries=3)]) == orders.MAX_TIME_LIMIT


def test_path_of_a_copy_is_a_digest_per_team():
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
        ({"name": "Core!"}, "name: 'Core!' is not a valid name: lowercase letters, digits and dashes, at most 40"),
        ({"datasets": []}, "datasets: has 0 entries; between 1 and 500 are allowed"),
        ({"datasets": ["gsm8k"]}, "datasets[1]: is text, not an object"),
        ({"datasets": [{"name": "x"}]}, "datasets[1].samples: is missing"),
        ({"datasets": [{"name": "x", "samples": 0}]}, "datasets[1].samples: 0 is not between 1 and 100000000"),
        ({"datasets": [{"name": "x", "samples": 1}] * 2}, "datasets: names x twice"),
        ({"datasets": [{"name": "../x", "samples": 1}]}, "datasets[1].name: '../x' is not a valid name of a dataset"),
        ({"output_root": "/"}, "output_root: is the root of the file system"),
        ({"output_root": "out"}, "output_root: 'out' is not an absolute path without .."),
        ({"stage_root": "/dev/../etc"}, "stage_root: '/dev/../etc' is not an absolute path without .."),
        ({"framework": "helm"}, "framework: 'helm' is not one of plain, lm-eval, opencompass"),
        ({"infer": ""}, "infer: is missing, and dataset 1 (gsm8k) does not override it"),
        ({"color": "red"}, "color: is not a field of a suite"),
        ({"gpus": 65}, "gpus: 65 is not between 0 and 64"),
    ],
)
def test_invalid_suite_is_refused_with_one_sentence(wish, sentence):
    with pytest.raises(InvalidField) as refused:
        campaign_requests.parse_suite(SUITE | wish)

    assert str(refused.value) == sentence


def test_frameworks_have_commands_and_a_split_flag():
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
        ({"checkpoints": ["relative"]}, "checkpoints: 'relative' is not an absolute path without .."),
        ({"checkpoints": [""]}, "checkpoints: is empty"),
        (
            {"checkpoints": ["/a"], "nodes": 1, "deadline_at": "2099-01-01T00:00:00Z"},
            "nodes: and deadline_at exclude each other; give only one of them",
        ),
        (
            {"checkpoints": ["/a"], "checkpoint_gb": 0},
            "checkpoint_gb: is 0; must be a number of GB from 0.001 to 100000",
        ),
    ],
)
def test_invalid_campaign_is_refused_with_one_sentence(wish, sentence):
    with pytest.raises(InvalidField) as refused:
        campaign_requests.parse_campaign(wish)

    assert str(refused.value) == sentence


def test_a_checkpoint_named_twice_is_evaluated_once():
    assert campaign_requests.parse_campaign({"checkpoints": ["/a", "/b", "/a"]}).checkpoints == ("/a", "/b")
