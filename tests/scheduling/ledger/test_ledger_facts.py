"""The ledger from database rows: attempts, nodes and waiting jobs of a window."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from failures.models import Diagnosis, Incident
from jobs.core.lifecycle import Flag, State
from jobs.models import Allocation, Attempt, Checkpoint, Cluster, Event, HoldKind, Job, Node, Progress, clock
from scheduling.ledger.reads import facts as ledger_facts
from scheduling.ledger.reads import rows as ledger_rows
from scheduling.ledger.reads import table as ledger_table
from scheduling.ledger.rules import report_rows
from scheduling.ledger.rules.buckets import Bucket
from scheduling.ledger.rules.parts import US_PER_HOUR
from tests import make

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


@pytest.fixture
def now():
    home = make.cluster()
    now = clock.now()
    Cluster.objects.filter(pk=home.pk).update(created_at=now - 100 * HOUR)
    return now


def ran(now, hours, *, ended=None, state=State.RUNNING, cause="", job=None, **where):
    """An attempt that was promised and confirmed this many hours ago."""
    one = make.running(job or make.job(gpus_per_node=8), **where)
    since, over = now - hours * HOUR, None if ended is None else now - ended * HOUR
    Attempt.objects.filter(pk=one.pk).update(
        promised_at=since, confirmed_at=since, ended_at=over, state=state, cause=cause
    )
    Allocation.objects.filter(attempt=one).update(held_at=since, released_at=over)
    Job.objects.filter(pk=one.job_id).update(submitted_at=since, ended_at=over, state=state if over else State.RUNNING)
    return one


def hours(now, by="cluster", back=10, **options):
    table = ledger_table.table(by, now - back * HOUR, now, **options)
    assert sum(table.gpu_us.values()) == table.capacity_us
    return {
        row.name: {bucket.value: part / US_PER_HOUR for bucket, part in row.gpu_us.items() if part}
        for row in table.rows
    }


def test_empty_cluster_is_free_up_to_its_capacity(now):
    assert hours(now) == {"seren": {"free": 320}}


def test_running_job_is_productive(now):
    ran(now, 4)

    assert hours(now)["seren"] == {"productive": 32, "free": 288}


def test_time_until_the_first_step_is_start_up(now):
    one = ran(now, 4)
    Progress.objects.create(attempt=one, at=now - 3 * HOUR, step=1)

    assert hours(now)["seren"] == {"start_up": 8, "productive": 24, "free": 288}


def test_failure_loses_unsaved_work_under_its_cause(now):
    one = ran(now, 8, ended=2, state=State.NODE_FAIL, cause="ECCError")
    saved = {"saved_at": now - 5 * HOUR, "durable_at": now - 5 * HOUR}
    Checkpoint.objects.create(job=one.job, attempt=one, step=9, path="/c/9", **saved)
    later = {"saved_at": now - 3 * HOUR, "durable_at": now - 3 * HOUR, "verdict": "bad"}
    Checkpoint.objects.create(job=one.job, attempt=one, step=12, path="/c/12", **later)

    assert hours(now)["seren"] == {"productive": 24, "lost_work": 24, "free": 272}
    table = ledger_table.table("cluster", now - 10 * HOUR, now)
    assert table.lost == {"ECCError": 24 * US_PER_HOUR}
    assert (table.mttf.failures, table.mttf.mean) == (1, 48)
    assert table.ettr == pytest.approx(0.5)


def test_causes_of_lost_gpu_hours_add_up_to_their_column(now):
    ran(now, 8, ended=2, state=State.NODE_FAIL, cause="ECCError")
    node = make.node("seren-003")
    Event.objects.create(type="node.drained", node=node, cluster=node.cluster, by="ada", why="fan", at=now - 4 * HOUR)

    table = ledger_table.table("cluster", now - 10 * HOUR, now)

    columns = {part.group.name: part.hours for part in report_rows.report_bar_parts(table.gpu_us)}
    assert columns["lost"] == sum(table.lost.values()) / US_PER_HOUR == 48
    assert columns["closed"] == sum(table.closed.values()) / US_PER_HOUR == 32


def blamed(attempt, now, *nodes, cause="ECCError", incident=None):
    diagnosis = Diagnosis.objects.create(
        attempt=attempt, cluster=attempt.job.cluster, failed_at=now - HOUR, root_cause=cause, incident=incident
    )
    diagnosis.nodes.set(Node.objects.filter(name__in=nodes))


def test_mean_time_to_failure_is_grouped_by_model_and_node(now):
    model = Node.objects.get(name="seren-001").gpu_model
    blamed(ran(now, 8, ended=2, state=State.FAILED, cause="ECCError", on=["seren-001"]), now, "seren-001")
    ran(now, 4, on=["seren-002"])

    table = ledger_table.table("cluster", now - 10 * HOUR, now)

    [(node, one)] = table.mttf_by_node.items()
    assert (node, one.failures, one.mean) == ("seren/seren-001", 1, 48)
    assert (table.mttf_by_model[model].failures, table.mttf_by_model[model].mean) == (1, 80)
    assert one.low < one.mean < one.high


def test_program_error_is_not_a_node_failure(now):
    one = ran(now, 8, ended=2, state=State.FAILED, cause="TypeError", on=["seren-001"])
    blamed(one, now, "seren-001", cause="TypeError")

    assert ledger_table.table("cluster", now - 10 * HOUR, now).mttf_by_node == {}


def test_two_jobs_ended_by_one_fault_are_one_failure(now):
    home = Cluster.objects.get()
    incident = Incident.objects.create(
        cluster=home,
        root_cause="ECCError",
        scope="node",
        subject="seren-001",
        first_symptom_at=now,
        last_symptom_at=now,
    )
    for _ in range(2):
        one = ran(
            now, 8, ended=2, state=State.FAILED, cause="ECCError", on=["seren-001"], job=make.job(gpus_per_node=1)
        )
        blamed(one, now, "seren-001", incident=incident)

    assert ledger_table.table("cluster", now - 10 * HOUR, now).mttf_by_node["seren/seren-001"].failures == 1


def test_time_spent_saving_is_checkpoint_stall(now):
    one = ran(now, 4)
    for step in (1, 2):
        Checkpoint.objects.create(
            job=one.job, attempt=one, step=step, path=f"/c/{step}", saved_at=now - step * HOUR, stall_s=1800
        )

    assert hours(now)["seren"] == {"productive": 24, "checkpoint_stall": 8, "free": 288}


def test_down_node_counts_as_down_regardless_of_its_holder(now):
    one = ran(now, 4)
    place = Allocation.objects.filter(attempt=one).first().node
    Event.objects.create(
        type="node.state_changed", node=place, cluster=place.cluster, by="sync",
        at=now - HOUR, from_state="UP", to_state="DOWN", why="Xid 79",
    )  # fmt: skip

    assert hours(now)["seren"] == {"productive": 24, "down": 8, "free": 288}


def test_node_that_sleeps_is_asleep_until_it_has_booted(now):
    place = Node.objects.get(name="seren-001")
    changes = ((8, "UP+POWERING_DOWN"), (7, "UP+POWERED_DOWN"), (2, "UP+POWERING_UP"), (1, "UP"))
    for ago, state in changes:
        Event.objects.create(
            type="node.state_changed", node=place, cluster=place.cluster, by="sync", to_state=state, at=now - ago * HOUR
        )
    one = ran(now, 2, on=["seren-001"])
    Progress.objects.create(attempt=one, at=now - 1 * HOUR, step=1)

    assert hours(now)["seren"] == {"asleep": 48, "start_up": 8, "productive": 8, "free": 256}


def test_sleeping_node_that_is_drained_counts_as_drained(now):
    place = Node.objects.get(name="seren-001")
    Event.objects.create(
        type="node.state_changed", node=place, cluster=place.cluster, by="sync", to_state="UP+POWERED_DOWN",
        at=now - 8 * HOUR,
    )  # fmt: skip
    Event.objects.create(type="node.drained", node=place, cluster=place.cluster, by="ada", why="fan", at=now - 4 * HOUR)

    assert hours(now)["seren"] == {"asleep": 32, "drained": 32, "free": 256}


def test_drain_from_before_the_window_counts(now):
    for what, ago in (("node.drained", 30), ("node.resumed", 4)):
        node = make.node("seren-004")
        Event.objects.create(type=what, node=node, cluster=node.cluster, by="ada", at=now - ago * HOUR)

    assert hours(now)["seren"] == {"drained": 48, "free": 272}


@pytest.mark.parametrize("ago", [30, 4])
def test_nodes_closed_by_recovery_share_one_cause(now, ago):
    for name, why in (("seren-003", "Recovery of incident 7: Xid 79"), ("seren-004", "Recovery of incident 9: ECC")):
        node = make.node(name)
        Event.objects.create(
            type="node.drained", node=node, cluster=node.cluster, by="recovery", why=why, at=now - ago * HOUR
        )
        event = {"type": "node.state_changed", "by": "sync", "from_state": "UP", "to_state": "UP+DRAIN", "why": why}
        Event.objects.create(**event, node=node, cluster=node.cluster, at=now - ago * HOUR)

    event = ledger_table.table("cluster", now - 10 * HOUR, now)

    assert event.closed == {"recovery": 2 * 8 * min(ago, 10) * US_PER_HOUR}
    assert event.lost == {}


@pytest.mark.parametrize("ago", [30, 4])
def test_reason_written_by_a_user_is_not_treated_as_recovery(now, ago):
    node, why = make.node("seren-003"), "Recovery of incident 7 was wrong, I look myself"
    for what, by, state in (("node.drained", "ada", ""), ("node.state_changed", "sync", "UP+DRAIN")):
        Event.objects.create(
            type=what, node=node, cluster=node.cluster, by=by, to_state=state, why=why, at=now - ago * HOUR
        )

    assert list(ledger_table.table("cluster", now - 10 * HOUR, now).closed) == [why]


def test_free_gpus_are_divided_by_waiting_jobs(now):
    ran(now, 20, job=make.job(gpus_per_node=6, nodes=4), nodes=4, gpus=(0, 1, 2, 3, 4, 5))
    waits = make.job(gpus_per_node=8)
    Job.objects.filter(pk=waits.pk).update(submitted_at=now - 5 * HOUR)

    assert hours(now)["seren"] == {"productive": 240, "free": 40, "fragmented": 40}


def waiting_job(now, since, **fields):
    job = make.job(gpus_per_node=2, name=f"waits-{since}")
    Job.objects.filter(pk=job.pk).update(submitted_at=now - since * HOUR, **fields)


@pytest.mark.parametrize(
    ("others", "reserved_hours"),
    [
        ([], 5),
        ([{"since": 7}], 7),
        ([{"since": 3}, {"since": 6}], 6),
        ([{"since": 7, "hold": HoldKind.USER}], 5),
        ([{"since": 7, "flags": [Flag.REQUEUE_HOLD]}], 5),
        ([{"since": 7, "reason": "Dependency"}], 5),
    ],
    ids=["alone", "longer", "two", "held", "requeue-hold", "dependency"],
)
def test_longest_wait_for_the_same_gpus_decides_what_is_reserved(now, others, reserved_hours):
    waiting_job(now, 5)
    for other in others:
        waiting_job(now, **other)

    assert hours(now)["seren"][Bucket.RESERVED_IDLE] == 32 * reserved_hours


def test_wait_begins_when_a_job_may_start_at_the_earliest(now):
    waiting_job(now, 9, begin_at=now - 4 * HOUR)

    assert hours(now)["seren"][Bucket.RESERVED_IDLE] == 32 * 4


def test_requeued_job_waits_before_and_after_its_attempt(now):
    one = ran(now, 6, ended=4, state=State.PREEMPTED, nodes=4)
    Job.objects.filter(pk=one.job_id).update(
        state=State.PENDING, started_at=None, ended_at=None, submitted_at=now - 9 * HOUR
    )

    assert hours(now)["seren"][Bucket.RESERVED_IDLE] == 32 * (3 + 4)


def test_days_teams_and_kinds_add_up_to_the_same_total(now):
    ran(now, 30)
    whole = ledger_table.table("cluster", now - 40 * HOUR, now).gpu_us

    for by in ledger_table.GROUPINGS:
        table = ledger_table.table(by, now - 40 * HOUR, now)
        assert table.gpu_us == whole
    assert 2 <= len(ledger_table.table("day", now - 40 * HOUR, now).rows) <= 3
    assert hours(now, "team")["pretraining"] == {"productive": 80}


def test_hours_of_a_hidden_team_are_shown_without_its_name(now):
    ran(now, 4)

    assert hours(now, "team", teams=[])[""][Bucket.PRODUCTIVE] == 32


def test_number_of_statements_does_not_grow_with_jobs(now):
    def statements():
        with CaptureQueriesContext(
            connection,
        ) as said:
            ledger_table.table("day", now - 10 * HOUR, now)
        return len(said)

    ran(now, 4)
    few = statements()
    for number in (2, 3, 4):
        ran(now, 4, on=[f"seren-{number:03d}"])

    assert statements() == few <= 22


@pytest.mark.parametrize("microsecond", [0, 1, 499_999, 999_999])
def test_times_are_read_to_the_microsecond(now, microsecond):
    submitted = (now - 4 * HOUR).replace(microsecond=microsecond)
    one = ran(now, 3)
    Job.objects.filter(pk=one.job_id).update(submitted_at=submitted)

    [job] = ledger_rows.jobs_in_period(one.job.cluster, now - 10 * HOUR, now)
    [attempt] = ledger_rows.attempts_by_job([job.pk])[job.pk]

    assert job.submitted == ledger_facts.unix_microseconds(submitted)
    assert attempt.promised == ledger_facts.unix_microseconds(now - 3 * HOUR)
    assert (job.ended, attempt.ended) == (None, None)
