"""Speeds of jobs on GPU models: which ones count, and that jobs wait for a faster model only if that ends earlier."""

from dataclasses import replace
from datetime import timedelta

import pytest

from jobs.core.lifecycle import JobKind
from scheduling.engine.cluster import ClusterSnapshot, ResourceRequest, RunningJob
from scheduling.engine.gpu_speeds import GpuSpeeds, MeasuredSpeed, SpeedEntry, SpeedScope, SpeedSource
from scheduling.engine.history import SchedulingHistory
from scheduling.engine.policies import LIVE_POLICIES, POLICY_RULES
from scheduling.engine.run_time_estimates import RunTimeEstimates, expected_end
from scheduling.whatif.replay.start_estimates import start_estimates
from tests.make import NOON
from tests.scheduling.engine.test_engine import node, waiting

HOUR = 3600.0
SCOPE = SpeedScope("1", "llama-7b", 8)


def given(pattern="*", **speeds):
    return tuple(SpeedEntry(pattern=pattern, gpu_model=model, speed=speed) for model, speed in speeds.items())


def measured(**speeds):
    return {SCOPE: {model: MeasuredSpeed(steps_per_s=speed, attempts=3) for model, speed in speeds.items()}}


@pytest.mark.parametrize(
    ("speeds", "source", "slowdowns"),
    [
        (GpuSpeeds(), SpeedSource.UNKNOWN, ()),
        (GpuSpeeds(measured=measured(h100=3, a100=1.5)), SpeedSource.MEASURED, (1.0, 2.0)),
        (GpuSpeeds(table=given(h100=3, a100=1), measured=measured(h100=3, a100=1.5)), SpeedSource.GIVEN, (1.0, 3.0)),
        (GpuSpeeds(table=given(h100=3), measured=measured(h100=3, a100=1.5)), SpeedSource.MEASURED, (1.0, 2.0)),
        (GpuSpeeds(table=given(h100=3), measured=measured(a100=1.5)), SpeedSource.GIVEN, ()),
        (GpuSpeeds(table=given("other*", h100=3, a100=1)), SpeedSource.UNKNOWN, ()),
    ],
    ids=["none", "measured", "given-first", "incomplete-given", "never-mixed", "other-name"],
)
def test_first_source_that_has_all_models_counts(speeds, source, slowdowns):
    assert speeds.of(SCOPE, ("h100", "a100")).source == source
    assert speeds.slowdowns(SCOPE, "h100|a100") == slowdowns


@pytest.mark.parametrize(
    ("patterns", "best"),
    [
        (["*", "llama-*"], "llama-*"),
        (["llama-??", "llama-7b"], "llama-7b"),
        (["*b", "l*"], "*b"),
        (["*7b", "l*"], "*7b"),
    ],
)
def test_most_specific_pattern_counts(patterns, best):
    rows = tuple(row for pattern in patterns for row in given(pattern, h100=2, a100=1))

    assert GpuSpeeds(table=rows).of(SCOPE).pattern == best


def test_pattern_without_all_models_leaves_the_choice_to_a_more_general_one():
    rows = given("llama-7b", h100=9), given("llama-*", h100=3, a100=1), given("*", h100=5, a100=1)
    speeds = GpuSpeeds(table=sum(rows, ()), measured=measured(h100=2, a100=1))

    assert speeds.of(SCOPE, ("h100", "a100")).pattern == "llama-*"
    assert speeds.slowdowns(SCOPE, "h100|a100") == (1.0, 3.0)
    assert speeds.of(SCOPE, ("h100",)).pattern == "llama-7b"


def test_speed_on_a_slower_first_model_shortens_the_run():
    assert GpuSpeeds(table=given(h100=3, a100=1)).slowdowns(SCOPE, "a100|h100") == (1.0, 0.333)
    assert GpuSpeeds(table=given(h100=3, a100=1)).slowdowns(SCOPE, "a100") == ()


