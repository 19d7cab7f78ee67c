"""Maintenance windows: scheduled, started, ended. User actions take precedence, and kills lose nothing."""

from datetime import timedelta

import pytest

from acmeweb.common.errors import InvalidField, StateConflict
from jobs.actions import maintenance as maintenance_actions
from jobs.actions import nodes as node_actions
from jobs.actions.maintenance import MaintenanceRequest
from jobs.core.lifecycle import NodeFlag, NodeState, State
from jobs.models import Attempt, ClusterCommand, DrainMode, Event, Job, Maintenance, Node, clock
from scheduling.engine.cluster import MAINTENANCE
from scheduling.engine.policies import LIVE_POLICIES
from scheduling.ledger.reads import periods as ledger_periods
from scheduling.ledger.rules.buckets import Bucket
from scheduling.loops.drains import evict_from_drained_nodes_once
from scheduling.loops.maintenance import apply_maintenances_once
from scheduling.loops.schedule import schedule_once
from scheduling.queries import snapshot
from tests import make
from tests.statements import failing_statement

HOUR = timedelta(hours=1)


def declare(cluster, *, start=2 * HOUR, end=6 * HOUR, now=None, **fields):
    now = now or clock.now()
    asked = {"name": "cooling", "reason": "new pumps", "start_at": now + start, "end_at": now + end}
    return maintenance_actions.schedule_maintenance(
        cluster, MaintenanceRequest(**asked | fields), author=make.author("olga"), now=now
    )


def drained():
    return sorted(Node.objects.filter(drain_requested=True).values_list("name", flat=True))


def told(what):
    return list(Event.objects.filter(type=what).order_by("id"))


def schedule(cluster, now=None):
    return schedule_once(cluster, LIVE_POLICIES["easy"], now or clock.now(), lambda: None)


def test_nodes_are_drained_at_the_start_and_resumed_at_the_end(cluster):
    window = declare(cluster, nodes="seren-[001-002]")
    begins, ends = window.start_at, window.end_at

    assert apply_maintenances_once(cluster, begins - timedelta(seconds=1)) == 0
    assert apply_maintenances_once(cluster, begins) == 2
    assert drained() == ["seren-001", "seren-002"]
    assert Node.objects.get(name="seren-001").reason == "maintenance: cooling"
    assert ClusterCommand.objects.open().filter(kind="drain").count() == 2  # the cluster is told, too
    assert apply_maintenances_once(cluster, begins + HOUR) == 0  # run again, it finds nothing to do

    assert apply_maintenances_once(cluster, ends) == 2
    assert drained() == []
    window.refresh_from_db()
    assert (window.begun_at, window.closed_at) == (begins, ends)
    assert apply_maintenances_once(cluster, ends + HOUR) == 0


def test_maintenance_writes_events(cluster):
    window = declare(cluster, nodes="seren-001")
    apply_maintenances_once(cluster, window.start_at)
    apply_maintenances_once(cluster, window.end_at)

    assert [(one.type, one.by) for one in Event.objects.exclude(type="job.submitted").order_by("id")] == [
        ("maintenance.created", "olga"),
        ("maintenance.started", "maintenance"),
        ("node.drained", "maintenance"),
        ("node.resumed", "maintenance"),
        ("maintenance.ended", "maintenance"),
    ]
    assert told("node.drained")[0].why == "maintenance: cooling"


def test_whole_cluster_maintenance_covers_nodes_added_later(cluster):
    window = declare(cluster)
    make.node("seren-005", cluster=cluster)

    assert apply_maintenances_once(cluster, window.start_at) == 5


def test_node_drained_by_a_user_stays_drained(cluster):
    before, meanwhile = (Node.objects.get(name=name) for name in ("seren-001", "seren-002"))
    node_actions.drain(before, author=make.author("olga"), why="bad fan", now=clock.now())
    window = declare(cluster)
    apply_maintenances_once(cluster, window.start_at)
    node_actions.drain(meanwhile, author=make.author("olga"), why="bad disk", now=window.start_at)

    apply_maintenances_once(cluster, window.end_at)

    assert drained() == ["seren-001", "seren-002"]
    assert Node.objects.get(name="seren-002").reason == "bad disk"
    window.refresh_from_db()
    assert window.closed_at == window.end_at


def test_node_resumed_by_a_user_leaves_the_maintenance(cluster):
    window = declare(cluster)
    apply_maintenances_once(cluster, window.start_at)

    node = Node.objects.get(name="seren-003")
    node_actions.resume(node, author=make.author("olga"), now=window.start_at + HOUR)
    apply_maintenances_once(cluster, window.start_at + HOUR)

    assert drained() == ["seren-001", "seren-002", "seren-004"]
    assert told("node.resumed")[0].detail == {"left": "cooling"}
    (seen,) = snapshot.take_snapshot(cluster, window.start_at + HOUR).windows
    assert node.pk not in seen.nodes


