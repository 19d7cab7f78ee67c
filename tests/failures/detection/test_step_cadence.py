"""Hangs of jobs that do not report their steps, state in their logs: the rule, and the loop that applies it."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from failures.actions import log_read_states
from failures.detection.step_cadence import (
    CadenceState,
    cadence_from_json,
    cadence_to_json,
    detect_silence,
    update_cadence,
)
from failures.loops.follow import follow_once
from failures.loops.watch import watch_once
from failures.models import Diagnosis, LogReadState, StackDump
from failures.queries import log_steps
from jobs.actions import jobs as job_actions
from jobs.core.attempt_end import AttemptEnd
from jobs.core.lifecycle import State
from jobs.logs.job_log import LogStream
from jobs.models import Attempt, Progress, clock
from tests import make as rows
from tests.failures import make
from tests.failures.detection.test_watch import MINUTE

LOOK = 15.0
HOUR = timedelta(hours=1)


def state_after(pieces, before=None):
    """The state after looks at the log every fifteen seconds; `pieces` are the new lines of each look."""
    state = before or CadenceState()
    for number, lines in enumerate(pieces):
        state = update_cadence(state, lines, number * LOOK)
    return state


def steps(looks, per_look=3, first=1):
    return [[f"step {first + per_look * look + n} | loss 2.0" for n in range(per_look)] for look in range(looks)]


# --- the rule


def test_silence_limit_follows_the_usual_interval_of_the_job():
    state = state_after(steps(20))

    assert detect_silence(state, 19 * LOOK + 74) is None
    assert detect_silence(state, 19 * LOOK + 76).since == 19 * LOOK


def test_buffered_output_gets_the_time_of_a_section_in_addition():
    blocks = [piece for block in steps(14, per_look=80) for piece in (block, [], [], [], [], [])]  # every 90 s

    state = state_after(blocks)

    last = state.moments[-1]
    assert state.is_buffered
    assert detect_silence(state, last + 90 + 1790) is None
    assert detect_silence(state, last + 90 + 1801).expected == 1890


def test_four_rare_blocks_are_enough_to_know_when_the_next_is_due():
    """The limit is not five times the longest interval, which would be hours, because blocks come evenly."""
    state = state_after([piece for block in steps(4, per_look=80) for piece in (block, *[[]] * 99)])  # every 25 minutes

    last = state.moments[-1]
    assert detect_silence(state, last + 1500 + 1790) is None
    assert detect_silence(state, last + 1500 + 1801)


def test_slow_start_is_not_a_hang():
    assert detect_silence(state_after(steps(9)), 9 * LOOK + 3600) is None


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("saving checkpoint to /ckpt/step-60", "checkpoint"),
        ("INFO Writing optimizer state shards", "checkpoint"),
        ("Running evaluation on 12 datasets", "evaluation"),
        ("***** Running Evaluation *****", "evaluation"),
        ("Validating: 0%|          | 0/400", "evaluation"),
        ("torch.compile: recompiling train_step", "compile"),
    ],
)
def test_announced_section_is_not_a_hang_until_the_next_step(line, name):
    state = state_after([*steps(20), [line]])
    assert detect_silence(state, 20 * LOOK + 1000) is None
    assert [one.name for one in state.sections] == [name]
    assert detect_silence(state, 20 * LOOK + 1801).subject == name

    on = update_cadence(state, ["step 61 | loss 2.0"], 20 * LOOK + 900)
    assert detect_silence(on, 20 * LOOK + 900 + 74) is None
    assert detect_silence(on, 20 * LOOK + 900 + 76)


def test_buffered_output_during_an_evaluation_is_not_a_hang():
    """The announcement is in the same block as the end of the evaluation, so it cannot open a section in time."""
    block = ["step 61 | loss 2.0", "running evaluation", "step 62 | loss 2.0"]

    state = state_after([*steps(20), *[[]] * 40, block, *steps(10, first=63)])

    assert detect_silence(state, state.moments[-1] + 600) is None


def test_finished_save_opens_no_section():
    assert state_after([*steps(20), ["checkpoint saved at step 60", "evaluation took 20 s"]]).sections == ()


def test_announced_future_step_does_not_hide_earlier_steps():
    state = state_after([*steps(10), ["will evaluate at step 9000"], *steps(10, first=31)])

    assert len(state.moments) == 21


def test_watchdog_lines_do_not_count_as_steps():
    complaints = [["watchdog: still at iteration 60", "rank 3: waiting since step 60"]] * 10

    state = state_after([*steps(20), *complaints])

    assert state.moments[-1] <= 20 * LOOK
    assert detect_silence(state, 30 * LOOK)


def test_state_is_bounded_for_any_log():
    state = state_after([[f"{chr(97 + n % 26)}{chr(97 + n // 26 % 26)} step {n}", "saving model"] for n in range(1000)])

    assert len(state.furthest) <= 20 and len(state.moments) <= 260 and len(state.sections) <= 40


# --- the loop

pytestmark = pytest.mark.django_db


class LoggedJob:
    """A running training job that only writes a log."""

    def __init__(self, root, **asked):
        self.attempt = make.running(root, **{"kind": "pretrain", "on": ("seren-001", "seren-002"), **asked})
        Attempt.objects.filter(pk=self.attempt.pk).update(log_path=f"{self.attempt.key}.log")
        self.attempt.refresh_from_db()
        self.path, self.now, self.step = root / self.attempt.log_path, clock.now(), 0
        self.path.touch()

    def says(self, text):
        with self.path.open("a") as log:
            log.write(text)

    def steps(self, looks):
        for _ in range(looks):
            self.says("".join(f"step {self.step + n} | loss 2.0\n" for n in range(3)))
            self.step += 3
            assert self.look() == 0

    def look(self, seconds=LOOK):
        self.now += timedelta(seconds=seconds)
        follow_once(self.now)
        return watch_once(self.now)


def stored_cadence():
    return cadence_from_json(LogReadState.objects.get().cadence)


def highest_steps():
    return list(stored_cadence().furthest.values())


def test_hang_of_a_job_without_reports_is_found_in_its_log(tmp_path):
    job = LoggedJob(tmp_path)
    job.steps(20)

    assert [job.look() for _ in range(6)] == [0, 0, 0, 0, 0, 1]

    row = Diagnosis.objects.get()
    assert (row.root_cause, row.engine) == ("Hang", "detector")
    assert row.notes[0].startswith("The log shows no new steps. No step completed for 90 s; ")
    assert "the limit for this job is 75 s" in row.notes[0]
    assert row.incident.first_symptom_at == job.now - 1.5 * MINUTE


def test_stacks_are_requested_if_the_label_declares_a_signal(tmp_path):
    job = LoggedJob(tmp_path, labels={"acme-stacks": "USR2"})
    job.steps(20)
    job.look(120)

    assert StackDump.objects.get().log_from == job.path.stat().st_size


def test_diagnosis_is_withdrawn_when_the_hang_ends(tmp_path):
    job = LoggedJob(tmp_path)
    job.steps(20)
    assert job.look(120) == 1

    job.says("step 61 | loss 2.0\n")
    assert job.look() == 1
    assert not Diagnosis.objects.exists()


@pytest.mark.parametrize("case", ["debug", "opted out", "no log", "no steps"])
def test_jobs_without_monitoring_or_steps_are_not_diagnosed(tmp_path, case):
    asked = {"debug": {"kind": "debug"}, "opted out": {"labels": {"acme-recovery": "off"}}}.get(case, {})
    job = LoggedJob(tmp_path, **asked)
    if case == "no log":
        job.path.unlink()
    for number in range(20):
        if case != "no log":
            job.says("still reading\n" if case == "no steps" else f"step {number}\n")
        job.look()

    assert job.look(3600) == 0 and not Diagnosis.objects.exists()


def test_partial_line_is_read_when_complete_and_a_truncated_log_from_its_start(tmp_path):
    job = LoggedJob(tmp_path)
    job.says("step 1\nste")
    job.look()
    assert LogReadState.objects.get().steps_read == len("step 1\n")

    job.says("p 2\n")
    job.look()
    assert highest_steps() == [2] and len(stored_cadence().moments) == 2

    job.path.write_text("step 1\n")
    job.look()
    assert highest_steps() == [1] and len(stored_cadence().moments) == 1


def test_fast_growing_log_is_read_at_its_end(tmp_path):
    job = LoggedJob(tmp_path)
    job.steps(1)
    job.says("x" * 3_000_000 + "\nstep 9\n")
    job.look()

    assert highest_steps() == [9]


def test_broken_state_does_not_affect_others_and_ended_attempts_are_deleted(tmp_path):
    broken, job = LoggedJob(tmp_path), LoggedJob(tmp_path, on=("seren-003", "seren-004"))
    LogReadState.objects.create(attempt=broken.attempt, cadence={"nonsense": 1})
    broken.says("step 1\n")
    job.says("step 1\n")
    job.look()
    assert LogReadState.objects.get(attempt=job.attempt).cadence["moments"]

    job_actions.finish(job.attempt, AttemptEnd(state=State.COMPLETED, at=job.now, exit_code=0), author=rows.LOOP)
    job.look()
    assert not LogReadState.objects.filter(attempt=job.attempt).exists()


def test_silence_counts_only_up_to_the_last_read_of_the_log(tmp_path):
    job = LoggedJob(tmp_path)
    job.steps(20)
    job.now += timedelta(hours=1)

    assert watch_once(job.now) == 0 and not Diagnosis.objects.exists()


def test_unreadable_log_is_not_a_silent_log(tmp_path):
    job = LoggedJob(tmp_path)
    job.steps(20)
    job.path.unlink()

    assert job.look(3600) == 0 and not Diagnosis.objects.exists()


def test_second_worker_that_read_the_same_lines_stores_nothing(tmp_path):
    job = LoggedJob(tmp_path)
    job.look()
    job.says("step 1 | loss 2.0\n")
    (attempt,) = log_steps.attempts_to_read(job.now + HOUR)
    late = log_steps.read_new_steps(attempt, LogStream(attempt.log_source), job.now)
    job.look()

    assert not log_read_states.save_steps(attempt.log_read_state, late, job.now)
    assert Progress.objects.filter(attempt=job.attempt).count() == 1


def test_logs_are_read_in_turn_and_not_more_often_than_needed(tmp_path):
    first, second = LoggedJob(tmp_path), LoggedJob(tmp_path, on=("seren-003", "seren-004"))
    second.look()
    LogReadState.objects.filter(attempt=first.attempt).update(steps_looked_at=second.now + timedelta(seconds=1))

    assert log_steps.attempts_to_read(second.now + timedelta(seconds=5)) == []
    assert log_steps.attempts_to_read(second.now + HOUR) == [second.attempt, first.attempt]


def test_shapes_of_lines_keep_their_order_when_stored():
    before = update_cadence(CadenceState(), [f"{'z' * n} step {n}" for n in range(1, 9)][::-1], 1.0)

    stored = json.loads(json.dumps(cadence_to_json(before)))

    assert cadence_from_json(stored) == before and list(cadence_from_json(stored).furthest) == list(before.furthest)
