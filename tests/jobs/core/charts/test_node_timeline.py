"""The states of a node over a period, its lines of telemetry, and the lanes of its jobs."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from jobs.core.charts.node_timeline import NodeUse, line_segments, node_spans, packed_lanes, state_shares

BEGIN = datetime(2026, 11, 1, tzinfo=UTC)


def at(hour):
    return BEGIN + timedelta(hours=hour)


def use(begin, end, gpus=8):
    return NodeUse(begin=at(begin), end=None if end is None else at(end), gpus=gpus)


UP = [(at(-5), "UP")]


@pytest.mark.parametrize(
    ("conditions", "drains", "uses", "found"),
    [
        pytest.param([], [], [], "unknown 10", id="no condition is known"),
        pytest.param(UP, [], [], "idle 10", id="nothing happens"),
        pytest.param(UP, [], [use(-3, 2), use(2, 4)], "allocated 4, idle 6", id="two jobs after each other"),
        pytest.param(UP, [], [use(1, 5, 4), use(3, None, 4)], "idle 1, mixed 2, allocated 2, mixed 5", id="overlap"),
        pytest.param(UP, [], [use(1, 5, 0)], "idle 1, mixed 4, idle 5", id="a job without GPUs"),
        pytest.param(UP, [(at(-1), True), (at(4), False)], [use(0, 2)], "allocated 2, drained 2, idle 6", id="drain"),
        pytest.param([(at(0), "UP+DRAIN")], [], [], "drained 10", id="a drain of the cluster"),
        pytest.param([(at(0), "UP"), (at(3), "DOWN"), (at(5), "UP")], [], [use(0, 9)],
                     "allocated 3, down 2, allocated 4, idle 1", id="down while a job is not ended"),
        pytest.param([(at(0), "UP+NOT_RESPONDING")], [], [], "down 10", id="does not respond"),
        pytest.param([(at(0), "UNKNOWN"), (at(8), "IDLE")], [], [], "unknown 8, idle 2", id="added during the period"),
        pytest.param([*UP, (at(12), "DOWN")], [], [use(11, 12)], "idle 10", id="changes after the end"),
    ],
)  # fmt: skip
def test_states_follow_health_drains_and_jobs_without_gaps(conditions, drains, uses, found):
    spans = node_spans(8, conditions, drains, uses, at(0), at(10))

    assert ", ".join(f"{span.state} {(span.end - span.begin) // timedelta(hours=1)}" for span in spans) == found
    assert (spans[0].begin, spans[-1].end) == (at(0), at(10))
    assert all(one.end == other.begin for one, other in pairwise(spans))
    assert sum(state_shares(spans).values()) == pytest.approx(100)


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([], []),
        ([None, None], []),
        ([0.0, 100.0], ["0.00,20.0 100.00,0.0"]),
        ([0.0, 50.0, None, 50.0, 200.0], ["0.00,20.0 25.00,10.0", "75.00,10.0 100.00,0.0"]),
        ([float("nan"), 100.0, None], ["50.00,0.0 50.00,0.0"]),
    ],
)
def test_missing_readings_leave_a_gap_and_the_line_stays_within_its_scale(values, found):
    assert line_segments(values, (0.0, 100.0)) == found


def test_jobs_at_the_same_time_are_in_different_lanes_while_there_are_lanes():
    uses = [use(4, None), use(3, 5), use(2, 4), use(0, 2), use(1, 3)]

    assert packed_lanes(uses, 8) == [0, 1, 0, 0, 1]
    assert max(packed_lanes([use(0, None) for _ in range(9)], 4)) == 3
