"""Steps that are slow because Acme capped clocks are no fault."""

from __future__ import annotations

from datetime import timedelta

import pytest

from failures.detection.slow_steps import StepTiming, steps_outside
from failures.loops.slow_steps import slow_steps_once
from failures.models import Anomaly
from jobs.models import Allocation, Node, NodeClock, RankTimes, clock
from jobs.queries.capped_time import capped_times
from tests import make as rows
from tests.failures.detection.test_anomalies import reports, training

pytestmark = pytest.mark.django_db
SLOW = (20, 3.0)  # steps after those of 2 s: a minute


def cap(node, began, ended=None, mhz=288):
    return NodeClock.objects.create(
        node=Node.objects.get(name=node), mhz=mhz, began_at=began, confirmed_at=began, ended_at=ended
    )


def longer_ago(attempt):
    Allocation.objects.filter(attempt=attempt).update(held_at=clock.now() - timedelta(hours=1))
    return attempt


@pytest.mark.parametrize(
    ("node", "began_s", "ended_s", "found"),
    [
        ("seren-002", 65, None, 0),  # one node of the job, until now
        ("seren-002", 65, 1, 0),
        ("seren-002", 300, 200, 1),  # over before the slow steps
        ("seren-004", 65, None, 1),  # not a node of the job
    ],
)
def test_steps_of_a_cap_are_no_anomaly_and_others_are(tmp_path, node, began_s, ended_s, found):
    now = clock.now()
    attempt = longer_ago(training(tmp_path))
    reports(attempt, now, (100, 2.0), SLOW)
    cap(node, now - timedelta(seconds=began_s), ended_s and now - timedelta(seconds=ended_s))

    assert slow_steps_once(now) == found
    assert Anomaly.objects.count() == found


def test_steps_that_stay_slow_after_a_cap_are_an_anomaly(tmp_path):
    now = clock.now()
    attempt = longer_ago(training(tmp_path))
    reports(attempt, now, (100, 2.0), SLOW, SLOW)
    cap("seren-001", now - timedelta(seconds=121), now - timedelta(seconds=60))

    assert slow_steps_once(now) == 1


def test_anomaly_from_before_a_cap_stays_open_during_it(tmp_path):
    now = clock.now()
    attempt = longer_ago(training(tmp_path))
    reports(attempt, now, (100, 2.0), SLOW)
    slow_steps_once(now)
    later = now + timedelta(minutes=10)
    cap("seren-001", now)
    reports(attempt, later, (150, 4.0))

    slow_steps_once(later)

    assert Anomaly.objects.get().ended_at is None


def test_times_of_ranks_during_a_cap_of_some_nodes_are_left_out(tmp_path):
    now = clock.now()
    attempt = longer_ago(training(tmp_path))
    reports(attempt, now, (100, 2.0), tokens=False)
    nodes = ["seren-001", "seren-002", "seren-003"]
    ranks = [node for node in nodes for _ in range(8)]
    seconds = [4.0 if node == "seren-001" else 2.0 for node in ranks]
    for number in range(8):
        RankTimes.objects.create(
            attempt=attempt, at=now - timedelta(seconds=8 - number), nodes=ranks, groups=[], seconds=seconds
        )
    cap("seren-001", now - timedelta(seconds=30))

    assert slow_steps_once(now) == 0


def test_overlapping_caps_of_nodes_are_one_time(cluster_of_two):
    attempt, now = cluster_of_two
    minute = timedelta(minutes=1)
    cap("seren-001", now - 9 * minute, now - 7 * minute)
    cap("seren-002", now - 8 * minute, now - 5 * minute)
    cap("seren-001", now - 2 * minute)

    times = capped_times([attempt.pk], now)

    assert times == {attempt.pk: [(now - 9 * minute, now - 5 * minute), (now - 2 * minute, now)]}


def test_cap_before_the_attempt_got_its_nodes_is_not_its(cluster_of_two):
    attempt, now = cluster_of_two
    cap("seren-001", now - timedelta(hours=3), now - timedelta(hours=2))

    assert capped_times([attempt.pk], now) == {}


@pytest.fixture
def cluster_of_two():
    job = rows.job(nodes=2, gpus_per_node=8)
    return longer_ago(rows.running(job, on=["seren-001", "seren-002"])), clock.now()


def test_step_is_left_out_if_a_part_of_it_was_capped():
    steps = [StepTiming(at=float(at), seconds=10.0) for at in range(10, 70, 10)]

    assert [step.at for step in steps_outside(steps, [(25.0, 35.0)])] == [10, 20, 50, 60]
    assert steps_outside(steps, []) == steps
