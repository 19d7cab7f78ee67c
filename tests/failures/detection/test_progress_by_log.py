"""Steps of programs that report nothing, read from their logs into the same record: once each, whoever dies, and only
where nobody reports them."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext

from acmeweb.pages.home_trainings import running_trainings
from failures.loops.slow_steps import slow_steps_once
from failures.loops.watch import watch_once
from failures.models import Cadence, Diagnosis
from jobs.actions import jobs as job_actions
from jobs.actions import progress
from jobs.core.lifecycle import State
from jobs.models import Attempt, Checkpoint, Cluster, ClusterMode, Job, Progress, Pulse, TokenScope, clock
from scheduling.queries import ledger_facts
from tests import make as rows
from tests.failures import make
from tests.jobs.api.api_make import Caller
from tests.patience import PATIENCE_S, until

pytestmark = pytest.mark.django_db
LOOK = timedelta(seconds=15)
SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)
BEATS = [
    {"step": 1, "loss": 3.0, "at": datetime(2026, 1, 1, tzinfo=UTC)},
    {"tokens": 9, "at": datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC)},
    {"step": 2, "loss": 2.0, "at": datetime(2026, 1, 1, 0, 0, 2, tzinfo=UTC)},
]


class Printing:
    """A training that began ten seconds ago, and what it prints."""

    def __init__(self, root, ran=10 * SECOND, **asked):
        self.attempt = make.running(root, ran=ran, **{"kind": "pretrain", "on": ("seren-001",), **asked})
        Attempt.objects.filter(pk=self.attempt.pk).update(log_path=f"{self.attempt.key}.log")
        self.attempt.refresh_from_db()
        self.path, self.now = root / self.attempt.log_path, self.attempt.confirmed_at + ran
        self.path.touch()

    def says(self, *lines):
        with self.path.open("a") as log:
            log.writelines(f"{line}\n" for line in lines)
        return self.look()

    def look(self, after=LOOK):
        self.now += after
        return watch_once(self.now)

    @property
    def pulse(self):
        return Pulse.objects.filter(attempt=self.attempt).first()

    @property
    def steps(self):
        return list(Progress.objects.filter(attempt=self.attempt).order_by("at").values_list("step", "loss"))


def line(step, loss=2.5):
    return f"[rank0]: step {step:>7} | loss {loss} | grad norm 0.31 | lr 3e-4 | 0.5 s/step"


def test_each_look_writes_one_row_of_the_newest_step(tmp_path):
    job = Printing(tmp_path)
    job.says(*(line(step) for step in range(1, 31)))
    job.says(line(31, 2.4), line(32, 2.3))
    job.look()

    assert job.steps == [(30, 2.5), (32, 2.3)]
    pulse = job.pulse
    assert (pulse.step, pulse.loss, pulse.grad_norm, pulse.step_time_s, pulse.source) == (32, 2.3, 0.31, 0.5, "log")
    assert pulse.at == job.now - LOOK


def test_a_list_of_nodes_that_nobody_can_read_does_not_silence_the_log(tmp_path):
    job = Printing(tmp_path)
    Attempt.objects.filter(pk=job.attempt.pk).update(nodelist="seren-[001")
    job.says(line(40))

    assert job.steps == [(40, 2.5)]


def test_lines_of_many_ranks_are_one_step(tmp_path):
    job = Printing(tmp_path)
    job.says(*(f"[rank{rank}]: step: 8  loss:  2.5" for rank in range(8)))
    job.says(*(f"[rank{rank}]: step: 8  loss:  2.5" for rank in range(8)))

    assert job.steps == [(8, 2.5)]


@pytest.mark.parametrize("lost", ["nothing", "place", "file"])
def test_a_reader_that_begins_anew_tells_nothing_twice(tmp_path, lost):
    job = Printing(tmp_path)
    job.says(line(40))
    if lost == "place":
        Cadence.objects.all().delete()
    if lost == "file":
        job.path.write_text("")
        job.says(line(3))
    job.look()
    job.says(line(41))

    assert job.steps == [(40, 2.5), (41, 2.5)]


def test_a_program_that_went_back_in_the_same_attempt_is_followed(tmp_path):
    job = Printing(tmp_path)
    job.says(line(900))
    job.says(line(500))

    assert job.pulse.step == 500


def test_whoever_reports_steps_is_not_read(tmp_path):
    job = Printing(tmp_path)
    progress.record_attempt_heartbeats(job.attempt.key, [{"step": 7, "loss": 3.0}])
    job.says(line(5000))

    assert job.pulse.step == 7 and job.pulse.source == ""
    assert [step for step, _ in job.steps] == [7]


def test_who_begins_to_report_takes_over_whatever_his_clock_says(tmp_path):
    job = Printing(tmp_path)
    job.says("step: 40/90 loss: 0.5", "checkpoint saved at step 40")
    progress.record_attempt_heartbeats(job.attempt.key, [{"step": 12, "at": clock.now() - HOUR}])

    pulse = job.pulse
    assert (pulse.step, pulse.steps_total, pulse.loss, pulse.source) == (12, None, None, "")
    assert job.steps == [(12, None)]  # detectors would compare what it reports with what was read
    job.says(line(41))
    assert job.pulse.step == 12


def test_who_takes_over_among_many_is_forgotten_alone_and_once(tmp_path):
    silent, job, other = (Printing(tmp_path, on=(f"seren-00{number}",)) for number in (1, 2, 3))
    silent.says(line(40))
    job.says(line(41))
    reports = {silent.attempt.key: [{"tokens": 9}], job.attempt.key: BEATS, other.attempt.key: BEATS}

    with CaptureQueriesContext(connection) as first:
        noted = progress.record_heartbeats(reports)
    with CaptureQueriesContext(connection) as again:
        progress.record_heartbeats(reports)

    assert {key: one.rows for key, one in noted.items()} == {key: len(beats) for key, beats in reports.items()}
    assert job.steps == other.steps == [(1, 3.0), (None, None), (2, 2.0)]
    assert [one.pulse.source for one in (silent, job, other)] == ["log", "", ""]
    assert (40, 2.5) in silent.steps and silent.pulse.step == 40
    assert len(again) == 1 < len(first)


def somebody_waits():
    """For a row that this session has changed."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid() = ANY(pg_blocking_pids(pid)) FROM pg_locks WHERE NOT granted")
        return any(row[0] for row in cursor.fetchall())


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("first", ["log", "report"])
def test_a_step_that_is_read_while_he_takes_over_does_not_survive_it(tmp_path, first):
    job = Printing(tmp_path)
    job.says(line(40))
    has_written = threading.Event()

    def read():
        progress.record_log_step(job.attempt.pk, {"step": 41, "at": job.now}, total=None, is_late=False)

    def report():
        progress.record_attempt_heartbeats(job.attempt.key, BEATS)

    def slowly(write):
        with transaction.atomic():
            write()
            has_written.set()
            until(somebody_waits)
        connection.close()

    begins, follows = (read, report) if first == "log" else (report, read)
    thread = threading.Thread(target=slowly, args=[begins], daemon=True)
    thread.start()
    assert has_written.wait(PATIENCE_S)
    follows()
    thread.join(PATIENCE_S)

    assert job.steps == [(1, 3.0), (None, None), (2, 2.0)]
    assert (job.pulse.step, job.pulse.source) == (2, "")


