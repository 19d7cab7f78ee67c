"""Evaluations: the cost of slices, the work queue, and the comparison of methods."""

import io
import json
from dataclasses import replace
from itertools import pairwise

import pytest
from django.core.management import CommandError, call_command
from hypothesis import given
from hypothesis import strategies as st

from scheduling.evaluation.rules.dispatch import DatasetTask, WorkQueue
from scheduling.evaluation.rules.forecast import lower_bound_s, simulate_campaign
from scheduling.evaluation.rules.methods import (
    METHODS,
    StudySetting,
    partition_by_size,
    partition_by_worker,
)
from scheduling.evaluation.rules.simulate import SharedLink
from scheduling.evaluation.rules.study import study
from scheduling.evaluation.rules.work import (
    AnswerStyle,
    BenchmarkDataset,
    EvaluationSite,
    MetricType,
    PhaseCosts,
    SliceCost,
    datasets,
)
from tests.properties import examples

PHASES = PhaseCosts.calibrate()


def task(on_gpu=100.0, score=0.0, samples=1000, checkpoint=0, dataset=0, **more):
    cost = SliceCost(prepare=0.0, infer=on_gpu, score=score)
    return DatasetTask(checkpoint=checkpoint, dataset=dataset, samples=samples, prior=cost, **more)


def taken_from(line, node=0):
    """Everything, in the order in which one node's GPUs would take it."""
    while (checkpoint := line.checkpoint_for(node)) is not None:
        while piece := line.take(checkpoint):
            yield piece


def setting(nodes=1, known=None):
    known = known or datasets()
    priors = [PHASES.cost(dataset, dataset.samples) for dataset in known]
    return StudySetting(site=EvaluationSite(nodes=nodes), phases=PHASES, datasets=known, priors=priors)


# phases


@pytest.mark.parametrize("sharing", [1, 4, 8])
def test_humaneval_costs_the_measured_time(sharing):
    phases = PhaseCosts.calibrate(sharing)
    human = next(dataset for dataset in datasets() if dataset.name == "humaneval")
    cost = phases.cost(human, human.samples)
    loading = phases.checkpoint_gb * sharing / EvaluationSite(nodes=1).link_gb_s

    assert phases.start + loading + cost.prepare == pytest.approx(0.295 * 221)
    assert cost.score == pytest.approx(0.190 * 221 + 0.5)
    assert cost.infer == pytest.approx((1 - 0.295 - 0.190) * 221)


def test_there_are_63_datasets_with_unique_names():
    assert len({dataset.name for dataset in datasets()}) == 63


# a link


def test_single_transfer_uses_the_whole_link():
    link = SharedLink(2.0)
    link.start_flow(10.0, 6.0, flow=1)

    assert link.next_completion() == 13.0


def test_concurrent_transfers_share_the_link():
    link = SharedLink(2.0)
    link.start_flow(0.0, 6.0, flow=1)
    link.start_flow(1.0, 2.0, flow=2)  # the first has had 2 by now; each gets 1 a second from here

    assert (link.next_completion(), link.leave(3.0)) == (3.0, 2)
    assert (link.next_completion(), link.leave(4.0)) == (4.0, 1)


# the line


def test_queue_starts_with_the_most_work():
    line = WorkQueue([task(10), task(500, dataset=1), task(90, dataset=2)], EvaluationSite(nodes=1))

    assert next(taken_from(line)).task == 1


def test_a_long_metric_goes_before_more_work_on_the_gpu():
    line = WorkQueue([task(5000), task(100, score=300, dataset=1)], EvaluationSite(nodes=1))

    assert next(taken_from(line)).task == 1


def test_a_dataset_that_may_not_be_cut_is_taken_whole():
    line = WorkQueue([task(50_000, parts=1), task(10)], EvaluationSite(nodes=1))

    assert next(taken_from(line)).samples == 1000


def test_slices_shrink_towards_the_end_but_not_to_nothing():
    line = WorkQueue([task(40_000, samples=100_000)], EvaluationSite(nodes=1))
    sizes = [piece.samples for piece in taken_from(line)]

    assert all(after <= before + 1 for before, after in pairwise(sizes[:-1]))  # whole samples
    assert min(sizes[:-1]) + 1 >= 30 / 0.4


def test_measured_slice_determines_the_rest_of_its_dataset():
    slow, known = (WorkQueue([task(4000), task(4000, dataset=1)], EvaluationSite(nodes=1)) for _ in range(2))
    first = slow.take(0)
    assert known.take(0) == first

    slow.record_cost(first, SliceCost(prepare=0, infer=8 * first.samples, score=0))  # twice what was expected

    assert slow.take(0).task == first.task  # it now has the most left
    assert known.take(0).task != first.task


