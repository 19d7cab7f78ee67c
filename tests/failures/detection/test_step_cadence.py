"""A job that reports nothing hangs when its log counts no further: the rule, and the loop that asks it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from failures.detection.step_cadence import CadenceState, detect_silence, update_cadence
from failures.loops.watch import watch_once
from failures.models import Cadence, Diagnosis, StackDump
from failures.queries import log_progress
from jobs.actions import jobs as job_actions
from jobs.core.attempt_end import AttemptEnd
from jobs.core.lifecycle import State
from jobs.models import Attempt, clock
from tests import make as rows
from tests.failures import make
from tests.failures.detection.test_watch import MINUTE

LOOK = 15.0


def heard(pieces, before=None):
    """Lines a look, fifteen seconds apart, the first look at 0."""
    found = before or CadenceState()
    for number, lines in enumerate(pieces):
        found = update_cadence(found, lines, number * LOOK)
    return found


def steps(looks, per_look=3, first=1):
    return [[f"step {first + per_look * look + n} | loss 2.0" for n in range(per_look)] for look in range(looks)]


# --- the rule


def test_silence_is_measured_by_the_job_s_own_cadence():
    found = heard(steps(20))

    assert detect_silence(found, 19 * LOOK + 74) is None
    assert detect_silence(found, 19 * LOOK + 76).since == 19 * LOOK


def test_a_program_that_writes_by_blocks_is_given_the_time_of_a_section():
    blocks = [piece for block in steps(14, per_look=80) for piece in (block, [], [], [], [], [])]  # every 90 s

    found = heard(blocks)

    last = found.moments[-1]
    assert found.is_buffered
    assert detect_silence(found, last + 90 + 1790) is None
    assert detect_silence(found, last + 90 + 1801).expected == 1890


def test_of_blocks_that_come_seldom_four_tell_when_the_next_is_due():
    """Five times the longest would be hours; a block of many steps comes evenly."""
    found = heard([piece for block in steps(4, per_look=80) for piece in (block, *[[]] * 99)])  # every 25 minutes

    last = found.moments[-1]
    assert detect_silence(found, last + 1500 + 1790) is None
    assert detect_silence(found, last + 1500 + 1801)


def test_the_first_steps_are_no_measure_and_a_slow_start_is_no_hang():
    assert detect_silence(heard(steps(9)), 9 * LOOK + 3600) is None


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
def test_what_it_says_it_begins_is_no_hang_until_steps_go_on(line, name):
    found = heard([*steps(20), [line]])
    assert detect_silence(found, 20 * LOOK + 1000) is None
    assert [one.name for one in found.sections] == [name]
    assert detect_silence(found, 20 * LOOK + 1801).subject == name

    on = update_cadence(found, ["step 61 | loss 2.0"], 20 * LOOK + 900)
    assert detect_silence(on, 20 * LOOK + 900 + 74) is None
    assert detect_silence(on, 20 * LOOK + 900 + 76)


def test_who_writes_by_blocks_is_silent_while_it_evaluates_and_that_is_its_usual():
    """The word that it begins comes only with the block, when it is over: it can excuse nothing beforehand."""
    block = ["step 61 | loss 2.0", "running evaluation", "step 62 | loss 2.0"]

    found = heard([*steps(20), *[[]] * 40, block, *steps(10, first=63)])

    assert detect_silence(found, found.moments[-1] + 600) is None


def test_a_save_that_is_over_is_no_section():
    assert heard([*steps(20), ["checkpoint saved at step 60", "evaluation took 20 s"]]).sections == ()


def test_a_step_that_is_announced_does_not_hide_those_before_it():
    found = heard([*steps(10), ["will evaluate at step 9000"], *steps(10, first=31)])

    assert len(found.moments) == 21


def test_a_watchdog_that_complains_counts_nothing():
    moans = [["watchdog: still at iteration 60", "rank 3: waiting since step 60"]] * 10

    found = heard([*steps(20), *moans])

    assert found.moments[-1] <= 20 * LOOK
    assert detect_silence(found, 30 * LOOK)


def test_what_is_kept_is_bounded_whatever_a_log_says():
    found = heard([[f"{chr(97 + n % 26)}{chr(97 + n // 26 % 26)} step {n}", "saving model"] for n in range(1000)])

    assert len(found.furthest) <= 20 and len(found.moments) <= 260 and len(found.sections) <= 40


# --- the loop

pytestmark = pytest.mark.django_db


class Logged:
    """A training whose log is all there is."""

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
        return watch_once(self.now)


def test_a_job_that_reports_nothing_is_found_to_hang_by_its_log(tmp_path):
    job = Logged(tmp_path)
    job.steps(20)

    assert [job.look() for _ in range(6)] == [0, 0, 0, 0, 0, 1]

    row = Diagnosis.objects.get()
    assert (row.root_cause, row.engine) == ("Hang", "detector")
    assert row.notes[0].startswith("Its log counts no further. No step was completed for 90 s; 75 s")
    assert row.incident.first_symptom_at == job.now - 1.5 * MINUTE


def test_its_ranks_are_asked_where_the_label_says_they_can_be(tmp_path):
    job = Logged(tmp_path, labels={"acme-stacks": "USR2"})
    job.steps(20)
    job.look(120)

    assert StackDump.objects.get().log_from == job.path.stat().st_size


def test_a_hang_that_passes_is_taken_back(tmp_path):
    job = Logged(tmp_path)
    job.steps(20)
    assert job.look(120) == 1

    job.says("step 61 | loss 2.0\n")
    assert job.look() == 1
    assert not Diagnosis.objects.exists()


@pytest.mark.parametrize("case", ["debug", "opted out", "no log", "no steps"])
def test_nothing_is_said_of_who_is_not_looked_after_or_says_nothing_of_steps(tmp_path, case):
    asked = {"debug": {"kind": "debug"}, "opted out": {"labels": {"acme-recovery": "off"}}}.get(case, {})
    job = Logged(tmp_path, **asked)
    if case == "no log":
        job.path.unlink()
    for number in range(20):
        if case != "no log":
            job.says("still reading\n" if case == "no steps" else f"step {number}\n")
        job.look()

    assert job.look(3600) == 0 and not Diagnosis.objects.exists()


def test_half_a_line_is_read_when_it_is_whole_and_a_log_that_was_cut_off_begins_anew(tmp_path):
    job = Logged(tmp_path)
    job.says("step 1\nste")
    job.look()
    assert Cadence.objects.get().read == len("step 1\n")

    job.says("p 2\n")
    job.look()
    assert list(Cadence.objects.get().furthest.values()) == [2] and len(Cadence.objects.get().moments) == 2

    job.path.write_text("step 1\n")
    job.look()
    assert list(Cadence.objects.get().furthest.values()) == [1] and len(Cadence.objects.get().moments) == 1


def test_a_log_that_grows_by_more_than_a_look_may_read_is_heard_at_its_end(tmp_path):
    job = Logged(tmp_path)
    job.steps(1)
    job.says("x" * 3_000_000 + "\nstep 9\n")
    job.look()

    assert list(Cadence.objects.get().furthest.values()) == [9]


def test_one_log_that_breaks_leaves_the_others_alone_and_ended_ones_are_forgotten(tmp_path):
    broken, job = Logged(tmp_path), Logged(tmp_path, on=("seren-003", "seren-004"))
    Cadence.objects.create(attempt=broken.attempt, looked_at=broken.now, sections=[{"nonsense": 1}])
    broken.says("step 1\n")
    job.says("step 1\n")
    job.look()
    assert Cadence.objects.get(attempt=job.attempt).moments

    job_actions.finish(job.attempt, AttemptEnd(state=State.COMPLETED, at=job.now, exit_code=0), author=rows.LOOP)
    job.look()
    assert not Cadence.objects.filter(attempt=job.attempt).exists()


def test_who_was_looked_at_goes_to_the_end_of_the_line_whatever_was_there(db):
    attempt = rows.attempt(rows.job(kind="pretrain"))

    for _ in range(2):
        log_progress.mark_looked_at([attempt], clock.now())

    assert Cadence.objects.get().attempt == attempt