def test_whose_report_comes_after_his_end_keeps_what_his_log_told(tmp_path):
    job = Printing(tmp_path)
    job.says(line(40))
    make.end(tmp_path, job.attempt, job.path.read_text(), state=State.COMPLETED, exit_code=0)

    assert progress.record_attempt_heartbeats(job.attempt.key, BEATS) is None
    assert (job.steps, job.pulse.step, job.pulse.source) == ([(40, 2.5)], 40, "log")


def test_a_total_goes_with_steps_that_may_be_of_it(tmp_path):
    job = Printing(tmp_path)
    totals = [job.says(f"step: {said} loss: 2.5") or job.pulse.steps_total for said in ("4/9", "8", "12", "13/20")]

    assert totals == [9, 9, None, 20]


def test_what_was_printed_before_the_end_is_heard_after_it(tmp_path):
    job = Printing(tmp_path)
    job.says(line(40))
    with job.path.open("a") as log:
        log.write(f"{line(55)}\nsaved checkpoint at step 50\n")
    ended = make.end(tmp_path, job.attempt, job.path.read_text(), state=State.COMPLETED, exit_code=0).ended_at
    job.look()
    job.look()

    assert sorted(step for step, _ in job.steps) == [40, 55]
    assert (job.pulse.step, job.pulse.saved_step, job.pulse.at) == (55, 50, ended)
    assert not Cadence.objects.exists()


def test_a_log_that_could_not_be_read_for_long_dates_no_first_step(tmp_path):
    job = Printing(tmp_path)
    job.path.unlink()
    job.look()
    job.path.touch()
    job.now += HOUR
    job.says(line(900), "checkpoint saved at step 900")

    assert (job.pulse.source, job.pulse.saved_at) == ("late", None)


def test_a_report_without_a_step_leaves_the_steps_to_the_log(tmp_path):
    job = Printing(tmp_path)
    job.says(line(40))
    progress.record_attempt_heartbeats(job.attempt.key, [{"tokens": 9000}])
    job.says(line(41))

    assert (job.pulse.step, job.pulse.source) == (41, "log")


def test_a_bar_that_never_ends_its_line_is_read(tmp_path):
    job = Printing(tmp_path)
    with job.path.open("a") as log:
        log.write("Epoch 0:   1%|1    | 7/900 [00:07<15:00,  1.00s/it, v_num=1, train_loss=2.50]\r")
    job.look()

    assert job.steps == [(7, 2.5)]


def test_a_checkpoint_it_tells_of_is_dated_to_the_look_before_and_is_no_checkpoint(tmp_path):
    job = Printing(tmp_path)
    job.says(line(40))
    job.says("successfully saved checkpoint from iteration 40 to /ckpt/run [ t 1/8 ]")

    pulse = job.pulse
    assert (pulse.saved_step, pulse.saved_path, pulse.saved_at) == (40, "/ckpt/run", job.now - LOOK)
    assert not Checkpoint.objects.exists()