def test_unmeasured_datasets_are_probed_first():
    line = WorkQueue(
        [task(9000), task(500, dataset=1, is_measured=False), task(100, dataset=2, is_measured=False)],
        EvaluationSite(nodes=1),
    )
    first, second, third = (line.take(0) for _ in range(3))

    assert [(piece.task, piece.probes) for piece in (first, second, third)] == [(1, True), (2, True), (0, False)]
    assert first.samples * 0.5 <= 10


def test_slices_are_minimal_until_the_probe_returns():
    line = WorkQueue([task(40_000, is_measured=False)], EvaluationSite(nodes=1))
    probe, blind = line.take(0), line.take(0)
    line.record_cost(probe, SliceCost(prepare=0, infer=40.0 * probe.samples, score=0))

    assert blind.samples * 40 <= 40  # one sample is more than half a minute
    assert line.take(0).samples > 10 * blind.samples


@pytest.mark.parametrize("parts", (2, 7, 8, 40))
def test_parts_of_an_unmeasured_dataset_are_not_used_up_by_short_slices(parts):
    """While its probe is out its slices are short; all of its parts would be used up by a fraction of it."""
    line = WorkQueue([task(40_000, samples=10_000, parts=parts, is_measured=False)], EvaluationSite(nodes=1))
    taken = [one.samples for one in iter(lambda: line.take(0), None)]

    assert sum(taken) == 10_000
    assert len(taken) <= parts
    assert max(taken) <= 1.2 * 10_000 / parts


def test_one_probe_of_a_dataset_counts_for_all_checkpoints():
    line = WorkQueue(
        [task(40_000, is_measured=False), task(40_000, checkpoint=1, is_measured=False)], EvaluationSite(nodes=2)
    )
    probe = line.take(0)

    assert not line.next_needs_probe(1)
    line.record_cost(probe, SliceCost(prepare=0, infer=2 * 40.0 * probe.samples, score=0))
    line.take(1)

    assert line.remaining_s == pytest.approx(2 * 80_000, rel=0.2)


def test_a_probe_of_a_dataset_with_a_long_metric_is_the_shorter_for_it():
    line = WorkQueue([task(100, score=900, samples=1000, is_measured=False)], EvaluationSite(nodes=1))

    assert line.take(0).samples == 10


@pytest.mark.parametrize("factor", [1 / 20, 20.0])
@pytest.mark.parametrize("name", ["bbh", "math", "mmlu", "alpaca_eval"])
def test_estimate_wrong_by_a_factor_of_20_costs_a_few_percent(name, factor):
    right = setting(nodes=4)
    priors = [
        cost.times(factor) if one.name == name else cost for one, cost in zip(right.datasets, right.priors, strict=True)
    ]
    known = [(one.samples, cost) for one, cost in zip(right.datasets, right.priors, strict=True)]

    wrong = METHODS["acme"].run(replace(right, priors=priors))

    assert wrong.makespan_s <= 1.1 * lower_bound_s(right.site, PHASES, known)


def test_no_schedule_of_whole_datasets_is_shorter_than_their_bound():
    for nodes in (1, 4):
        given = setting(nodes=nodes)
        bound_s = lower_bound_s(given.site, PHASES, [(1, cost) for cost in given.priors])

        assert METHODS["metrics_off_gpu"].run(given).makespan_s >= bound_s
        assert METHODS["baseline"].run(given).makespan_s >= bound_s


def test_node_continues_with_its_staged_checkpoint():
    line = WorkQueue([task(4000, checkpoint=number) for number in range(3)], EvaluationSite(nodes=2))

    assert [line.checkpoint_for(node) for node in (0, 1, 0, 1)] == [0, 1, 0, 1]


def test_node_joins_the_checkpoint_with_the_most_remaining_work():
    line = WorkQueue([task(100), task(8000, checkpoint=1), task(4000, checkpoint=2)], EvaluationSite(nodes=3))
    for node in range(3):
        line.checkpoint_for(node)
    while line.take(0):
        pass

    assert line.checkpoint_for(0) == 1


costs = st.tuples(st.integers(1, 5000), st.floats(0.1, 20_000), st.floats(0, 5000), st.integers(0, 3))


@examples(60)
@given(work=st.lists(costs, min_size=1, max_size=20), nodes=st.integers(1, 3))
def test_every_sample_is_taken_exactly_once(work, nodes):
    tasks = [
        task(on_gpu, score, samples, checkpoint, dataset)
        for dataset, (samples, on_gpu, score, checkpoint) in enumerate(work)
    ]
    taken = {number: [] for number in range(len(tasks))}
    for piece in taken_from(WorkQueue(tasks, EvaluationSite(nodes=nodes))):
        taken[piece.task].extend(range(piece.start, piece.start + piece.samples))

    assert all(sorted(samples) == list(range(tasks[number].samples)) for number, samples in taken.items())