def test_node_resumed_from_another_drain_is_drained_for_the_maintenance(cluster):
    node = Node.objects.get(name="seren-001")
    node_actions.drain(node, author=make.author("olga"), why="bad fan", now=clock.now())
    window = declare(cluster)
    apply_maintenances_once(cluster, window.start_at)

    node_actions.resume(node, author=make.author("olga"), now=window.start_at + HOUR)
    apply_maintenances_once(cluster, window.start_at + HOUR)

    assert Node.objects.get(name="seren-001").reason == "maintenance: cooling"


@pytest.mark.parametrize("begun", [False, True])
def test_cancelled_maintenance_resumes_its_nodes(cluster, begun):
    window = declare(cluster)
    now = window.start_at if begun else window.start_at - HOUR
    apply_maintenances_once(cluster, now)

    maintenance_actions.cancel(window, author=make.author("olga"), why="pumps are late", now=now)
    apply_maintenances_once(cluster, now)

    assert drained() == []
    assert snapshot.take_snapshot(cluster, now).windows == ()
    assert Maintenance.objects.get().closed_at == now
    with pytest.raises(StateConflict, match="already cancelled"):
        maintenance_actions.cancel(window, author=make.author("olga"), now=now)


def test_the_end_may_be_moved_both_ways_while_it_goes_on(cluster):
    window = declare(cluster)
    ended = window.end_at
    apply_maintenances_once(cluster, window.start_at)

    maintenance_actions.change_maintenance_end(
        window, ended + HOUR, author=make.author("olga"), why="late", now=window.start_at
    )
    assert apply_maintenances_once(cluster, ended) == 0
    maintenance_actions.change_maintenance_end(window, ended + HOUR / 2, author=make.author("olga"), now=ended)
    assert apply_maintenances_once(cluster, ended + HOUR / 2) == 4

    assert [one.why for one in told("maintenance.end_changed")] == ["late", ""]
    with pytest.raises(StateConflict, match="already over"):
        maintenance_actions.change_maintenance_end(
            window, ended + 9 * HOUR, author=make.author("olga"), now=ended + HOUR
        )


def test_drain_by_a_user_during_the_turn_takes_precedence(cluster):
    window, node = declare(cluster), Node.objects.get(name="seren-001")
    stale = Maintenance.objects.select_related("cluster").get()
    maintenance_actions.cancel(window, author=make.author("olga"), now=window.start_at - HOUR)

    assert maintenance_actions.close_node_for_maintenance(stale, node, stale.start_at) is False
    assert drained() == []


def test_maintenance_extended_during_the_turn_resumes_no_node(cluster):
    window, node = declare(cluster), Node.objects.get(name="seren-001")
    apply_maintenances_once(cluster, window.start_at)
    stale = Maintenance.objects.select_related("cluster").get()
    ended = window.end_at
    maintenance_actions.change_maintenance_end(window, ended + HOUR, author=make.author("olga"), now=window.start_at)

    assert maintenance_actions.reopen_node_after_maintenance(stale, node, ended) is False
    assert maintenance_actions.finish(stale, ended) is False
    assert len(drained()) == 4


def test_turn_after_a_kill_drains_the_remaining_nodes(cluster):
    window = declare(cluster)
    maintenance_actions.close_node_for_maintenance(window, Node.objects.get(name="seren-002"), window.start_at)

    assert apply_maintenances_once(cluster, window.start_at) == 3

    maintenance_actions.reopen_node_after_maintenance(window, Node.objects.get(name="seren-001"), window.end_at)
    assert apply_maintenances_once(cluster, window.end_at) == 3
    assert len(told("maintenance.started")) == len(told("maintenance.ended")) == 1


def test_error_in_one_node_does_not_stop_the_others(cluster):
    window, node = declare(cluster), Node.objects.get(name="seren-001")

    with failing_statement('FOR UPDATE OF "jobs_node"', node.pk, error=RuntimeError("a bug")):
        assert apply_maintenances_once(cluster, window.start_at) == 3


def test_mode_of_a_maintenance_decides_about_running_jobs(cluster):
    attempt = make.running(make.job(gpus_per_node=1))
    window = declare(cluster, mode=DrainMode.NOW)
    apply_maintenances_once(cluster, window.start_at)
    evict_from_drained_nodes_once(cluster, window.start_at)

    assert Attempt.objects.get(pk=attempt.pk).stop_state == State.PENDING
    assert told("job.evict_requested")[0].why == "seren-001 is drained by maintenance: cooling"


def test_maintenance_of_an_undriven_cluster_lets_jobs_finish(cluster):
    make.cluster(mode="advise")
    cluster.refresh_from_db()
    with pytest.raises(InvalidField, match="is not driven by Acme") as error:
        declare(cluster, mode=DrainMode.NOW)
    assert error.value.field == "mode"
    window = declare(cluster)
    assert apply_maintenances_once(cluster, window.start_at) == 4