def request(model="h100|a100", **fields):
    return ResourceRequest(gpus=8, cpus=1, gpu_model=model, **fields)


def running(number, on, *, predicted_h=1.0, **fields):
    return RunningJob(
        id=number, name=f"r{number}", team="nlp", kind=JobKind.OTHER, gpus=8, priority=0, places={on: 8},
        started_at=NOON, time_limit=timedelta(hours=100), **fields,
    )  # fmt: skip


def snapshot(*jobs, free_a100=8, ends_in_h=1.0, run_h=10.0, slowdown=2.0, **fields):
    """One node of each model. The H100 are held by a job that is predicted to end; each waiting job runs `run_h`."""
    history = SchedulingHistory(predicted_s={901: ends_in_h * HOUR} | {job.id: run_h * HOUR for job in jobs})
    return ClusterSnapshot(
        now=NOON,
        nodes=(node(1, free=0, gpu_model="h100"), node(11, free=free_a100, gpu_model="a100")),
        waiting=jobs,
        running=(running(901, 1),),
        history=history,
        speeds=GpuSpeeds(table=given(h100=slowdown, a100=1)) if slowdown else None,
        **fields,
    )


def job(number, model="h100|a100", **fields):
    return waiting(number, need=request(model), **fields)


def starts(policy, picture):
    return {start.job_id: sorted(start.places) for start in LIVE_POLICIES[policy](picture).starts}


@pytest.mark.parametrize("policy", sorted(LIVE_POLICIES))
def test_job_waits_for_its_first_model_if_it_ends_earlier_there(policy):
    assert starts(policy, snapshot(job(1))) == {}


@pytest.mark.parametrize("policy", sorted(LIVE_POLICIES))
@pytest.mark.parametrize("fields", [{"ends_in_h": 30}, {"slowdown": None}, {"run_h": 0.5}], ids=lambda f: str(f))
def test_job_takes_its_second_model_otherwise(policy, fields):
    assert starts(policy, snapshot(job(1), **fields)) == {1: [11]}


@pytest.mark.parametrize("policy", sorted(LIVE_POLICIES))
def test_job_waits_rather_than_reach_its_time_limit_on_a_slow_model(policy):
    """50 min on H100, 150 min on A100, where the limit of 60 min would stop it."""
    picture = snapshot(job(1, time_limit=timedelta(hours=1)), run_h=5 / 6, ends_in_h=20.0, slowdown=3.0)

    assert starts(policy, picture) == {}


def test_wait_reason_says_that_the_job_would_reach_its_limit():
    picture = snapshot(job(1, time_limit=timedelta(hours=1)), run_h=5 / 6, ends_in_h=1 / 3, slowdown=3.0)

    (wait,) = LIVE_POLICIES["fifo"](picture).waits

    assert wait.why.endswith(" It waits for h100, because it is predicted to reach its time limit on a100.")


def test_job_that_would_reach_its_limit_on_all_models_takes_the_first_that_it_may_get():
    """No H100 node is open, so a wait for it might never end."""
    picture = snapshot(job(1, time_limit=timedelta(hours=1)), run_h=5 / 6, slowdown=3.0)
    picture = replace(picture, nodes=picture.nodes[1:], running=())

    assert starts("fifo", picture) == {1: [11]}


@pytest.mark.parametrize(
    ("ends_in_h", "run_h"),
    [(0.95, 1.0), (0.05, 0.1)],
    ids=["under-ten-percent", "under-five-minutes"],
)
def test_job_does_not_wait_for_a_small_gain(ends_in_h, run_h):
    assert starts("fifo", snapshot(job(1), ends_in_h=ends_in_h, run_h=run_h)) == {1: [11]}


def test_job_with_unknown_run_time_takes_what_is_free():
    picture = snapshot(job(1))
    known = replace(picture.history, predicted_s={901: HOUR})

    assert starts("fifo", replace(picture, history=known)) == {1: [11]}


