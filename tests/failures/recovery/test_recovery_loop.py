"""The recovery loop: eligible failures, steps, user actions, and safety against kills and second runs."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import DatabaseError

from acmeweb.common.errors import StateConflict
from failures.loops.diagnose import diagnose_once
from failures.models import Anomaly, Decision, DecisionState, Diagnosis, ManualOverride, RecoveryStep
from failures.recovery import decisions, reads, steps
from failures.recovery.reads import attempt_policy, diagnosis_facts
from failures.recovery.rules.remedies import RecoveryAction
from jobs.actions import jobs as job_actions
from jobs.actions import nodes as node_actions
from jobs.actions import recovery as recovery_actions
from jobs.core.checkpoint_interval import resume_variables
from jobs.core.lifecycle import Flag, State
from jobs.models import Cluster, ClusterCommand, DrainMode, Event, Job, Node, RecoveryMode, Resolution, Sample, clock
from scheduling.actions.node_tests import advance_node_test, record_test_job_result
from scheduling.loops.time_limits import enforce_time_limits_once
from tests import make as rows
from tests.failures import make
from tests.failures.make import decide_and_recover_once
from tests.statements import before_transaction, failing_statement

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)
NAMED_XID = "Nov  2 03:00:00 seren-001 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, GPU has fallen off the bus.\n"


def mode(word: str, **whom) -> None:
    recovery_actions.set_recovery_mode(word, author=rows.LOOP, **whom)


def failed(root, text=make.XID, *, checkpoints=(100, 200), **how):
    """A failed training attempt on two nodes; its log names the first one."""
    asked = {"kind": "pretrain", "checkpoint_dir": "/ckpt/run", "on": ("seren-001", "seren-002"), **how}
    ends = {name: asked.pop(name) for name in make.ENDS if name in asked}
    attempt = make.running(root, **asked)
    for step in checkpoints:
        attempt.job.checkpoints.create(attempt=attempt, step=step, path=f"/ckpt/run/{step}")
    make.end(root, attempt, text, **ends)
    attempt.job.refresh_from_db()
    return attempt


def diagnosed(root, text=make.XID, **how):
    attempt = failed(root, text, **how)
    diagnose_once(clock.now())
    attempt.job.refresh_from_db()
    return attempt


def decided(root, text=make.XID, **how):
    attempt = diagnosed(root, text, **how)
    decide_and_recover_once(clock.now())
    attempt.job.refresh_from_db()
    return Decision.objects.get(attempt=attempt)


def sick_node(root, **how):
    """A failed attempt with a node that the cluster reports as down."""
    attempt = make.running(root, kind="pretrain", checkpoint_dir="/ckpt/run", on=("seren-001", "seren-002"), **how)
    attempt.job.checkpoints.create(attempt=attempt, step=200, path="/ckpt/run/200")
    make.dies("seren-001")
    make.end(root, attempt, "step 250\n", state="NODE_FAIL")
    diagnose_once(clock.now())
    return attempt


def job_of(attempt) -> Job:
    return Job.objects.get(pk=attempt.job_id)


# --- what is read


def test_run_time_is_computed_only_for_jobs_without_a_checkpoint(tmp_path):
    without = diagnosed(tmp_path, checkpoints=(), ran=timedelta(minutes=10))
    with_one = diagnosed(tmp_path, checkpoints=(100,))

    without.refresh_from_db()
    assert diagnosis_facts(make.of(without), clock.now()).ran == without.ended_at - without.confirmed_at
    assert diagnosis_facts(make.of(with_one), clock.now()).ran is None


# --- who waits for recovery


@pytest.mark.parametrize(
    ("asked", "waits"),
    [
        ({"kind": "pretrain"}, True),
        ({"kind": "debug", "checkpoint_dir": ""}, False),
        ({"kind": "debug", "checkpoint_dir": "", "labels": {"acme-recovery": "on"}}, True),
        ({"kind": "pretrain", "labels": {"acme-recovery": "off"}}, False),
        ({"kind": "pretrain", "requeue_limit": 0}, False),
        ({"kind": "pretrain", "state": "TIMEOUT"}, False),
    ],
)
def test_training_waits_for_recovery_unless_it_opted_out(tmp_path, asked, waits):
    job = failed(tmp_path, **asked).job

    assert (job.state == State.PENDING and Flag.RECOVERING in job.flags) is waits
    assert (job.recover_by is not None) is waits
    if not waits:
        assert job.is_final


def test_retry_rule_applies_if_the_team_mode_is_observe(tmp_path):
    mode("act")
    rows.team("team-of-ada", ada="researcher")
    mode("observe", team_id=rows.team("team-of-ada").pk)

    assert failed(tmp_path).job.state == State.FAILED


def test_requeued_job_is_delayed_only_if_recovery_acts(tmp_path):
    proposed = failed(tmp_path, state="NODE_FAIL").job
    mode("act")
    acted = failed(tmp_path, state="NODE_FAIL").job

    assert proposed.flags == [Flag.REQUEUED]
    assert acted.flags == [Flag.RECOVERING]


def test_job_waiting_for_recovery_is_not_started_until_released(tmp_path):
    job = failed(tmp_path).job
    assert (job.hold, job.reason) == ("user", "Recovering")

    job_actions.release(job, author=rows.author())

    assert (job.hold, job.flags, job.recover_by) == ("", [], None)


def test_job_without_recovery_keeps_the_state_in_which_it_ended(tmp_path):
    attempt = failed(tmp_path, state="OUT_OF_MEMORY")
    enforce_time_limits_once(attempt.job.cluster, clock.now())
    assert job_of(attempt).state == State.PENDING

    enforce_time_limits_once(attempt.job.cluster, clock.now() + HOUR)

    job = job_of(attempt)
    assert (job.state, job.hold, job.recover_by, job.ended_at) == ("OUT_OF_MEMORY", "", None, attempt.ended_at)


def test_undecided_platform_failure_is_requeued_and_counts_as_a_requeue(tmp_path):
    mode("act")
    attempt = failed(tmp_path, state="NODE_FAIL")

    enforce_time_limits_once(attempt.job.cluster, clock.now() + HOUR)

    job = job_of(attempt)
    assert (job.state, job.flags, job.hold, job.requeues) == ("PENDING", ["REQUEUED"], "", 1)


# --- the happy path


def test_failed_node_is_drained_and_the_job_resumes_from_its_checkpoint(tmp_path):
    mode("act")
    attempt = sick_node(tmp_path)

    assert decide_and_recover_once(clock.now()) > 0

    decision = Decision.objects.get()
    assert (decision.action, decision.mode, decision.state) == ("restart elsewhere", "act", "done")
    assert (decision.drain, decision.checkpoint_step) == (["seren-001"], 200)
    node, job = Node.objects.get(name="seren-001"), job_of(attempt)
    assert node.drain_requested and f"incident {decision.incident_id}" in node.reason
    assert (job.state, job.hold, job.flags, job.requeues) == ("PENDING", "", ["REQUEUED"], 0)
    assert job.resume == {"path": "/ckpt/run/200", "step": 200}
    assert Event.objects.filter(job=job, type="decision.done").count() == 1
    assert ClusterCommand.objects.filter(kind="drain", node=node).count() == 1


def test_node_that_is_already_drained_keeps_its_reason_and_mode(tmp_path):
    mode("act")
    attempt = sick_node(tmp_path)
    node = Node.objects.get(name="seren-001")
    node_actions.drain(node, author=rows.author(), why="did not wake up", now=clock.now(), mode=DrainMode.NOW)

    decide_and_recover_once(clock.now())

    node.refresh_from_db()
    assert (node.reason, node.drain_mode) == ("did not wake up", DrainMode.NOW)
    assert (Decision.objects.get().state, job_of(attempt).state) == ("done", "PENDING")


def test_node_that_only_a_log_accuses_is_tested_and_reopened_if_it_passes(tmp_path):
    mode("act")
    decision = decided(tmp_path, NAMED_XID)
    test, node = decision.node_test, Node.objects.get(name="seren-001")

    for pair_test in test.pair_tests.all():
        record_test_job_result(pair_test, True, "", clock.now())
    advance_node_test(test, clock.now())

    reopened = Node.objects.get(name="seren-001")
    assert (decision.drain, decision.test, test.nodes) == ([], ["seren-001"], ["seren-001"])
    assert "Only the job's log names a hardware fault; the node is tested before it is drained." in decision.con
    assert decisions.decision_summary(decision).startswith("Restart elsewhere from step 200 while seren-001 is tested.")
    assert not decision.steps.filter(kind=RecoveryStep.Kind.DRAINED).exists()
    assert (node.drain_requested, reopened.drain_requested) == (True, False)
    assert job_of(decision.attempt).state == "PENDING"


@pytest.mark.parametrize("confirmed_by", ["telemetry", "anomaly", "cluster"])
def test_node_that_a_log_and_others_accuse_is_drained(tmp_path, confirmed_by):
    mode("act")
    attempt = make.running(tmp_path, kind="pretrain", on=("seren-001", "seren-002"))
    node = Node.objects.get(name="seren-001")
    if confirmed_by == "telemetry":
        for age, xid in ((20, 0), (5, 79)):
            at = clock.now() - timedelta(seconds=age)
            Sample.objects.create(node=node, at=at, gpu_temperature_c=[50.0], xid=[xid], resolution=Resolution.RAW)
    elif confirmed_by == "anomaly":
        values = {"symptom": "node", "severity": "bad", "since": clock.now() - HOUR, "why": "Xid 79: off the bus."}
        Anomaly.objects.create(cluster=node.cluster, node=node, **values)
    else:
        make.dies("seren-001")
    make.end(tmp_path, attempt, NAMED_XID)
    diagnose_once(clock.now())

    decide_and_recover_once(clock.now())

    decision = Decision.objects.get(attempt=attempt)
    source = "The cluster reports seren-001 as DOWN" if confirmed_by == "cluster" else "Telemetry of seren-001: Xid 79"
    assert decision.drain == ["seren-001"] and any(sentence.startswith(source) for sentence in decision.pro)


def test_decision_about_a_node_waits_for_the_telemetry_after_the_failure(tmp_path):
    Cluster.objects.filter(pk=make.cluster(tmp_path).pk).update(metrics_address="http://127.0.0.1:1/metrics")
    attempt = diagnosed(tmp_path, NAMED_XID)
    ended = attempt.ended_at

    decide_and_recover_once(ended + timedelta(seconds=2))
    waiting = not Decision.objects.exists()
    node = Node.objects.get(name="seren-001")
    Sample.objects.create(node=node, at=ended + timedelta(seconds=3), xid=[0], resolution=Resolution.RAW)
    decide_and_recover_once(ended + timedelta(seconds=4))

    assert waiting and Decision.objects.get().attempt == attempt


def test_decision_about_a_node_waits_for_telemetry_only_for_a_limited_time(tmp_path):
    Cluster.objects.filter(pk=make.cluster(tmp_path).pk).update(metrics_address="http://127.0.0.1:1/metrics")
    attempt = diagnosed(tmp_path, NAMED_XID)

    decide_and_recover_once(attempt.ended_at + timedelta(seconds=30))

    assert Decision.objects.get().attempt == attempt


def test_second_turn_does_not_repeat_a_step(tmp_path):
    mode("act")
    sick_node(tmp_path)

    for _ in range(3):
        decide_and_recover_once(clock.now() + timedelta(minutes=5))

    assert Decision.objects.count() == 1
    assert sorted(RecoveryStep.objects.values_list("kind", flat=True)) == ["drained", "restarted", "tested"]
    assert Event.objects.filter(type="job.recovered").count() == 1


def test_program_error_ends_the_job_at_once_in_every_mode(tmp_path):
    for word in ("propose", "act"):
        mode(word)
        decision = decided(tmp_path, make.TYPO)
        job = job_of(decision.attempt)
        assert decision.action == "stop"
        assert (job.state, job.exit_code, job.hold) == (State.FAILED, 1, "")
        assert "The same call fails again" in job.why


def test_outage_delays_the_restart(tmp_path):
    mode("act")
    decision = decided(tmp_path, make.STORAGE)

    job = job_of(decision.attempt)
    assert (decision.action, decision.state) == ("wait", "done")
    assert (job.begin_at, job.hold) == (decision.not_before, "")


def test_oldest_failure_is_first_and_an_error_does_not_affect_others(tmp_path, caplog):
    mode("act")
    broken, healthy = diagnosed(tmp_path), diagnosed(tmp_path, make.STORAGE)
    Diagnosis.objects.filter(attempt=broken).update(category="nonsense")

    decide_and_recover_once(clock.now())

    assert [one.attempt_id for one in Decision.objects.all()] == [healthy.pk]
    assert "no recovery decision could be made" in caplog.text


def test_many_errors_do_not_keep_later_failures_from_being_decided(tmp_path):
    for _ in range(3):
        Diagnosis.objects.filter(attempt=diagnosed(tmp_path)).update(category="nonsense")
    healthy = diagnosed(tmp_path, make.STORAGE)

    decide_and_recover_once(clock.now(), most=2)

    assert [one.attempt_id for one in Decision.objects.all()] == [healthy.pk]


def test_cluster_not_controlled_by_acme_gets_no_decisions(tmp_path):
    diagnosed(tmp_path)
    rows.cluster(mode="observe")

    assert decide_and_recover_once(clock.now()) == 0


def test_failure_reported_hours_late_is_not_acted_on(tmp_path):
    mode("act")
    diagnosed(tmp_path)

    decide_and_recover_once(clock.now() + 2 * HOUR)

    assert not Decision.objects.exists()


# --- killed anywhere


@pytest.mark.parametrize("at", ["decision.created", "node.drained", "job.recovered", "decision.done"])
def test_next_turn_completes_the_steps_once_after_a_kill(tmp_path, at):
    mode("act")
    sick_node(tmp_path)

    class Killed(BaseException):
        pass

    with pytest.raises(Killed), failing_statement('INSERT INTO "jobs_event"', at, error=Killed()):
        decide_and_recover_once(clock.now())
    decide_and_recover_once(clock.now() + 2 * steps.CLAIM_LEASE)

    assert Decision.objects.get().state == DecisionState.DONE
    assert sorted(RecoveryStep.objects.values_list("kind", flat=True)) == ["drained", "restarted", "tested"]
    assert Event.objects.filter(type__in=("node.drained", "job.recovered", "decision.done")).count() == 3


def test_decision_that_cannot_be_carried_out_fails_and_releases_the_job(tmp_path):
    mode("act")
    attempt = diagnosed(tmp_path, make.STORAGE)
    now = clock.now()

    with failing_statement('INSERT INTO "failures_recoverystep"', "restarted", error=DatabaseError("disk full")):
        for minute in range(0, 20, 2):
            decide_and_recover_once(now + timedelta(minutes=minute))

    decision = Decision.objects.get()
    assert (decision.state, decision.outcome) == ("failed", "DatabaseError: disk full")
    enforce_time_limits_once(attempt.job.cluster, now + HOUR)
    assert job_of(attempt).state == State.FAILED


# --- concurrent changes


def test_job_cancelled_meanwhile_stays_cancelled(tmp_path):
    mode("act")
    attempt = sick_node(tmp_path)
    job_actions.cancel(job_of(attempt), author=rows.author())

    decide_and_recover_once(clock.now())

    assert job_of(attempt).state == State.CANCELLED
    assert "no longer waits for recovery" in Decision.objects.get().outcome


def test_old_attempt_is_not_recovered(tmp_path):
    attempt = failed(tmp_path)
    job = attempt.job
    job_actions.release(job, author=rows.author())
    rows.running(job)

    with pytest.raises(StateConflict, match="no longer waits for recovery"):
        recovery_actions.restart(attempt, author=rows.LOOP, why="late")


# --- taken back while it is carried out


def undo() -> None:
    steps.undo(Decision.objects.get(), author=rows.author("ben"), now=clock.now(), why="no")


def overtake() -> None:
    """Claim the decision for another worker, after the claim of the first one expired."""
    steps.claim(Decision.objects.get(), clock.now() + 2 * steps.CLAIM_LEASE)


# The first transaction of the turn records the decision; each of the others is a step
@pytest.mark.parametrize("before", [2, 3, 4], ids=["drain", "test", "restart"])
def test_undo_prevents_all_remaining_steps(tmp_path, before):
    mode("act")
    attempt = sick_node(tmp_path)

    with before_transaction(before, act=undo):
        assert decide_and_recover_once(clock.now()) == 1  # it was decided

    decision, node = Decision.objects.get(), Node.objects.get(name="seren-001")
    assert (decision.state, decision.errors, node.drain_requested) == (DecisionState.UNDONE, 0, False)
    assert not decision.steps.filter(kind=RecoveryStep.Kind.RESTARTED).exists()
    job = job_of(attempt)
    assert (job.state, job.hold, job.flags, job.resume) == (State.PENDING, "user", [Flag.REQUEUE_HOLD], {})
    assert decision.steps.get(kind=RecoveryStep.Kind.UNDONE).text.endswith(f"{job} is held.")
    assert decide_and_recover_once(clock.now() + HOUR / 2) == 0


def test_worker_with_an_expired_claim_makes_no_step(tmp_path):
    mode("act")
    sick_node(tmp_path)

    with before_transaction(2, act=overtake):
        decide_and_recover_once(clock.now())

    assert not RecoveryStep.objects.exists()
    assert not Node.objects.filter(drain_requested=True).exists()


# --- what people say


def proposal(root):
    """A restart without any node."""
    decision = decided(root, "step 100\n")
    assert (decision.state, decision.mode) == ("proposed", "propose")
    return decision


def test_proposal_is_carried_out_after_approval(tmp_path):
    decision = proposal(tmp_path)
    assert "Approval needed" in job_of(decision.attempt).why

    decisions.approve(decision, author=rows.author(), now=clock.now(), why="go")
    decide_and_recover_once(clock.now())

    decision.refresh_from_db()
    assert (decision.state, decision.answered_by, decision.answer_reason) == ("done", "ada", "go")
    assert job_of(decision.attempt).flags == ["REQUEUED"]


def test_restart_after_approval_is_not_proposed_again_if_the_job_dies_the_same_way(tmp_path):
    first = decided(tmp_path, "starting\n", checkpoints=(), ran=timedelta(seconds=4))
    assert (first.action, first.state) == (RecoveryAction.RESTART, "proposed")
    decisions.approve(first, author=rows.author(), now=clock.now())
    decide_and_recover_once(clock.now())

    second = make.running(tmp_path, job=job_of(first.attempt), ran=timedelta(seconds=4))
    make.end(tmp_path, second, "starting\n")
    diagnose_once(clock.now())
    decide_and_recover_once(clock.now())

    assert Decision.objects.get(attempt=second).action == RecoveryAction.STOP
    assert job_of(second).state == State.FAILED


def test_declined_proposal_ends_the_job_and_cannot_be_approved(tmp_path):
    decision = proposal(tmp_path)

    decisions.decline(decision, author=rows.author(), now=clock.now(), why="I look myself")

    job = job_of(decision.attempt)
    assert job.state == State.FAILED and "ada declined its recovery: I look myself" in job.why
    assert job.started_at == decision.attempt.confirmed_at  # so that lists can show its run time
    with pytest.raises(StateConflict, match="already declined"):
        decisions.approve(decision, author=rows.author(), now=clock.now())


def test_unanswered_proposal_expires_and_is_not_carried_out(tmp_path):
    decision = proposal(tmp_path)
    later = clock.now() + 2 * HOUR

    with pytest.raises(StateConflict, match="the proposal expired at"):
        decisions.approve(decision, author=rows.author(), now=later)
    decide_and_recover_once(later)
    enforce_time_limits_once(decision.cluster, later)

    decision.refresh_from_db()
    assert decision.state == DecisionState.EXPIRED
    assert job_of(decision.attempt).state == State.FAILED


def test_undo_resumes_the_node_holds_the_job_and_excludes_both_from_recovery(tmp_path):
    mode("act")
    attempt = sick_node(tmp_path)
    decide_and_recover_once(clock.now())
    decision = Decision.objects.get()

    steps.undo(decision, author=rows.author("ben"), now=clock.now(), why="that node is fine")

    job, node = job_of(attempt), Node.objects.get(name="seren-001")
    assert (decision.state, node.drain_requested, job.hold) == ("undone", False, "user")
    assert {one.subject for one in ManualOverride.objects.active()} == {"seren-001", job.public_id}
    for override in ManualOverride.objects.active():
        decisions.lift_override(override, author=rows.author(), now=clock.now())
    assert not ManualOverride.objects.active().exists()


def test_undo_does_not_resume_a_node_drained_by_another_user(tmp_path):
    mode("act")
    sick_node(tmp_path)
    decide_and_recover_once(clock.now())
    node = Node.objects.get(name="seren-001")
    node_actions.resume(node, author=rows.author(), now=clock.now())
    node_actions.drain(node, author=rows.author(), why="fan", now=clock.now())

    steps.undo(Decision.objects.get(), author=rows.author(), now=clock.now())

    node.refresh_from_db()
    assert node.drain_requested and node.reason == "fan"


# --- the environment of the next attempt


def test_next_attempt_gets_the_checkpoint_to_resume_from(tmp_path):
    environment = resume_variables(
        {"path": "/ckpt/a b/200", "step": 200, "skip": [201, 300]}, "--load {path} --iteration {step}"
    )

    assert environment == {
        "ACME_CHECKPOINT": "/ckpt/a b/200",
        "ACME_CHECKPOINT_STEP": "200",
        "ACME_SKIP_STEPS": "201-300",
        "ACME_CHECKPOINT_ARGS": "--load /ckpt/a b/200 --iteration 200",
    }
    assert resume_variables({}, "--load {path}") == {}


def test_resume_checkpoint_applies_until_a_newer_one_is_saved(tmp_path):
    mode("act")
    attempt = sick_node(tmp_path)
    decide_and_recover_once(clock.now())
    job = job_of(attempt)
    again = rows.running(job, on=("seren-002", "seren-003"))
    job_actions.finish(again, rows.AttemptEnd(state=State.NODE_FAIL, at=clock.now()), author=rows.LOOP)
    assert job_of(attempt).resume["step"] == 200

    recovery_actions.restart(again, author=rows.LOOP, why="again", resume=job_of(attempt).resume)
    third = rows.running(job_of(attempt), on=("seren-002", "seren-003"))
    third.job.checkpoints.create(attempt=third, step=300, path="/ckpt/run/300")
    job_actions.finish(third, rows.AttemptEnd(state=State.NODE_FAIL, at=clock.now()), author=rows.LOOP)

    assert job_of(attempt).resume == {}


def test_team_mode_does_not_override_the_operator_mode_of_a_cluster(tmp_path):
    mode("act", team_id=rows.team("team-of-ada", ada="researcher").pk)
    mode("act")
    mode("observe", cluster_id=make.cluster(tmp_path).pk)

    attempt = failed(tmp_path)

    assert attempt.job.state == State.FAILED
    assert {attempt_policy(attempt).mode("team-of-ada", action).value for action in RecoveryAction} == {"observe"}


def test_mode_change_is_an_event_and_the_same_mode_is_not_a_change():
    team = rows.team("pretraining", ada="admin")
    mode("act")
    mode("observe", team_id=team.pk)
    mode("observe", team_id=team.pk)

    assert RecoveryMode.objects.count() == 2
    assert Event.objects.filter(type="recovery.mode_changed").count() == 2


# --- what was stored


def test_replay_with_the_same_rules_gives_the_same_decision(tmp_path):
    mode("act")
    sick_node(tmp_path)
    decide_and_recover_once(clock.now())

    replayed = reads.compare_with_replay(Decision.objects.get())

    assert {one.field for one in replayed} >= {"action", "mode", "drain", "from step"}
    assert all(one.is_same for one in replayed)


def test_replay_shows_differences_side_by_side(tmp_path):
    decision = proposal(tmp_path)
    Decision.objects.filter(pk=decision.pk).update(policy=decision.policy | {"modes": [[["*", "*"], "observe"]]})
    decision.refresh_from_db()

    differing = {
        one.field: (one.recorded, one.current) for one in reads.compare_with_replay(decision) if not one.is_same
    }

    assert differing == {"mode": ("propose", "observe")}
