"""Running jobs that hang or whose loss went bad: found by their reports, ended where recovery acts, else proposed."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from failures.actions import decisions as decision_actions
from failures.loops import watch
from failures.loops.watch import watch_once
from failures.models import Decision, DecisionState, Diagnosis, Incident
from jobs.actions import jobs as job_actions
from jobs.actions import recovery as recovery_actions
from jobs.actions.progress import CheckpointReport, HeartbeatResult, record_checkpoints
from jobs.core.attempt_end import AttemptEnd
from jobs.core.lifecycle import Flag, State
from jobs.models import Attempt, Deed, Event, Job, Progress, Pulse, clock
from scheduling.loops import recovery
from scheduling.loops.recovery import decide_and_recover_once
from tests import make as rows
from tests.failures import make

pytestmark = pytest.mark.django_db

MINUTE = timedelta(minutes=1)


def training(root, on=("seren-001", "seren-002"), **asked):
    attempt = make.running(root, kind="pretrain", checkpoint_dir="/ckpt/run", on=on, **asked)
    attempt.job.checkpoints.create(attempt=attempt, step=30, path="/ckpt/run/30")
    return attempt


def reports(attempt, until, *, losses=None, every=timedelta(seconds=2), steps=60):
    """Step after step, the last one at `until`."""
    losses = losses or [2.0 + (step % 7) / 100 for step in range(steps)]
    beats = [
        Progress(attempt=attempt, at=until - every * (len(losses) - step), step=step, loss=value)
        for step, value in enumerate(losses, 1)
    ]
    Progress.objects.bulk_create(beats)
    last = beats[-1]
    values = {"at": last.at, "step": last.step, "loss": last.loss, "heard_at": last.at}
    Pulse.objects.update_or_create(attempt=attempt, defaults=values)


def test_a_job_that_completes_no_step_any_more_hangs_and_its_incident_is_opened(tmp_path):
    now = clock.now()
    attempt = training(tmp_path)
    reports(attempt, now - 2 * MINUTE)

    assert watch_once(now) == 1

    row = Diagnosis.objects.get()
    assert (row.root_cause, row.engine, row.incident.subject) == ("Hang", "detector", attempt.job.public_id)
    assert "No step was completed for 12" in row.notes[0]
    assert row.incident.first_symptom_at == now - 2 * MINUTE


@pytest.mark.parametrize("case", ["steps", "debug", "opted out", "being stopped", "slow start"])
def test_nothing_is_said_of_who_is_well_or_not_looked_after(tmp_path, case):
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


def test_seen_twice_it_is_said_once(tmp_path):
    now = clock.now()
    reports(training(tmp_path), now - 2 * MINUTE)

    assert [watch_once(now), watch_once(now + MINUTE)] == [1, 0]
    assert Incident.objects.get().attempts == 1


def test_where_recovery_acts_the_attempt_is_ended_and_the_job_tested_and_restarted(tmp_path):
    recovery_actions.set_recovery_mode("act", author=rows.LOOP)
    now = clock.now()
    attempt = training(tmp_path)
    reports(attempt, now - 2 * MINUTE)
    watch_once(now)

    decide_and_recover_once(now)
    decision = Decision.objects.get()
    assert (decision.action, decision.course) == ("test nodes", "acting")
    attempt.refresh_from_db()
    assert attempt.stop_as == State.FAILED and Deed.objects.filter(kind="cancel", attempt=attempt).exists()

    job_actions.finish(attempt, AttemptEnd(state=State.CANCELLED, at=now, signal=15), author=rows.LOOP)
    assert Job.objects.get().flags == [Flag.RECOVERING]
    decide_and_recover_once(now + 2 * decision_actions.CLAIM_LEASE)
    assert sorted(decision.node_test.nodes) == ["seren-001", "seren-002"]
    assert Attempt.objects.get().state == State.FAILED


def test_in_propose_mode_it_runs_on_until_somebody_says_yes(tmp_path):
    now = clock.now()
    attempt = training(tmp_path)
    reports(attempt, now - 2 * MINUTE)
    watch_once(now)
    decide_and_recover_once(now)

    decision = Decision.objects.get()
    attempt.refresh_from_db()
    assert (decision.course, attempt.stop_as) == (DecisionState.PROPOSED, "")

    decision_actions.approve(decision, author=rows.author(), now=now)
    decide_and_recover_once(now)
    attempt.refresh_from_db()
    assert attempt.stop_as == State.FAILED


def test_an_undo_between_the_claim_and_the_stop_lets_it_run_on(tmp_path, monkeypatch):
    recovery_actions.set_recovery_mode("act", author=rows.LOOP)
    now, real = clock.now(), recovery.carry_out_decision
    attempt = training(tmp_path)
    reports(attempt, now - 2 * MINUTE)
    watch_once(now)

    def late(decision, at):
        decision_actions.undo(Decision.objects.get(), author=rows.author(), now=at)
        return real(decision, at)

    monkeypatch.setattr(recovery, "carry_out_decision", late)
    decide_and_recover_once(now)

    attempt.refresh_from_db()
    assert (Decision.objects.get().course, attempt.stop_as) == (DecisionState.UNDONE, "")


def test_a_hang_that_passes_before_anything_was_done_is_taken_back(tmp_path):
    now = clock.now()
    attempt = training(tmp_path)
    reports(attempt, now - 2 * MINUTE)
    watch_once(now)
    decide_and_recover_once(now)
    Pulse.objects.update(at=now + MINUTE, step=61, heard_at=now + MINUTE)

    assert watch_once(now + MINUTE) == 1

    assert not Decision.objects.exists() and not Diagnosis.objects.exists()
    assert Incident.objects.get().state == "resolved"
    assert Event.objects.filter(what="diagnosis.withdrawn").count() == 1


def test_a_yes_that_came_first_keeps_verdict_and_decision(tmp_path):
    now = clock.now()
    attempt = training(tmp_path)
    reports(attempt, now - 2 * MINUTE)
    watch_once(now)
    decide_and_recover_once(now)
    decision_actions.approve(Decision.objects.get(), author=rows.author(), now=now)
    Pulse.objects.update(at=now + MINUTE, step=61, heard_at=now + MINUTE)

    with CaptureQueriesContext(connection) as asked:
        assert watch_once(now + MINUTE) == 0

    assert Decision.objects.get().course == DecisionState.APPROVED
    assert any("failures_decision" in one["sql"] and "FOR UPDATE" in one["sql"] for one in asked)


def test_a_loss_that_jumps_and_stays_goes_back_behind_it_and_leaves_out_the_data(tmp_path):
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


def test_a_spike_that_comes_back_is_no_failure(tmp_path):
    now = clock.now()
    attempt = training(tmp_path)
    steady = [2.0 + (step % 7) / 100 for step in range(100)]
    reports(attempt, now, losses=[*steady, *[9.0] * 40, *steady])

    assert watch_once(now) == 0


def test_one_row_that_blows_up_leaves_the_others_alone(tmp_path, monkeypatch):

    now = clock.now()
    first, second = training(tmp_path), training(tmp_path, on=("seren-003", "seren-004"))
    for attempt in (first, second):
        reports(attempt, now - 2 * MINUTE)
    seen = watch._loss_points

    def broken(attempt):
        if attempt.pk == first.pk:
            raise job_actions.JobError("no")
        return seen(attempt)

    monkeypatch.setattr(watch, "_loss_points", broken)

    assert watch_once(now) == 1
    assert Diagnosis.objects.get().attempt == second


def test_most_of_a_cluster_that_falls_silent_at_once_does_not_hang(tmp_path):
    now = clock.now()
    four = [training(tmp_path, on=(f"seren-00{n}",)) for n in range(1, 5)]
    for attempt in four[:3]:
        reports(attempt, now - 2 * MINUTE)
    reports(four[3], now)
    assert watch_once(now) == 0 and not Diagnosis.objects.exists()

    reports_again = Pulse.objects.filter(attempt=four[0])
    reports_again.update(at=now, heard_at=now)
    assert watch_once(now) == 2  # two of four may be two of their own


def test_most_of_a_cluster_that_stays_silent_hangs_after_all(tmp_path):
    now = clock.now()
    for n in range(1, 4):
        reports(training(tmp_path, on=(f"seren-00{n}",)), now - 14 * MINUTE)
    assert watch_once(now) == 0

    assert watch_once(now + 2 * MINUTE) == 3


def test_a_suspended_job_does_not_hang(tmp_path):
    now = clock.now()
    reports(training(tmp_path), now - 2 * MINUTE)
    Job.objects.update(state=State.SUSPENDED)

    assert watch_once(now) == 0


def test_a_declared_section_is_no_hang_while_it_lasts_and_the_patience_begins_at_its_end(tmp_path):
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


def test_a_section_that_never_ends_is_a_hang_of_its_own(tmp_path):
    now = clock.now()
    attempt = training(tmp_path)
    reports(attempt, now - 40 * MINUTE)
    attempt.sections.create(name="evaluation", began_at=now - 40 * MINUTE)

    assert watch_once(now) == 1
    assert "Its section evaluation lasts for 2400 s" in Diagnosis.objects.get().notes[0]


def gone_back(root):
    """Its loss jumped at step 101, and it went back to step 30; 120 was saved with the weights that went bad."""
    recovery_actions.set_recovery_mode("act", author=rows.LOOP)
    now = clock.now()
    attempt = training(root)
    attempt.job.checkpoints.create(attempt=attempt, step=120, path="/ckpt/run/120")
    reports(attempt, now, losses=[*[2.0 + (step % 7) / 100 for step in range(100)], *[9.0] * 60])
    watch_once(now)
    decide_and_recover_once(now)
    Attempt.objects.filter(pk=attempt.pk).update(stop_as=State.FAILED)
    job_actions.finish(attempt, AttemptEnd(state=State.FAILED, at=now, exit_code=1), author=rows.LOOP)
    decide_and_recover_once(now + timedelta(seconds=10))
    return attempt.job


def verdicts(job):
    return dict(job.checkpoints.values_list("step", "verdict"))


def test_what_it_went_back_behind_stays_bad_for_the_next_failure_of_another_cause(tmp_path):
    job = gone_back(tmp_path)

    assert verdicts(job) == {30: "", 120: "bad"}
    assert "went back behind it" in job.checkpoints.get(step=120).verdict_why


def test_who_takes_the_step_back_trusts_them_again(tmp_path):
    job = gone_back(tmp_path)

    decision_actions.undo(Decision.objects.get(), author=rows.author(), now=clock.now())

    assert verdicts(job) == {30: "", 120: ""}


def test_the_same_step_saved_anew_by_the_next_attempt_is_another_checkpoint(tmp_path):
    job = gone_back(tmp_path)
    attempt = rows.attempt(job, on=("seren-003", "seren-004"))
    noted = HeartbeatResult(attempt_id=attempt.pk, job_id=job.pk, stop_as="", rows=1)

    record_checkpoints(noted, [CheckpointReport(path="/ckpt/run/120", step=120, durable=True)], rows.author())

    assert verdicts(job) == {30: "", 120: ""}
