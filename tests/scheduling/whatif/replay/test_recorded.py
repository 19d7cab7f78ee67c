"""The record of past jobs as a run beside replays, the load of a replay, and the curves of a run."""

import numpy as np
import pytest

from scheduling.whatif.replay import report
from scheduling.whatif.replay.recorded import (
    RecordedAttempts,
    attempts_from_queue_times,
    recorded_run,
    recorded_summary,
)
from scheduling.whatif.replay.run import ReplaySetting, run_policy, with_load
from scheduling.whatif.replay.usage_over_time import MAX_SERIES_POINTS, UsageSeries, run_curves
from tests.scheduling.whatif.replay.replaying import SMALL, trace


def attempts(*rows):
    """Attempts as (job, start, end, preempted)."""
    job, start, end, preempted = zip(*rows, strict=True)
    return RecordedAttempts(
        job=np.array(job, dtype=np.int32),
        start_s=np.array(start, dtype=float),
        end_s=np.array(end, dtype=float),
        preempted=np.array(preempted, dtype=bool),
    )


def test_record_reports_waits_use_and_preemptions_of_all_attempts():
    history = trace((0, 50, 4), (10, 30, 8))
    past = attempts((0, 5, 25, True), (0, 40, 90, False), (1, 20, 50, False))

    run = recorded_run(history, past, SMALL, set(history.ids))
    result = recorded_summary(run)

    assert run.started_s.tolist() == [5, 20] and run.ended_s.tolist() == [90, 50]
    assert result["queue_s"]["max"] == 20  # 90 s until the end, of which 20 + 50 s on GPUs
    assert result["jct_s"]["mean"] == (90 + 40) / 2
    assert result["preemptions"] == 1
    assert result["utilisation"] == pytest.approx((4 * 70 + 8 * 30) / (12 * 90))


def test_record_leaves_out_what_it_does_not_know():
    history = trace((0, 50, 4))

    result = recorded_summary(recorded_run(history, attempts((0, 5, 55, False)), SMALL, set(history.ids)))

    assert (result["fragmentation"], result["gpu_hours"], result["faults"]["nodes"]) == (None, {}, None)


def test_record_and_replay_concern_the_same_jobs():
    history = trace((0, 50, 4), (0, 50, 13), (1, 5, 1), queue_s=[3, 3, 3])
    replayed = run_policy(history, "fifo", SMALL)

    run = recorded_run(history, attempts_from_queue_times(history), SMALL, set(replayed.trace.ids))

    assert replayed.too_wide == 1
    assert run.trace.ids == replayed.trace.ids
    assert run.started_s.tolist() == [3, 4]


def test_record_of_a_replay_has_the_figures_of_the_replay():
    history = trace((0, 100, 8), (1, 10, 8), (2, 20, 4), (3, 1, 12))
    replayed = run_policy(history, "fifo", SMALL)
    past = attempts(*((row, replayed.started_s[row], replayed.ended_s[row], False) for row in range(4)))

    said, meant = (
        recorded_summary(recorded_run(history, past, SMALL, set(history.ids))),
        report.summary(replayed, wall_s=0, peak_rss_mb=0),
    )

    for figure in ("jobs", "jct_s", "queue_s", "makespan_s", "utilisation", "preemptions", "by_kind", "fairness"):
        assert said[figure] == meant[figure], figure
    assert max(said["curves"]["usage"]["waiting"]) == max(meant["curves"]["usage"]["waiting"])


def test_trace_without_waits_has_no_record():
    assert attempts_from_queue_times(trace((0, 50, 4))) is None


@pytest.mark.parametrize(("load", "submitted"), [(100, [0, 10, 40]), (200, [0, 5, 20]), (50, [0, 20, 80])])
def test_load_scales_the_times_between_submissions(load, submitted):
    history = trace((0, 5, 1), (10, 5, 1), (40, 5, 1))

    assert with_load(history, load).submit_s.tolist() == submitted
    assert run_policy(history, "fifo", ReplaySetting(nodes=1, load=load)).started_s.tolist() == submitted


def test_more_load_never_shortens_the_waits_of_equal_jobs():
    history = trace(*((10 * number, 25, 8) for number in range(20)))

    def mean_wait(load):
        return report.summary(run_policy(history, "fifo", ReplaySetting(nodes=2, load=load)), wall_s=0, peak_rss_mb=0)[
            "queue_s"
        ]["mean"]

    assert mean_wait(50) <= mean_wait(100) < mean_wait(200)


def test_series_is_thinned_without_losing_the_longest_queue():
    count = 10 * MAX_SERIES_POINTS + 3
    waiting = np.zeros(count)
    waiting[777] = 42
    series = UsageSeries(
        at_s=np.arange(count) + 5.0, held=np.full(count, 6.0), free=waiting, fragmented=waiting, waiting=waiting
    )

    usage = run_curves(np.array([1.0, 2.0]), np.array([3.0]), series, 12)["usage"]

    assert len(usage["at_s"]) <= MAX_SERIES_POINTS and usage["at_s"][0] == 0
    assert max(usage["waiting"]) == 42
    assert set(usage["held_pct"]) == {50.0}
