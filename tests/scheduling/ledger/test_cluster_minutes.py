"""Per-minute records of a cluster, and the series computed from them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from jobs.core.telemetry_math import interval_start
from jobs.models import MINUTE_RETENTION, ClusterMinute, Node, Sample, clock
from jobs.queries import cluster_minutes
from scheduling.ledger.loops.cluster_minutes import delete_old_minutes, record_minutes_once
from tests import make

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)


def minute(at, **fields):
    seen = {"gpus": 32, "allocated": 8, "closed": 0, "utilization": None, "running": 1, "waiting": 0, "requested": 0}
    return ClusterMinute.objects.create(cluster=make.cluster(), at=at, **seen | fields)


def test_minute_records_held_busy_running_and_requested():
    make.running(make.job(gpus_per_node=8))
    make.jobs({"nodes": 2, "gpus_per_node": 4}, {"gpus_per_node": 1})
    now = clock.now()
    Sample.objects.create(node=Node.objects.first(), at=now, gpu_util=[90.0, 50.0, None, 10.0])

    assert record_minutes_once(now) == 1

    row = ClusterMinute.objects.get()
    assert (row.gpus, row.allocated, row.closed, row.utilization) == (32, 8, 0, 50.0)
    assert (row.running, row.waiting, row.requested) == (1, 2, 9)
    assert row.at == interval_start(now, 60)


def test_each_minute_is_written_once():
    make.cluster()
    now = clock.now()

    assert [record_minutes_once(now), record_minutes_once(now), record_minutes_once(now + MINUTE)] == [1, 0, 1]


def test_cluster_added_within_the_minute_is_written_too():
    make.cluster()
    now = clock.now()
    record_minutes_once(now)
    make.cluster("kalos", nodes=1)

    assert record_minutes_once(now) == 1
    assert set(ClusterMinute.objects.values_list("cluster__name", flat=True)) == {"seren", "kalos"}


def test_gpus_that_are_down_and_unmeasured_gpus_are_distinguished():
    make.node("seren-001", state="DOWN")
    make.node("seren-002", drain_requested=True)

    record_minutes_once(clock.now())

    row = ClusterMinute.objects.get()
    assert (row.closed, row.utilization) == (16, None)


def test_only_the_newest_sample_of_a_node_counts():
    now, node = clock.now(), make.node()
    for before_s, percent in ((90, 0.0), (30, 20.0), (15, 80.0)):
        Sample.objects.create(node=node, at=now - timedelta(seconds=before_s), gpu_util=[percent])

    record_minutes_once(now)

    assert ClusterMinute.objects.get().utilization == 80.0


def test_minutes_are_deleted_after_a_month():
    now = clock.now()
    minute(now - MINUTE_RETENTION - MINUTE)
    recent = minute(now - MINUTE_RETENTION + MINUTE)

    assert delete_old_minutes(now) == 1
    assert ClusterMinute.objects.get() == recent


# --- as a series

NOW = datetime(2026, 11, 21, 12, 2, tzinfo=UTC)


def course(hours, most=400):
    return cluster_minutes.cluster_usage_series(make.cluster(), timedelta(hours=hours), most, NOW)


def test_series_has_a_mean_per_step_and_gaps_without_data():
    for ago, allocated in ((0.5, 8), (6, 8), (7, 16), (13, 24)):
        minute(NOW - ago * MINUTE, allocated=allocated)

    series = course(24)

    assert (series.step_s, len(series.values["allocated"])) == (300, 288)
    assert series.begin == datetime(2026, 11, 20, 12, 5, tzinfo=UTC)
    assert series.values["allocated"][-4:] == [24.0, None, 12.0, 8.0]
    assert series.values["utilization"][-3:] == [None, None, None]


@pytest.mark.parametrize(("hours", "step_s"), [(1, 60), (6, 60), (24, 300), (168, 1800), (744, 7200)])
def test_longer_periods_have_longer_steps(hours, step_s):
    series = course(hours)

    assert series.step_s == step_s
    assert hours * 3600 / step_s - 1 <= len(series.values["gpus"]) <= 400


def test_series_ends_with_the_current_step_and_has_no_older_data():
    minute(NOW - timedelta(hours=2), allocated=32)
    minute(NOW - MINUTE, allocated=8)

    assert [one for one in course(1).values["allocated"] if one is not None] == [8.0]


def test_series_covers_only_its_own_cluster():
    minute(NOW - MINUTE, allocated=8)
    kalos = make.cluster("kalos", nodes=1)

    assert set(cluster_minutes.cluster_usage_series(kalos, timedelta(hours=1), 400, NOW).values["allocated"]) == {None}