@pytest.mark.parametrize(("worked_h", "expected"), [(1, {1: [11]}), (100, {})], ids=["short", "long"])
def test_work_of_earlier_attempts_counts_as_on_the_first_model(worked_h, expected):
    """A job that has long outrun its prediction is expected to go on for long, so a faster model is worth a wait."""
    worked = {1: 8 * worked_h * HOUR}
    picture = snapshot(job(1), ends_in_h=20.0, run_h=10.0)
    history = replace(picture.history, attained={1: 8 * 100 * HOUR}, attained_by_speed=worked)

    assert starts("fifo", replace(picture, history=history)) == expected


def test_predicted_end_counts_earlier_attempts_as_on_the_first_model():
    """At a slowdown of 4, two hours of work left take eight, however long the work before took elsewhere."""
    held = running(901, 1, slowdown=4.0)
    history = SchedulingHistory(
        predicted_s={901: 10 * HOUR}, attained={901: 8 * 32 * HOUR}, attained_by_speed={901: 8 * 8 * HOUR}
    )
    picture = replace(snapshot(job(1)), running=(held,), history=history)
    other = replace(picture, history=replace(history, attained={901: 8 * 8 * HOUR}))
    alone = replace(picture, history=SchedulingHistory(predicted_s={901: 10 * HOUR}, attained_by_speed={901: 0.0}))

    assert expected_end(picture, held) == expected_end(other, held)
    assert NOON + timedelta(hours=8) < expected_end(picture, held)
    assert expected_end(alone, held) == NOON + timedelta(hours=40)


def test_start_says_how_much_longer_the_job_runs_on_its_model():
    (start,) = LIVE_POLICIES["fifo"](snapshot(job(1), ends_in_h=30)).starts

    assert start.slowdown == 2.0


def test_later_jobs_see_that_earlier_ones_get_the_first_model_before_them():
    """Two jobs of 10 h wait for the H100 node, each twice as slow elsewhere: the second would end after 21 h there."""
    assert starts("fifo-skip", snapshot(job(1), job(2))) == {2: [11]}


def test_job_of_one_model_ahead_takes_its_place_first():
    assert starts("fifo-skip", snapshot(job(1, "h100"), job(2))) == {2: [11]}


def test_wait_reason_says_what_the_job_waits_for():
    (wait,) = LIVE_POLICIES["fifo"](snapshot(job(1))).waits

    assert wait.reason == "Resources"
    assert wait.why == wait.blockers[0].why
    assert wait.why == (
        "It needs 8 h100 GPUs; no node has 8 free (0 GPUs free in total)."
        " It waits for h100, where it is predicted to end about 9 h earlier than on a100 now."
    )


def test_job_that_fits_nowhere_gets_no_choice():
    (wait,) = LIVE_POLICIES["fifo"](snapshot(job(1), free_a100=4)).waits

    assert "It waits for" not in wait.why


def test_running_job_on_a_slow_model_is_predicted_to_end_later():
    """The same job that ends in an hour on H100 holds them for two hours there, if it runs at half speed."""
    picture = snapshot(job(1), run_h=1.5, ends_in_h=1.0)
    slow = replace(picture, running=(replace(picture.running[0], slowdown=4.0),))

    assert starts("fifo", picture) == {}
    assert starts("fifo", slow) == {1: [11]}


@pytest.mark.parametrize("run_h", [10.0, 0.5], ids=["waits", "takes-second"])
def test_start_estimate_knows_the_choice_and_the_speed(run_h):
    picture = snapshot(job(1, time_limit=timedelta(hours=50)), job(2, "a100"), run_h=run_h)

    estimates = start_estimates(picture, POLICY_RULES["fifo-skip"], durations=RunTimeEstimates(), draws=4)

    waits = run_h > 1
    assert estimates[1].slowdown == (1.0 if waits else 2.0)
    assert (estimates[1].p50 > NOON) == waits
    assert (estimates[2].p50 > NOON) != waits