@examples(60)
@given(work=st.lists(costs, min_size=1, max_size=20), nodes=st.integers(1, 3))
def test_no_plan_is_shorter_than_the_bound(work, nodes):
    site = EvaluationSite(nodes=nodes)
    tasks = [
        task(on_gpu, score, samples, checkpoint, dataset)
        for dataset, (samples, on_gpu, score, checkpoint) in enumerate(work)
    ]
    planned = simulate_campaign(tasks, [str(number) for number in range(len(work))], site, PHASES)
    known = [(each.samples, each.prior) for each in tasks]

    assert (
        planned.makespan_s >= lower_bound_s(site, PHASES, known, checkpoints=len({t.checkpoint for t in tasks})) - 1e-6
    )


# methods


@pytest.mark.parametrize("cut", [partition_by_size, partition_by_worker])
def test_partitioners_cover_all_samples(cut):
    given = setting(nodes=4)
    dealt = [0] * len(given.datasets)
    for batch in cut(given):
        for number, samples in batch:
            dealt[number] += samples

    assert dealt == [dataset.samples for dataset in given.datasets]


def test_the_worker_partitioner_makes_no_slice_of_less_than_sixteen():
    small = BenchmarkDataset(
        name="cb", samples=56, style=AnswerStyle.CHOOSE, prompt_tokens=110, answer=3, metric=MetricType.MATCH
    )

    assert sorted(samples for batch in partition_by_worker(setting(known=[small])) for _, samples in batch) == [
        18,
        19,
        19,
    ]


def test_eight_concurrent_trials_wait_for_the_link():
    known = [
        BenchmarkDataset(
            name=str(n), samples=1, style=AnswerStyle.CHOOSE, prompt_tokens=1, answer=2, metric=MetricType.MATCH
        )
        for n in range(8)
    ]
    done = METHODS["baseline"].run(setting(known=known), chart=True)
    loads = [bar.end_s - bar.begin_s for bar in done.bars if bar.phase == "load"]

    assert loads == pytest.approx([8 * 14 / (25 / 8)] * 8)


def test_a_staged_model_crosses_the_link_once_for_each_node():
    done = METHODS["staging"].run(setting(), chart=True)
    loads = [bar.end_s - bar.begin_s for bar in done.bars if bar.phase == "load"]

    assert loads == pytest.approx([14 / 10.0] * 63)  # the precursor was done before the first framework had started


def test_metrics_off_the_gpu_leave_no_gpu_scoring():
    done = METHODS["metrics_off_gpu"].run(setting(), chart=True)

    assert {bar.gpu for bar in done.bars if bar.phase == "score"} == {-1}


def test_a_gpu_does_one_thing_at_a_time():
    done = METHODS["acme"].run(setting(nodes=2), chart=True)
    by_gpu = {}
    for bar in done.bars:
        by_gpu.setdefault(bar.gpu, []).append((bar.begin_s, bar.end_s))
    del by_gpu[-1]

    for spans in by_gpu.values():
        assert all(before[1] <= after[0] + 1e-9 for before, after in pairwise(spans))


def test_the_study_beats_what_was_published_and_stays_near_the_bound_with_wrong_priors():
    for compared in study(seeds=20)["settings"]:
        rows = {row["method"]: row for row in compared["rows"]}

        assert rows["acme"]["speedup"] > compared["published_speedup"]
        assert all(wrong["worst_over_bound"] < 1.10 for wrong in compared["wrong_priors"])
        assert rows["acme"]["gpu_idle_s"] == min(row["gpu_idle_s"] for row in rows.values())


def test_the_same_seeds_give_the_same_study():
    assert study((2,), seeds=1) == study((2,), seeds=1)


# the command


def command(*words):
    out = io.StringIO()
    call_command("simulate_evaluation", *words, stdout=out)
    return out.getvalue()


def test_command_writes_only_json():
    report = json.loads(command("--nodes", "1", "--seeds", "1", "--json"))

    assert [row["method"] for row in report["settings"][0]["rows"]] == list(METHODS)
    assert {"nodes", "lower_bound_s", "rows"} <= report["settings"][0].keys()
    assert {"method", "makespan_s", "gpu_idle_s"} <= report["settings"][0]["rows"][0].keys()


def test_the_command_prints_a_table():
    assert "acme" in command("--nodes", "2", "--seeds", "1")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--nodes", "two"), "nodes: 'two' is not"),
        (("--nodes", "0"), "nodes: 0 is not"),
        (("--sharing", "9"), "sharing: 9"),
        (("--seeds", "-1"), "seeds: -1"),
    ],
)
def test_command_names_the_invalid_argument(words, why):
    with pytest.raises(CommandError, match=why):
        command(*words)