def test_observed_cluster_has_no_maintenance(cluster):
    make.cluster(mode="observe")
    cluster.refresh_from_db()
    with pytest.raises(InvalidField, match="in mode observe"):
        declare(cluster)


@pytest.mark.parametrize(
    ("asked", "field", "why"),
    [
        ({"name": " "}, "name", "is empty"),
        ({"reason": ""}, "reason", "is empty"),
        ({"end": HOUR}, "end_at", "is not after the start"),
        ({"start": -3 * HOUR, "end": -HOUR}, "end_at", "is in the past"),
        ({"start": 9000 * HOUR, "end": 9001 * HOUR}, "start_at", "more than a year ahead"),
        ({"end": 9001 * HOUR}, "end_at", "more than a year after"),
        ({"nodes": "seren-[001-009]"}, "nodes", "seren has no node seren-005, seren-006, seren-007 and 2 more"),
        ({"nodes": "seren-[1"}, "nodes", "unbalanced brackets"),
        ({"nodes": ","}, "nodes", "contains no node"),
        ({"lead_time": timedelta(days=999)}, "lead_time", "366 days"),
    ],
)
def test_invalid_maintenance_is_refused_with_its_field(cluster, asked, field, why):
    with pytest.raises(InvalidField, match=why) as error:
        declare(cluster, **asked)
    assert error.value.field == field
    assert not Maintenance.objects.exists()
    assert not told("maintenance.created")


def test_second_maintenance_with_the_same_name_is_refused(cluster):
    window = declare(cluster)
    with pytest.raises(InvalidField, match="is already used by another maintenance"):
        declare(cluster)
    maintenance_actions.cancel(window, author=make.author("olga"), now=clock.now())
    apply_maintenances_once(cluster, clock.now())

    declare(cluster)


def test_job_that_would_run_into_the_maintenance_waits(cluster):
    declare(cluster, name="power", nodes="seren-[001-004]")
    long = make.job(gpus_per_node=8, time_limit=5 * 3600)
    short = make.job(gpus_per_node=8, time_limit=1800)

    schedule(cluster)

    long.refresh_from_db()
    short.refresh_from_db()
    assert (long.state, long.reason, short.state) == (State.PENDING, "ReqNodeNotAvail", State.RUNNING)
    assert "reserved for maintenance power from" in long.why


def test_usual_duration_replaces_a_missing_time_limit(cluster):
    for _ in range(3):
        make.ended(make.job(name="nightly", gpus_per_node=1))
    usual, unknown = (make.job(name=name, gpus_per_node=1, time_limit="UNLIMITED") for name in ("nightly", "new"))
    Job.objects.filter(pk__in=[usual.pk, unknown.pk]).update(time_limit=None)
    declare(cluster)

    seen = {job.id: job.usual for job in snapshot.take_snapshot(cluster, clock.now()).waiting}

    assert seen[unknown.pk] is None
    assert timedelta(minutes=4) < seen[usual.pk] < HOUR
    schedule(cluster)
    assert set(Job.objects.filter(state=State.RUNNING).values_list("pk", flat=True)) == {usual.pk}


def test_turn_without_maintenances_needs_one_extra_query(cluster, django_assert_num_queries):
    make.job(gpus_per_node=1)
    now = clock.now()
    with django_assert_num_queries(1):
        assert apply_maintenances_once(cluster, now) == 0
    assert snapshot.take_snapshot(cluster, now).windows == ()


def test_ended_window_that_is_not_closed_blocks_no_job_but_keeps_its_nodes(cluster):
    """The next one is ahead, so the engine knows of windows; those nodes are still drained all the same."""
    window = declare(cluster, nodes="seren-001")
    declare(cluster, name="later", start=100 * HOUR, end=101 * HOUR)
    apply_maintenances_once(cluster, window.start_at)

    picture = snapshot.take_snapshot(cluster, window.end_at)

    assert [one.back for one in picture.closed] == [MAINTENANCE]
    assert picture.nodes_in_maintenance == ()
    assert [one.name for one in picture.windows] == ["later"]


def test_the_ledger_counts_its_nodes_as_drained_even_when_they_are_switched_off(cluster):
    now = clock.now()
    window = declare(cluster, start=timedelta(0), end=HOUR, now=now, nodes="seren-001")
    apply_maintenances_once(cluster, window.start_at)
    node = Node.objects.get(name="seren-001")
    node_actions.record_observation(
        node, author=make.LOOP, now=now, state=NodeState.DOWN, flags=[NodeFlag.NOT_RESPONDING.value], seen_at=now
    )

    found = ledger_periods.cluster_ledger(cluster, clock.now() - timedelta(seconds=1), clock.now() + HOUR).total

    closed = {(key.bucket, key.cause) for key in found.gpu_us if key.bucket in (Bucket.DRAINED, Bucket.DOWN)}
    assert closed == {(Bucket.DRAINED, "maintenance: cooling")}