@pytest.mark.parametrize("asked", [{"labels": {"acme-recovery": "off"}}, {"requeue_limit": 0}, {"foreign_id": "77"}])
def test_those_whom_recovery_leaves_alone_are_read_and_not_judged(tmp_path, asked):
    job = Printing(tmp_path)
    Job.objects.filter(pk=job.attempt.job_id).update(**asked)
    Cluster.objects.update(mode=ClusterMode.OBSERVE if "foreign_id" in asked else ClusterMode.DRIVE)
    for step in range(20):
        job.says(line(step))

    assert job.look(HOUR) == 0 and not Diagnosis.objects.exists()
    assert job.pulse.step == 19


def test_a_debug_job_is_no_training_and_is_not_read(tmp_path):
    job = Printing(tmp_path, kind="debug")
    job.says(line(40))

    assert job.pulse is None


def test_a_file_that_an_earlier_attempt_wrote_tells_nothing_of_this_one_at_first(tmp_path):
    job = Printing(tmp_path)
    key, path = job.attempt.key + "-0", job.attempt.log_path
    Attempt.objects.create(job=job.attempt.job, number=9, key=key, log_path=path, state="FAILED", ended_at=job.now)
    job.says(line(9000))
    assert job.pulse is None

    job.says(line(3))
    assert job.pulse.step == 3


def test_a_hang_is_told_by_the_log_s_own_cadence_and_passes_with_its_next_step(tmp_path):
    job = Printing(tmp_path)
    for step in range(20):
        job.says(line(step))

    assert job.look(40 * SECOND) == 0  # thirty seconds would be patience enough with one who reports
    assert job.look(60 * SECOND) == 1 and Diagnosis.objects.get().root_cause == "Hang"
    assert job.says(line(21)) == 1
    assert not Diagnosis.objects.exists()


def test_figures_from_a_log_make_nobody_slow_and_end_no_job(tmp_path):
    job = Printing(tmp_path)
    for step in range(60):
        job.says(
            line(step, loss=2.5 if step < 40 else "nan").replace("0.5 s/step", "9 s/step" if step > 40 else "1 s/step")
        )

    assert slow_steps_once(job.now) == 0
    assert not Diagnosis.objects.exists()
    assert job.pulse.loss != job.pulse.loss  # it is shown, and said aloud


def test_steps_from_a_log_hold_no_job_back_as_a_crash_loop(tmp_path):
    job = Printing(tmp_path)
    job.says(line(40))
    Attempt.objects.filter(pk=job.attempt.pk).update(state=State.FAILED, ended_at=job.now)
    job.attempt.refresh_from_db()

    assert job_actions.attempt_history(job.attempt)[-1].step is None


def test_the_first_step_in_a_log_ends_the_start_up_unless_the_log_was_met_in_its_middle(tmp_path):
    new, old = Printing(tmp_path), Printing(tmp_path, on=("seren-002",), ran=2 * HOUR)
    Attempt.objects.update(promised_at=new.now - 2 * HOUR)
    old.path.write_text(f"{line(40)}\ncheckpoint saved at step 40\n")
    new.says(line(40), "checkpoint saved at step 40")

    shares = ledger_facts.job_ettr([new.attempt.job_id, old.attempt.job_id], new.now + 2 * HOUR)

    assert shares[new.attempt.job_id] == pytest.approx(0.5, abs=0.01)
    assert shares[old.attempt.job_id] == pytest.approx(1, abs=0.01)
    assert (old.pulse.source, old.pulse.step, old.pulse.saved_at) == ("late", 40, None)
    assert (new.pulse.source, new.pulse.saved_step) == ("log", 40)


def test_the_first_page_and_the_job_s_page_show_what_the_log_tells(tmp_path):
    job = Printing(tmp_path)
    for number in range(6):
        job.says(f"iteration {number * 10 + 10}/ 5000 | lm loss: {3 - number / 10:.1f} | learning rate: 1e-4")
    job.says("saved checkpoint to /ckpt/<b>/iter_0000060")
    client = Client()
    client.force_login(rows.user("ada"))

    (one,) = running_trainings(Job.objects.visible_to(rows.user("ada")), job.now)
    first = client.get("/").content.decode()
    panel = client.get(f"/jobs/{one.job}/", headers={"HX-Request": "true", "HX-Target": "section#progress"})

    assert len(one.line.split()) == 6 and one.ettr is not None and one.at_risk_since == job.now - LOOK
    assert "of 5,000" in first and "nobody has looked whether it is whole" in first and "/ckpt/<b>" not in first
    text = panel.content.decode()
    assert "read from its log" in text and "step 60," in text.split("checkpoint by its log")[1]


def test_the_door_says_who_told_the_steps(tmp_path):
    job = Printing(tmp_path)
    job.says(line(40))

    told = Caller(rows.user("ada"), TokenScope.READ).get(f"jobs/{job.attempt.job}/progress/").json()

    assert (told["source"], told["newest"]["step"], len(told["points"])) == ("log", 40, 1)
