"""Running jobs that hang or have a bad loss: detection from their reports, and recovery in both modes."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from acmeweb.common.errors import StateConflict
from failures.loops.diagnose import diagnose_once
from failures.loops.watch import watch_once
from failures.models import Decision, DecisionState, Diagnosis, Incident
from failures.recovery import decisions, steps
from jobs.actions import jobs as job_actions
from jobs.actions import recovery as recovery_actions
from jobs.actions.progress import CheckpointReport, HeartbeatResult, record_checkpoints
from jobs.core.attempt_end import AttemptEnd
from jobs.core.lifecycle import Flag, State
from jobs.models import Attempt, ClusterCommand, Event, Job, LatestProgress, Progress, clock
from tests import make as rows
from tests.failures import make
from tests.failures.make import decide_and_recover_once
from tests.statements import before_transaction, failing_statement

pytestmark = pytest.mark.django_db

MINUTE = timedelta(minutes=1)


def training(root, on=("seren-001", "seren-002"), **asked):
    attempt = make.running(root, kind="pretrain", checkpoint_dir="/ckpt/run", on=on, **asked)
    attempt.job.checkpoints.create(attempt=attempt, step=30, path="/ckpt/run/30")
    return attempt


def reports(attempt, until, *, losses=None, every=timedelta(seconds=2), steps=60):
    """Store steps, the last one at `until`."""
    losses = losses or [2.0 + (step % 7) / 100 for step in range(steps)]
    beats = [
        Progress(attempt=attempt, at=until - every * (len(losses) - step), step=step, loss=value)
        for step, value in enumerate(losses, 1)
    ]
    Progress.objects.bulk_create(beats)
    last = beats[-1]
    values = {"at": last.at, "step": last.step, "loss": last.loss, "updated_at": last.at}
    LatestProgress.objects.update_or_create(attempt=attempt, defaults=values)


def test_job_without_new_steps_hangs_and_opens_an_incident(tmp_path):
    now = clock.now()
    attempt = training(tmp_path)
    reports(attempt, now - 2 * MINUTE)

    assert watch_once(now) == 1

    row = Diagnosis.objects.get()
    assert (row.root_cause, row.engine, row.incident.subject) == ("Hang", "detector", attempt.job.public_id)
    assert "No step completed for 12" in row.notes[0]
    assert row.incident.first_symptom_at == now - 2 * MINUTE


@pytest.mark.parametrize("case", ["steps", "debug", "opted out", "being stopped", "slow start"])
def test_healthy_or_unmonitored_jobs_are_not_diagnosed(tmp_path, case):
    now = clock.now()
    asked = {"opted out": {"labels": {"acme-recovery": "off"}}}.get(case, {})
    attempt = training(tmp_path, **asked)
    reports(attempt, now if case == "steps" else now - 2 * MINUTE, steps=4 if case == "slow start" else 60)
    if case == "debug":
        Job.objects.update(kind="debug", checkpoint_dir="")
    if case == "being stopped":
        job_actions.cancel(attempt.job, author=rows.author())

    assert watch_once(now) == 0
    assert not Diagnosis.objects.exists()


def test_hang_found_twice_is_reported_once(tmp_path):
    now = clock.now()
    reports(training(tmp_path), now - 2 * MINUTE)

    assert [watch_once(now), watch_once(now + MINUTE)] == [1, 0]
    assert Incident.objects.get().attempts == 1


def test_recovery_ends_a_hanging_attempt_and_tests_its_nodes(tmp_path):
    recovery_actions.set_recovery_mode("act", author=rows.LOOP)
    now = clock.now()
    attempt = training(tmp_path)
    reports(attempt, now - 2 * MINUTE)
    watch_once(now)

    decide_and_recover_once(now)
    decision = Decision.objects.get()
    assert (decision.action, decision.state) == ("test nodes", "acting")
    attempt.refresh_from_db()
    assert attempt.stop_state == State.FAILED and ClusterCommand.objects.filter(kind="cancel", attempt=attempt).exists()

    job_actions.finish(attempt, AttemptEnd(state=State.CANCELLED, at=now, signal=15), author=rows.LOOP)
    assert Job.objects.get().flags == [Flag.RECOVERING]
    decide_and_recover_once(now + 2 * steps.CLAIM_LEASE)
    assert sorted(decision.node_test.nodes) == ["seren-001", "seren-002"]
    assert Attempt.objects.get().state == State.FAILED


def test_hanging_attempt_runs_on_in_propose_mode_until_approval(tmp_path):
    now = clock.now()
    attempt = training(tmp_path)
    reports(attempt, now - 2 * MINUTE)
    watch_once(now)
    decide_and_recover_once(now)

    decision = Decision.objects.get()
    attempt.refresh_from_db()
    assert (decision.state, attempt.stop_state) == (DecisionState.PROPOSED, "")

    decisions.approve(decision, author=rows.author(), now=now)
    decide_and_recover_once(now)
    attempt.refresh_from_db()
    assert attempt.stop_state == State.FAILED


def test_undo_before_the_stop_lets_the_attempt_run_on(tmp_path):
    recovery_actions.set_recovery_mode("act", author=rows.LOOP)
    now = clock.now()
    attempt = training(tmp_path)
    reports(attempt, now - 2 * MINUTE)
    watch_once(now)

    def undo():
        steps.undo(Decision.objects.get(), author=rows.author(), now=now)

    with before_transaction(2, act=undo):  # the first one records the decision
        decide_and_recover_once(now)

    attempt.refresh_from_db()
    assert (Decision.objects.get().state, attempt.stop_state) == (DecisionState.UNDONE, "")


def test_diagnosis_is_withdrawn_if_the_hang_ends_before_any_action(tmp_path):
    now = clock.now()
    attempt = training(tmp_path)
    reports(attempt, now - 2 * MINUTE)
    watch_once(now)
    decide_and_recover_once(now)
    LatestProgress.objects.update(at=now + MINUTE, step=61, updated_at=now + MINUTE)

    assert watch_once(now + MINUTE) == 1

    assert not Decision.objects.exists() and not Diagnosis.objects.exists()
    assert Incident.objects.get().state == "resolved"
    assert Event.objects.filter(type="diagnosis.withdrawn").count() == 1


@pytest.mark.parametrize("state", [DecisionState.PROPOSED, DecisionState.DECLINED, DecisionState.EXPIRED])
def test_failure_after_a_hang_that_nobody_acted_on_gets_its_own_diagnosis(tmp_path, state):
    now = clock.now()
    attempt = training(tmp_path)
    reports(attempt, now - 2 * MINUTE)
    watch_once(now)
    decide_and_recover_once(now)
    Decision.objects.update(state=state)
    make.end(tmp_path, attempt)

    diagnose_once(clock.now())

    assert make.of(attempt).root_cause == "TypeError"
    assert not Decision.objects.exists()


def test_early_diagnosis_that_cannot_be_withdrawn_does_not_stop_the_others(tmp_path):
    now = clock.now()
    first, second = training(tmp_path, on=("seren-001",)), training(tmp_path, on=("seren-002",))
    for attempt in (first, second):
        reports(attempt, now - 2 * MINUTE)
    watch_once(now)
    for attempt in (first, second):
        make.end(tmp_path, attempt)

    with failing_statement('DELETE FROM "failures_diagnosis"', make.of(first).pk, error=StateConflict("no")):
        diagnose_once(clock.now())

    assert [make.of(attempt).root_cause for attempt in (first, second)] == ["Hang", "TypeError"]


def test_diagnosis_of_a_hang_on_which_recovery_acted_stays(tmp_path):
    now = clock.now()
    attempt = training(tmp_path)
    reports(attempt, now - 2 * MINUTE)
    watch_once(now)
    decide_and_recover_once(now)
    Decision.objects.update(state=DecisionState.ACTING)
    make.end(tmp_path, attempt)

    diagnose_once(clock.now())

    assert make.of(attempt).root_cause == "Hang"


def test_approved_decision_is_kept_when_the_hang_ends(tmp_path):
    now = clock.now()
    attempt = training(tmp_path)
    reports(attempt, now - 2 * MINUTE)
    watch_once(now)
    decide_and_recover_once(now)
    decisions.approve(Decision.objects.get(), author=rows.author(), now=now)
    LatestProgress.objects.update(at=now + MINUTE, step=61, updated_at=now + MINUTE)

    with CaptureQueriesContext(connection) as queries:
        assert watch_once(now + MINUTE) == 0

    assert Decision.objects.get().state == DecisionState.APPROVED
    assert any("failures_decision" in one["sql"] and "FOR UPDATE" in one["sql"] for one in queries)


def test_lasting_loss_spike_rolls_back_and_skips_the_data(tmp_path):
    recovery_actions.set_recovery_mode("act", author=rows.LOOP)
    now = clock.now()
    attempt = training(tmp_path)
    steady = [2.0 + (step % 7) / 100 for step in range(100)]
    reports(attempt, now, losses=[*steady, *[9.0] * 60])

    assert watch_once(now) == 1
    decide_and_recover_once(now)

    decision = Decision.objects.get()
    assert (decision.action, decision.checkpoint_step) == ("roll back", 30)
    assert decision.skip[0] <= 101 <= decision.skip[1]


def test_recovered_loss_spike_is_not_diagnosed(tmp_path):
    now = clock.now()
    attempt = training(tmp_path)
    steady = [2.0 + (step % 7) / 100 for step in range(100)]
    reports(attempt, now, losses=[*steady, *[9.0] * 40, *steady])

    assert watch_once(now) == 0


def test_error_on_one_attempt_does_not_affect_the_others(tmp_path):
    now = clock.now()
    first, second = training(tmp_path), training(tmp_path, on=("seren-003", "seren-004"))
    for attempt in (first, second):
        reports(attempt, now - 2 * MINUTE)

    with failing_statement('FROM "jobs_progress"', first.pk, error=StateConflict("no")):
        assert watch_once(now) == 1
    assert Diagnosis.objects.get().attempt == second


def test_simultaneous_silence_of_most_jobs_is_not_a_hang(tmp_path):
    now = clock.now()
    four = [training(tmp_path, on=(f"seren-00{n}",)) for n in range(1, 5)]
    for attempt in four[:3]:
        reports(attempt, now - 2 * MINUTE)
    reports(four[3], now)
    assert watch_once(now) == 0 and not Diagnosis.objects.exists()

    reports_again = LatestProgress.objects.filter(attempt=four[0])
    reports_again.update(at=now, updated_at=now)
    assert watch_once(now) == 2  # two of four may be independent hangs


def test_long_silence_of_most_jobs_is_a_hang(tmp_path):
    now = clock.now()
    for n in range(1, 4):
        reports(training(tmp_path, on=(f"seren-00{n}",)), now - 14 * MINUTE)
    assert watch_once(now) == 0

    assert watch_once(now + 2 * MINUTE) == 3


def test_suspended_job_does_not_hang(tmp_path):
    now = clock.now()
    reports(training(tmp_path), now - 2 * MINUTE)
    Job.objects.update(state=State.SUSPENDED)

    assert watch_once(now) == 0


def test_hang_limit_starts_at_the_end_of_a_declared_section(tmp_path):
    now = clock.now()
    attempt = training(tmp_path)
    reports(attempt, now - 10 * MINUTE)
    lasting = attempt.sections.create(name="evaluation", began_at=now - 10 * MINUTE)
    assert watch_once(now) == 0

    lasting.ended_at = now - timedelta(seconds=10)
    lasting.save()
    assert watch_once(now) == 0

    assert watch_once(now + 2 * MINUTE) == 1
    assert Diagnosis.objects.get().incident.first_symptom_at == lasting.ended_at


def test_endless_declared_section_is_diagnosed_as_a_hang(tmp_path):
    now = clock.now()
    attempt = training(tmp_path)
    reports(attempt, now - 40 * MINUTE)
    attempt.sections.create(name="evaluation", began_at=now - 40 * MINUTE)

    assert watch_once(now) == 1
    assert 'Section "evaluation" has lasted for 2400 s' in Diagnosis.objects.get().notes[0]


def rolled_back_job(root):
    """A job whose loss jumped at step 101 and that was rolled back to step 30; checkpoint 120 has the bad weights."""
    recovery_actions.set_recovery_mode("act", author=rows.LOOP)
    now = clock.now()
    attempt = training(root)
    attempt.job.checkpoints.create(attempt=attempt, step=120, path="/ckpt/run/120")
    reports(attempt, now, losses=[*[2.0 + (step % 7) / 100 for step in range(100)], *[9.0] * 60])
    watch_once(now)
    decide_and_recover_once(now)
    Attempt.objects.filter(pk=attempt.pk).update(stop_state=State.FAILED)
    job_actions.finish(attempt, AttemptEnd(state=State.FAILED, at=now, exit_code=1), author=rows.LOOP)
    decide_and_recover_once(now + timedelta(seconds=10))
    return attempt.job


def verdicts(job):
    return dict(job.checkpoints.values_list("step", "verdict"))


def test_checkpoint_after_the_rollback_point_stays_bad(tmp_path):
    job = rolled_back_job(tmp_path)

    assert verdicts(job) == {30: "", 120: "bad"}
    assert "rolled back to step" in job.checkpoints.get(step=120).verdict_why


def test_undone_rollback_clears_the_bad_checkpoints(tmp_path):
    job = rolled_back_job(tmp_path)

    steps.undo(Decision.objects.get(), author=rows.author(), now=clock.now())

    assert verdicts(job) == {30: "", 120: ""}


def test_checkpoint_saved_again_by_the_next_attempt_is_not_bad(tmp_path):
    job = rolled_back_job(tmp_path)
    attempt = rows.attempt(job, on=("seren-003", "seren-004"))
    noted = HeartbeatResult(attempt_id=attempt.pk, job_id=job.pk, stop_state="", rows=1)

    record_checkpoints(noted, [CheckpointReport(path="/ckpt/run/120", step=120, durable=True)], rows.author())

    assert verdicts(job) == {30: "", 120: ""}
