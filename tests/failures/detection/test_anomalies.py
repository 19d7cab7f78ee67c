"""Slow steps and faulty nodes: detection, incidents, recovery decisions and the ledger."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from django.db import DatabaseError

from failures.actions import anomalies as anomaly_actions
from failures.actions.incidents import resolve
from failures.detection import slow_steps
from failures.detection.findings import DetectorFinding, Severity, SymptomType
from failures.loops.node_health import node_health_once
from failures.loops.slow_steps import ProgressRow, measured_steps, slow_steps_once
from failures.models import Anomaly, Decision, DecisionState, Diagnosis, Incident
from failures.queries.node_history import history_of_node
from failures.recovery import decisions, steps
from jobs.actions import jobs as job_actions
from jobs.actions import nodes as node_actions
from jobs.actions import recovery as recovery_actions
from jobs.core.attempt_end import AttemptEnd
from jobs.core.lifecycle import State
from jobs.models import (
    Attempt,
    Cluster,
    ClusterCommand,
    Event,
    Job,
    LatestProgress,
    Node,
    Progress,
    Resolution,
    Sample,
    clock,
)
from scheduling.ledger.reads import periods as ledger_periods
from scheduling.ledger.rules.buckets import Bucket
from tests import make as rows
from tests.failures import make
from tests.failures.make import decide_and_recover_once
from tests.statements import failing_statement

pytestmark = pytest.mark.django_db

PASSED = node_actions.NodeTestResult(passed=True, exit_code=0)
MINUTE, SECOND = timedelta(minutes=1), timedelta(seconds=1)


def training(root, on=("seren-001", "seren-002", "seren-003"), **asked):
    attempt = make.running(root, kind="pretrain", checkpoint_dir="/ckpt/run", on=on, **asked)
    attempt.job.checkpoints.create(attempt=attempt, step=30, path="/ckpt/run/30")
    return attempt


def reports(attempt, until, *paces, tokens=True):
    """Store steps. Each pace is (number of steps, seconds per step); the last step ends at `until`."""
    first = attempt.progress.count()
    took = [seconds for steps, seconds in paces for _ in range(steps)]
    ends = [until - timedelta(seconds=sum(took[number + 1 :])) for number in range(len(took))]
    Progress.objects.bulk_create(
        Progress(attempt=attempt, at=at, step=step, tokens=4096 * step if tokens else None, step_time_s=seconds)
        for step, (at, seconds) in enumerate(zip(ends, took, strict=True), first + 1)
    )
    values = {"at": until, "updated_at": until, "step": first + len(took), "loss": 2.0}
    LatestProgress.objects.update_or_create(attempt=attempt, defaults=values)


def samples(name, now, *, xid=0, hot=60.0, minutes=5, came=1.0):
    """Store one sample every 15 seconds until `now`. The Xid appears in the last `came` minutes."""
    node = Node.objects.get(name=name)
    for number in range(int(minutes * 4)):
        at = now - number * 15 * SECOND
        code = xid if now - at <= came * MINUTE else 0
        Sample.objects.create(node=node, at=at, gpu_temperature_c=[50.0, hot], xid=[0, code], resolution=Resolution.RAW)


def watched(root):
    home = make.cluster(root)
    Cluster.objects.filter(pk=home.pk).update(metrics_address="http://127.0.0.1:1/metrics")
    return home


def hot(name):
    return DetectorFinding(
        symptom=SymptomType.NODE, since=clock.now().timestamp(), severity=Severity.BAD, why="A GPU is at 95 °C."
    )


# --- slow steps


def test_slow_steps_create_a_anomaly_and_open_an_incident(tmp_path):
    now = clock.now()
    attempt = training(tmp_path)
    reports(attempt, now, (100, 2.0), (20, 3.0))

    assert slow_steps_once(now) == 1

    anomaly = Anomaly.objects.get()
    assert (anomaly.attempt, anomaly.symptom, anomaly.node, anomaly.ended_at) == (attempt, "slow", None, None)
    assert "50% longer than expected for their batches" in anomaly.why
    assert abs(anomaly.since - (now - MINUTE)) < 10 * SECOND
    assert (anomaly.incident.root_cause, anomaly.incident.subject) == ("SlowNode", attempt.job.public_id)
    assert Event.objects.filter(type="anomaly.detected", attempt=attempt).count() == 1


@pytest.mark.parametrize("case", ["steady", "one pause", "opted out", "silent"])
def test_steps_without_a_lasting_slowdown_create_no_anomaly(tmp_path, case):
    now = clock.now()
    attempt = training(tmp_path, **({"labels": {"acme-recovery": "off"}} if case == "opted out" else {}))
    slow = {"steady": (20, 2.0), "one pause": (1, 60.0)}.get(case, (20, 3.0))
    reports(attempt, now - 20 * MINUTE if case == "silent" else now, (100, 2.0), slow, *([(9, 2.0)] * (slow[0] == 1)))

    assert slow_steps_once(now) == 0
    assert not Anomaly.objects.exists()


def test_long_slowdown_does_not_become_the_baseline(tmp_path):
    now = clock.now()
    attempt = training(tmp_path)
    reports(attempt, now, (250, 2.0), (20, 3.0))
    slow_steps_once(now)

    for later in (20 * MINUTE, 40 * MINUTE):
        reports(attempt, now + later, (400, 3.0))
        slow_steps_once(now + later)
    anomaly = Anomaly.objects.get()
    assert (anomaly.ended_at, anomaly.seen_at, anomaly.times) == (None, now + 40 * MINUTE, 1.5)

    reports(attempt, now + 42 * MINUTE, (60, 2.0))
    assert slow_steps_once(now + 42 * MINUTE) == 1
    anomaly.refresh_from_db()
    assert anomaly.ended_at is not None and Incident.objects.get().state == "resolved"


def test_slowdown_found_twice_is_reported_once(tmp_path):
    now = clock.now()
    reports(training(tmp_path), now, (100, 2.0), (20, 3.0))

    assert [slow_steps_once(now), slow_steps_once(now)] == [1, 0]
    assert Incident.objects.count() == 1


def test_only_unhealthy_node_is_blamed_and_a_restart_without_it_is_proposed(tmp_path):
    now = clock.now()
    attempt = training(tmp_path)
    warm = Node.objects.get(name="seren-002")
    Anomaly.objects.create(cluster=warm.cluster, node=warm, symptom="node", severity="warn", since=now, why="Hot.")
    reports(attempt, now, (100, 2.0), (20, 3.0))

    slow_steps_once(now)
    decide_and_recover_once(now)

    incident = Incident.objects.get()
    assert (incident.scope, incident.subject) == ("node", "seren-002")
    decision = Decision.objects.get()
    assert (decision.action, decision.mode, decision.drain) == ("restart elsewhere", "propose", ["seren-002"])
    assert (decision.attempt, decision.diagnosis, decision.checkpoint_step) == (attempt, None, 30)
    assert any("seren-002 is the only node of the job with health problems" in one for one in decision.pro)


def slowed(root, now, mode="act"):
    attempt = training(root)
    warm = Node.objects.get(name="seren-002")
    recovery_actions.set_recovery_mode(mode, author=rows.LOOP)
    Anomaly.objects.create(cluster=warm.cluster, node=warm, symptom="node", severity="warn", since=now, why="Hot.")
    reports(attempt, now, (100, 2.0), (20, 3.0))
    slow_steps_once(now)
    decide_and_recover_once(now)
    return attempt


def test_recovery_restarts_a_slow_job_without_the_blamed_node(tmp_path):
    now = clock.now()
    attempt = slowed(tmp_path, now)
    attempt.refresh_from_db()
    assert attempt.stop_state == State.FAILED and ClusterCommand.objects.filter(kind="cancel", attempt=attempt).exists()

    job_actions.finish(attempt, AttemptEnd(state=State.CANCELLED, at=now, signal=15), author=rows.LOOP)
    decide_and_recover_once(now + 2 * steps.CLAIM_LEASE)

    job = attempt.job
    job.refresh_from_db()
    assert (job.state, job.resume["step"]) == (State.PENDING, 30)
    assert Node.objects.get(name="seren-002").drain_requested
    assert Decision.objects.get().state == DecisionState.DONE
    assert not Diagnosis.objects.exists()


def test_slow_attempt_that_completes_is_not_restarted(tmp_path):
    now = clock.now()
    attempt = slowed(tmp_path, now, mode="propose")
    decisions.approve(Decision.objects.get(), author=rows.author(), now=now)
    job_actions.finish(attempt, AttemptEnd(state=State.COMPLETED, at=now, exit_code=0), author=rows.LOOP)

    decide_and_recover_once(now)

    assert Decision.objects.get().outcome == "The attempt ended by itself before."
    assert not Node.objects.get(name="seren-002").drain_requested


def test_failure_of_a_slow_attempt_gets_its_own_diagnosis_and_decision(tmp_path):
    now = clock.now()
    attempt = slowed(tmp_path, now, mode="propose")
    make.end(tmp_path, attempt, make.STORAGE)
    make.diagnose_once(clock.now())

    slow_steps_once(clock.now())
    decide_and_recover_once(clock.now())

    of_slow, of_end = Decision.objects.order_by("pk")
    assert (of_slow.state, of_end.diagnosis.root_cause) == (DecisionState.EXPIRED, "S3StorageError")
    assert Anomaly.objects.slow().get().ended_at == Diagnosis.objects.get().attempt.ended_at


def test_ledger_counts_slow_time_as_slow_and_not_as_productive(tmp_path):
    now = clock.now()
    attempt = training(tmp_path)
    reports(attempt, now, (100, 2.0), (20, 4.0))
    slow_steps_once(now)
    began = now - 2 * timedelta(hours=1)
    attempt.allocations.update(held_at=began)
    Attempt.objects.update(promised_at=began, confirmed_at=began)
    Job.objects.update(submitted_at=began)
    Cluster.objects.update(created_at=began)

    found = ledger_periods.cluster_ledger(attempt.job.cluster, now - 10 * MINUTE, now).total
    slow = found.bucket_us[Bucket.SLOW]

    anomaly = Anomaly.objects.get()
    spell = (anomaly.seen_at - anomaly.since).total_seconds()
    assert slow / 1e6 == pytest.approx(24 * spell / 2, rel=0.01)
    assert {key.cause for key in found.gpu_us if key.bucket == Bucket.SLOW} == {"SlowNode"}


def unpacked(now, lengths):
    """Steps with sequences of these lengths, and the times that such batches take."""
    tokens = squares = 0
    for step, length in enumerate(lengths, 1):
        tokens, squares = tokens + 64 * length, squares + 64.0 * length**2
        seconds = 8e-6 * 64 * length + 6e-10 * 64 * length**2
        yield ProgressRow(step, now + step * SECOND, tokens, seconds, squares)


@pytest.mark.parametrize("squares", [True, False])
def test_long_sequences_are_not_slow_steps_and_need_squared_lengths_to_judge(squares):
    """Batches with the same number of tokens differ only in their squared lengths."""
    mixed = [512, 2048, 1024, 4096, 768, 3072] * 30
    measured = [row if squares else row._replace(sum_sq=None) for row in unpacked(clock.now(), mixed + [8192] * 40)]

    found = slow_steps.evaluate_steps(measured_steps(measured))

    assert (found.finding, found.can_tell) == (None, squares)


def test_squared_lengths_are_ignored_if_some_steps_lack_them():
    reported = list(unpacked(clock.now(), [512, 1024, 2048, 512]))

    steps = measured_steps([reported[0], reported[1]._replace(sum_sq=float("nan")), *reported[2:]])

    assert [step.squares for step in steps] == [0.0, 0.0, 0.0] and steps[0].tokens == 64 * 1024


def test_missing_step_times_are_derived_from_consecutive_reports():
    now = clock.now()
    reported = [ProgressRow(10 * n, now + 20 * n * SECOND, None, None) for n in range(4)] + [
        ProgressRow(30, now, None, None)
    ]

    assert [step.seconds for step in measured_steps(reported)] == [2.0, 2.0, 2.0]


# --- nodes


def test_xid_of_a_broken_gpu_creates_a_anomaly_and_proposes_a_node_test(tmp_path):
    now = clock.now()
    watched(tmp_path)
    samples("seren-001", now, xid=79)
    samples("seren-002", now)

    assert node_health_once(now) == 1
    decide_and_recover_once(now)

    anomaly = Anomaly.objects.get()
    assert (anomaly.node.name, anomaly.severity) == ("seren-001", "bad") and anomaly.why.startswith("Xid 79: ")
    decision = Decision.objects.get()
    assert (decision.action, decision.mode, decision.drain) == ("test nodes", "propose", ["seren-001"])
    assert decision.attempt is None and not Node.objects.filter(drain_requested=True).exists()
    assert Event.objects.filter(type="decision.created", node=anomaly.node).exists()


@pytest.mark.parametrize("case", ["well", "old", "of the program", "a hot moment", "exporter silent"])
def test_node_without_new_faults_gets_no_anomaly(tmp_path, case):
    now = clock.now()
    watched(tmp_path)
    how = {"old": {"xid": 79, "came": 99.0}, "of the program": {"xid": 13}}.get(case, {})
    samples("seren-001", now - 10 * MINUTE if case == "exporter silent" else now, **how)
    if case == "a hot moment":
        Sample.objects.filter(at=now).update(gpu_temperature_c=[99.0, 99.0])

    assert node_health_once(now) == 0
    assert not Anomaly.objects.exists()


def test_missing_telemetry_is_a_warning_without_a_decision(tmp_path):
    now = clock.now()
    watched(tmp_path)
    samples("seren-001", now - 10 * MINUTE)
    samples("seren-002", now)

    assert node_health_once(now) == 1
    assert decide_and_recover_once(now) == 0

    anomaly = Anomaly.objects.get()
    assert (anomaly.node.name, anomaly.severity, anomaly.incident) == ("seren-001", "warn", None)
    assert anomaly.why.startswith("No telemetry for ")


@pytest.mark.parametrize("case", ["asleep", "just woken up"])
def test_node_that_sleeps_is_not_missed(tmp_path, case):
    now = clock.now()
    watched(tmp_path)
    samples("seren-001", now - 5 * MINUTE)
    samples("seren-002", now)
    node = Node.objects.get(name="seren-001")
    if case == "asleep":
        Node.objects.filter(pk=node.pk).update(flags=["POWERED_DOWN"])
    else:
        moved = {"type": "node.state_changed", "from_state": "UP+POWERING_UP", "to_state": "UP"}
        Event.objects.create(node=node, cluster=node.cluster, by="sync", **moved)

    node_health_once(now)

    assert not Anomaly.objects.exists()


def test_proposal_expires_when_the_node_is_healthy_again(tmp_path):
    now = clock.now()
    watched(tmp_path)
    samples("seren-001", now, hot=97.0)
    node_health_once(now)
    decide_and_recover_once(now)
    Sample.objects.update(gpu_temperature_c=[50.0, 60.0])

    assert node_health_once(now) == 1

    assert Decision.objects.get().state == DecisionState.EXPIRED
    assert (Incident.objects.get().state, Anomaly.objects.get().ended_at) == ("resolved", now)
    assert Event.objects.filter(type__in=("anomaly.ended", "decision.expired", "incident.resolved")).count() == 3


def test_busy_node_is_drained_now_and_tested_when_it_is_empty(tmp_path):
    recovery_actions.set_recovery_mode("act", author=rows.LOOP)
    now = clock.now()
    home = watched(tmp_path)
    attempt = make.running(tmp_path, on=("seren-001",))
    anomaly_actions.record_finding(hot("seren-001"), home, now, node=Node.objects.get(name="seren-001"))

    decide_and_recover_once(now)
    decision = Decision.objects.get()
    assert decision.outcome == "Waiting for 1 job to end before the node test."
    assert Node.objects.get(name="seren-001").drain_requested and attempt.stop_state == ""

    job_actions.finish(attempt, AttemptEnd(state=State.COMPLETED, at=now, exit_code=0), author=rows.LOOP)
    decide_and_recover_once(now + 2 * MINUTE)
    assert decision.node_test.nodes == ["seren-001"] and len(decision.node_test.partners) == 1


def test_drained_node_gets_no_decision(tmp_path):
    now = clock.now()
    home, node = watched(tmp_path), Node.objects.get(name="seren-001")
    node_actions.drain(node, author=rows.author(), why="Its fan is changed.", now=now)
    anomaly_actions.record_finding(hot("seren-001"), home, now, node=node)

    assert decide_and_recover_once(now) == 0


def test_undo_resumes_the_node_and_recovery_does_not_drain_it_again(tmp_path):
    recovery_actions.set_recovery_mode("act", author=rows.LOOP)
    now = clock.now()
    home, node = watched(tmp_path), Node.objects.get(name="seren-001")
    anomaly_actions.record_finding(hot("seren-001"), home, now, node=node)
    decide_and_recover_once(now)

    steps.undo(Decision.objects.get(), author=rows.author(), now=now, why="It is the sensor.")

    node.refresh_from_db()
    assert not node.drain_requested
    assert decide_and_recover_once(now + 2 * MINUTE) == 0


def test_failure_on_the_node_joins_the_incident_of_its_anomaly(tmp_path):
    now = clock.now()
    home = watched(tmp_path)
    anomaly_actions.record_finding(hot("seren-001"), home, now, node=Node.objects.get(name="seren-001"))

    found = make.diagnosed(tmp_path, make.XID, on=("seren-001",))

    incident = Incident.objects.get()
    assert found.incident == incident and incident.lead == found and incident.attempts == 1


def test_node_with_repeated_failures_is_reported_as_a_lemon(tmp_path):
    now = clock.now()
    watched(tmp_path)
    for _ in range(5):
        make.diagnosed(tmp_path, make.XID, on=("seren-001",))
    samples("seren-001", clock.now())

    assert {one.what for one in history_of_node(Node.objects.get(name="seren-001"), now)} == {"job_failed_here_alone"}
    assert node_health_once(clock.now()) == 1
    assert "lemon score 5.0" in Anomaly.objects.get().why


def test_error_on_one_node_does_not_affect_the_others(tmp_path):
    now = clock.now()
    watched(tmp_path)
    samples("seren-001", now, xid=79)
    samples("seren-002", now, xid=79)
    bad = Node.objects.get(name="seren-001")

    with failing_statement('INSERT INTO "failures_anomaly"', bad.pk, error=DatabaseError("no")):
        assert node_health_once(now) == 1

    assert Anomaly.objects.get().node.name == "seren-002"


def test_signs_do_not_end_while_telemetry_is_missing(tmp_path):
    now = clock.now()
    watched(tmp_path)
    samples("seren-001", now, xid=79)
    node_health_once(now)
    decide_and_recover_once(now)

    assert node_health_once(now + 60 * MINUTE) == 0

    assert Anomaly.objects.get().ended_at is None
    assert (Incident.objects.get().state, Decision.objects.get().state) == ("open", DecisionState.PROPOSED)


def lost(tmp_path):
    """An anomaly of an Xid that occurred long ago and that the driver still reports."""
    now = clock.now()
    watched(tmp_path)
    samples("seren-001", now - 15 * MINUTE, xid=79)
    node_health_once(now - 15 * MINUTE)
    samples("seren-001", now, xid=79, minutes=12, came=99.0)
    return now


def test_sign_of_a_lost_gpu_lasts_while_the_driver_reports_its_code(tmp_path):
    now = lost(tmp_path)

    assert node_health_once(now) == 0
    assert Anomaly.objects.get().ended_at is None

    Sample.objects.update(xid=[0, 0])
    assert node_health_once(now) == 1
    assert Anomaly.objects.get().ended_at == now


def test_sign_of_a_lost_gpu_lasts_while_its_node_sends_no_telemetry(tmp_path):
    now = lost(tmp_path)
    samples("seren-002", now + 15 * MINUTE)

    node_health_once(now + 15 * MINUTE)

    anomaly = Anomaly.objects.get()
    assert anomaly.severity == "bad" and "Xid 79: " in anomaly.why and "No telemetry for " in anomaly.why


@pytest.mark.parametrize("case", ["resumed", "tested", "incident resolved"])
def test_clearing_the_node_ends_its_anomaly_for_good(tmp_path, case):
    now = lost(tmp_path)
    node = Node.objects.get(name="seren-001")
    node_actions.drain(node, author=rows.author(), why="Its GPU is changed.", now=now)
    if case == "resumed":
        node_actions.resume(node, author=rows.author(), now=now)
    elif case == "tested":
        node_actions.record_node_test(
            node, node_actions.start_node_test(node, author=rows.LOOP), PASSED, author=rows.LOOP
        )
    else:
        resolve(Incident.objects.get(), author=rows.author(), now=now, why="It is changed.")

    assert node_health_once(now) == 1
    assert Anomaly.objects.get().ended_at == now
    assert node_health_once(now) == 0


@pytest.mark.parametrize(
    ("case", "why"), [("unwatched", "no longer has telemetry"), ("down", "reports the node as down")]
)
def test_sign_ends_when_its_node_is_no_longer_monitored(tmp_path, case, why):
    now = clock.now()
    watched(tmp_path)
    samples("seren-001", now, xid=79)
    node_health_once(now)
    if case == "down":
        Node.objects.filter(name="seren-001").update(state="DOWN")
    else:
        Cluster.objects.update(metrics_address="")

    assert node_health_once(now) == 1

    assert Anomaly.objects.get().ended_at == now
    assert why in Event.objects.get(type="anomaly.ended").why


def test_changed_numbers_alone_send_no_update(tmp_path, django_capture_on_commit_callbacks):
    now = clock.now()
    home, node = watched(tmp_path), Node.objects.get(name="seren-001")
    anomaly_actions.record_finding(hot("seren-001"), home, now, node=node)

    hotter = replace(hot("seren-001"), why="A GPU is at 101 °C.")
    with django_capture_on_commit_callbacks() as updates:
        assert anomaly_actions.record_finding(hotter, home, now + MINUTE, node=node) is None
    assert (updates, Anomaly.objects.get().seen_at) == ([], now + MINUTE)

    with django_capture_on_commit_callbacks() as updates:
        assert anomaly_actions.record_finding(replace(hotter, severity=Severity.WARN), home, now + MINUTE, node=node)
    assert updates


def test_node_history_holds_the_newest_entries_of_that_node(tmp_path):
    home, now = watched(tmp_path), clock.now()
    mine, other = (Node.objects.get(name=name) for name in ("seren-001", "seren-002"))
    for node, days in ((mine, 3), (mine, 1), (mine, 2), (other, 0)):
        at = now - timedelta(days=days)
        Anomaly.objects.create(
            cluster=home, node=node, symptom="node", severity="bad", since=at, ended_at=at, why="Xid 79: x"
        )

    assert [one.at for one in history_of_node(mine, now, most=1)] == [(now - timedelta(days=1)).timestamp()]


# --- pages


def test_pages_show_anomaly_and_decision_without_a_failed_job(tmp_path):
    now = clock.now()
    home, node = watched(tmp_path), Node.objects.get(name="seren-001")
    anomaly_actions.record_finding(hot("seren-001"), home, now, node=node)
    decide_and_recover_once(now)
    browser, incident = rows.browser("olga", is_superuser=True), Incident.objects.get()

    page = browser.get(f"/failures/{incident.pk}/").content.decode()
    assert "A GPU is at 95 °C." in page and "No attempt has failed yet" in page
    assert "Test nodes without seren-001" in page
    assert "A GPU is at 95 °C." in browser.get("/nodes/seren/seren-001/").content.decode()
    assert "Test nodes without seren-001" in browser.get("/").content.decode()
    listed = browser.get(f"/api/v1/incidents/{incident.pk}/decisions/").json()["results"]
    assert [(one["node"], one["job"]) for one in listed] == [("seren-001", None)]


def test_slow_job_and_its_incident_are_visible_to_its_team_only(tmp_path):
    now = clock.now()
    attempt = training(tmp_path)
    reports(attempt, now, (100, 2.0), (20, 3.0))
    slow_steps_once(now)
    rows.team("speech", ben="researcher")
    ada, ben = rows.browser("ada"), rows.browser("ben")

    number = Incident.objects.get().pk
    assert "longer than expected for their batches" in ada.get(f"/jobs/{attempt.job.public_id}/").content.decode()
    assert ada.get(f"/failures/{number}/").status_code == 200
    assert ben.get(f"/failures/{number}/").status_code == 404


# --- identifying the node by the compute times of its ranks


def ranked(attempt, now, *, slow=(), groups=(), times=6):
    """Store times of eight ranks on each of three nodes; the slow ones compute 50% longer."""
    nodes = [name for name in ("seren-001", "seren-002", "seren-003") for _ in range(8)]
    seconds = [1.5 if number in slow else 1.0 for number in range(24)]
    for _ in range(times):
        attempt.rank_times.create(at=now, seconds=seconds, nodes=nodes, groups=list(groups))


def varied(attempt, now):
    """Store steps with batches of unreported length, which cannot be judged."""
    reports(attempt, now, *[(1, seconds) for seconds in (2.0, 3.1, 2.4, 3.8)] * 30, tokens=False)


def test_slow_rank_is_found_even_if_the_steps_cannot_be_judged(tmp_path):
    now = clock.now()
    attempt = training(tmp_path)
    varied(attempt, now)
    ranked(attempt, now, slow=range(8, 16))

    slow_steps_once(now)

    anomaly = Anomaly.objects.get()
    assert (anomaly.symptom, anomaly.node.name) == ("slow", "seren-002") and "computes 50% longer" in anomaly.why


def test_equal_ranks_create_no_anomaly_if_the_steps_cannot_be_judged(tmp_path):
    now = clock.now()
    attempt = training(tmp_path)
    varied(attempt, now)
    ranked(attempt, now, slow=())

    slow_steps_once(now)

    assert not Anomaly.objects.exists()


def test_sign_ends_when_the_slow_rank_has_recovered(tmp_path):
    now = clock.now()
    attempt = training(tmp_path)
    varied(attempt, now)
    ranked(attempt, now, slow=range(8, 16))
    slow_steps_once(now)
    ranked(attempt, now, slow=(), times=8)

    slow_steps_once(now + MINUTE)

    assert Anomaly.objects.get().ended_at is not None


@pytest.mark.parametrize(
    ("slow", "text"),
    [(range(8, 16), "Node seren-002 computes 50% longer"), ([9], "Rank 9 computes 50% longer")],
)
def test_compute_times_of_the_ranks_identify_the_node(tmp_path, slow, text):
    now = clock.now()
    attempt = training(tmp_path)
    reports(attempt, now, (100, 2.0), (20, 3.0))
    ranked(attempt, now, slow=slow)

    slow_steps_once(now)

    anomaly = Anomaly.objects.get()
    assert anomaly.node.name == "seren-002" and text in anomaly.why


@pytest.mark.parametrize("case", ["nobody", "another stage by design", "too few", "from before"])
def test_ambiguous_compute_times_blame_no_node(tmp_path, case):
    now = clock.now()
    attempt = training(tmp_path)
    reports(attempt, now, (100, 2.0), (20, 3.0))
    stages = ["last" if 8 <= number < 16 else "others" for number in range(24)] if "stage" in case else ()
    at = now - 30 * MINUTE if case == "from before" else now
    slow = () if case == "nobody" else range(8, 16)
    ranked(attempt, at, slow=slow, groups=stages, times=2 if case == "too few" else 6)

    slow_steps_once(now)

    assert Anomaly.objects.get().node is None


# --- other counters of a node


def counts(name, now, *looks, every=15):
    """Store one sample with counters for each look, the last one at `now`."""
    node = Node.objects.get(name=name)
    for number, counted in enumerate(reversed(looks)):
        at = now - number * every * SECOND
        Sample.objects.create(
            node=node, at=at, gpu_temperature_c=[60.0], xid=[0], resolution=Resolution.RAW, counted=counted
        )


def open_anomaly(now):
    node_health_once(now)
    anomaly = Anomaly.objects.filter(ended_at=None).first()
    return (anomaly.severity, anomaly.why) if anomaly else None


DBE, UNMEASURED, NIC = {"ecc_dbe": [1.0]}, {"unmeasured": True}, {"nics_down": ["mlx5_0:1"]}


@pytest.mark.parametrize(
    ("looks", "expected"),
    [
        ([{}, {}, DBE, DBE], ("bad", "Uncorrectable memory errors: 1.")),
        ([{}, {"remap_failed": [1.0]}], ("bad", "A row of GPU memory could not be remapped.")),
        ([{}, {"rows_pending": [1.0]}], ("warn", "GPU memory rows to be remapped at the next reset: 1.")),
        (
            [{}, {"nvlink_crc": [60.0]}, {"nvlink_crc": [60.0], "nvlink_replay": [55.0]}],
            ("warn", "NVLink errors: 115."),
        ),
        ([{}, {"ecc_sbe": [5000.0]}], ("warn", "Corrected memory errors: 5000.")),
        ([{}, NIC, NIC, NIC, NIC], ("bad", "Network ports down: mlx5_0:1.")),
        ([{}] * 6 + [{"slowed": [64.0]}] * 4, ("warn", "GPUs are throttled by heat or power 40% of the time.")),
    ],
)
def test_node_counters_create_anomalies_with_their_severity(tmp_path, looks, expected):
    now = clock.now()
    watched(tmp_path)
    counts("seren-001", now, *looks)

    assert open_anomaly(now) == expected


@pytest.mark.parametrize(
    "looks",
    [
        [DBE] * 10,  # present before the first look
        [{"ecc_dbe": [3.0]}, {}, {}],  # the driver was reloaded
        [{}, UNMEASURED, DBE, DBE],  # unknown when it occurred
        [{"nvlink_crc": [900.0]}, {"nvlink_crc": [950.0]}],
        [{"ecc_sbe": [10.0]}, {"ecc_sbe": [200.0]}],
        [NIC, {}, NIC, NIC, NIC],  # the link was retrained
        [{}] * 9 + [{"slowed": [64.0]}],
        [{"slowed": [64.0]}, UNMEASURED, UNMEASURED],
    ],
)
def test_old_brief_or_unmeasured_counters_create_no_anomaly(tmp_path, looks):
    now = clock.now()
    watched(tmp_path)
    counts("seren-001", now, *looks)

    assert open_anomaly(now) is None


def test_memory_error_anomaly_lasts_until_the_node_passes_a_test(tmp_path):
    now = clock.now()
    watched(tmp_path)
    counts("seren-001", now, {}, {}, DBE)
    assert open_anomaly(now)[0] == "bad"

    later = now + 30 * MINUTE
    counts("seren-001", later, DBE, DBE, DBE)
    assert open_anomaly(later) == ("bad", "Uncorrectable memory errors: 1.")

    node = Node.objects.get(name="seren-001")
    node_actions.drain(node, author=rows.author(), why="Its memory is tested.", now=now)
    node_actions.record_node_test(node, node_actions.start_node_test(node, author=rows.LOOP), PASSED, author=rows.LOOP)
    assert open_anomaly(later) is None
