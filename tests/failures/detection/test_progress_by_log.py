"""Steps read from the logs of jobs that do not report them: stored once each, and only without reported steps."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext

from acmeweb.pages.home_trainings import running_trainings
from failures.loops.follow import follow_once
from failures.loops.slow_steps import slow_steps_once
from failures.loops.watch import watch_once
from failures.models import Diagnosis, LogReadState
from jobs.actions import jobs as job_actions
from jobs.actions import progress
from jobs.core.lifecycle import State
from jobs.models import Attempt, Checkpoint, Cluster, ClusterMode, Job, LatestProgress, Progress, TokenScope, clock
from scheduling.ledger.reads import facts as ledger_facts
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


class PrintingJob:
    """A running training job that started ten seconds ago, with functions to write its log."""

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
        follow_once(self.now)
        return watch_once(self.now)

    @property
    def latest_progress(self):
        return LatestProgress.objects.filter(attempt=self.attempt).first()

    @property
    def steps(self):
        return list(Progress.objects.filter(attempt=self.attempt).order_by("at").values_list("step", "loss"))


def line(step, loss=2.5):
    return f"[rank0]: step {step:>7} | loss {loss} | grad norm 0.31 | lr 3e-4 | 0.5 s/step"


def test_each_look_stores_one_row_for_the_newest_step(tmp_path):
    job = PrintingJob(tmp_path)
    job.says(*(line(step) for step in range(1, 31)))
    job.says(line(31, 2.4), line(32, 2.3))
    job.look()

    assert job.steps == [(30, 2.5), (32, 2.3)]
    latest = job.latest_progress
    assert (
        latest.step,
        latest.loss,
        latest.grad_norm,
        latest.step_time_s,
        latest.source,
    ) == (32, 2.3, 0.31, 0.5, "log")
    assert latest.at == job.now - LOOK


def test_unreadable_node_list_does_not_stop_the_log_reader(tmp_path):
    job = PrintingJob(tmp_path)
    Attempt.objects.filter(pk=job.attempt.pk).update(nodelist="seren-[001")
    job.says(line(40))

    assert job.steps == [(40, 2.5)]


def test_lines_of_many_ranks_count_as_one_step(tmp_path):
    job = PrintingJob(tmp_path)
    job.says(*(f"[rank{rank}]: step: 8  loss:  2.5" for rank in range(8)))
    job.says(*(f"[rank{rank}]: step: 8  loss:  2.5" for rank in range(8)))

    assert job.steps == [(8, 2.5)]


@pytest.mark.parametrize("lost", ["nothing", "place", "file"])
def test_restarted_reader_stores_no_step_twice(tmp_path, lost):
    job = PrintingJob(tmp_path)
    job.says(line(40))
    if lost == "place":
        LogReadState.objects.all().delete()
    if lost == "file":
        job.path.write_text("")
        job.says(line(3))
    job.look()
    job.says(line(41))

    assert job.steps == [(40, 2.5), (41, 2.5)]


def test_step_goes_back_when_the_program_goes_back(tmp_path):
    job = PrintingJob(tmp_path)
    job.says(line(900))
    job.says(line(500))

    assert job.latest_progress.step == 500


def test_log_of_a_job_that_reports_steps_is_not_read(tmp_path):
    job = PrintingJob(tmp_path)
    progress.record_attempt_heartbeats(job.attempt.key, [{"step": 7, "loss": 3.0}])
    job.says(line(5000))

    assert job.latest_progress.step == 7 and job.latest_progress.source == ""
    assert [step for step, _ in job.steps] == [7]


def test_reported_steps_replace_steps_from_the_log_whatever_their_time(tmp_path):
    job = PrintingJob(tmp_path)
    job.says("step: 40/90 loss: 0.5", "checkpoint saved at step 40")
    progress.record_attempt_heartbeats(job.attempt.key, [{"step": 12, "at": clock.now() - HOUR}])

    latest = job.latest_progress
    assert (latest.step, latest.steps_total, latest.loss, latest.source) == (
        12,
        None,
        None,
        "",
    )
    assert job.steps == [(12, None)]  # otherwise detectors would compare reported steps with steps from the log
    job.says(line(41))
    assert job.latest_progress.step == 12


def test_steps_from_the_log_are_deleted_only_for_jobs_that_report(tmp_path):
    silent, job, other = (PrintingJob(tmp_path, on=(f"seren-00{number}",)) for number in (1, 2, 3))
    silent.says(line(40))
    job.now = silent.now
    job.says(line(41))
    reports = {silent.attempt.key: [{"tokens": 9}], job.attempt.key: BEATS, other.attempt.key: BEATS}

    with CaptureQueriesContext(connection) as first:
        noted = progress.record_heartbeats(reports)
    with CaptureQueriesContext(connection) as again:
        progress.record_heartbeats(reports)

    assert {key: one.rows for key, one in noted.items()} == {key: len(beats) for key, beats in reports.items()}
    assert job.steps == other.steps == [(1, 3.0), (None, None), (2, 2.0)]
    assert [one.latest_progress.source for one in (silent, job, other)] == ["log", "", ""]
    assert (40, 2.5) in silent.steps and silent.latest_progress.step == 40
    assert len(again) == 1 < len(first)


def another_session_waits():
    """Whether another session waits for a row that this session has changed."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid() = ANY(pg_blocking_pids(pid)) FROM pg_locks WHERE NOT granted")
        return any(row[0] for row in cursor.fetchall())


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("first", ["log", "report"])
def test_step_read_during_the_first_report_is_discarded(tmp_path, first):
    job = PrintingJob(tmp_path)
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
            until(another_session_waits)
        connection.close()

    begins, follows = (read, report) if first == "log" else (report, read)
    thread = threading.Thread(target=slowly, args=[begins], daemon=True)
    thread.start()
    assert has_written.wait(PATIENCE_S)
    follows()
    thread.join(PATIENCE_S)

    assert job.steps == [(1, 3.0), (None, None), (2, 2.0)]
    assert (job.latest_progress.step, job.latest_progress.source) == (2, "")


def test_report_after_the_end_keeps_the_steps_from_the_log(tmp_path):
    job = PrintingJob(tmp_path)
    job.says(line(40))
    make.end(tmp_path, job.attempt, job.path.read_text(), state=State.COMPLETED, exit_code=0)

    assert progress.record_attempt_heartbeats(job.attempt.key, BEATS) is None
    assert (job.steps, job.latest_progress.step, job.latest_progress.source) == ([(40, 2.5)], 40, "log")


def test_step_total_is_dropped_when_a_step_exceeds_it(tmp_path):
    job = PrintingJob(tmp_path)
    totals = [
        job.says(f"step: {step} loss: 2.5") or job.latest_progress.steps_total for step in ("4/9", "8", "12", "13/20")
    ]

    assert totals == [9, 9, None, 20]


def test_lines_printed_before_the_end_are_read_after_it(tmp_path):
    job = PrintingJob(tmp_path)
    job.says(line(40))
    with job.path.open("a") as log:
        log.write(f"{line(55)}\nsaved checkpoint at step 50\n")
    ended = make.end(tmp_path, job.attempt, job.path.read_text(), state=State.COMPLETED, exit_code=0).ended_at
    job.look()
    job.look()

    assert sorted(step for step, _ in job.steps) == [40, 55]
    assert (job.latest_progress.step, job.latest_progress.saved_step, job.latest_progress.at) == (55, 50, ended)
    assert not LogReadState.objects.exists()


def test_last_line_of_an_ended_attempt_is_read_without_a_newline(tmp_path):
    job = PrintingJob(tmp_path)
    job.says(line(40))
    make.end(tmp_path, job.attempt, f"{line(40)}\n{line(41)}", state=State.COMPLETED, exit_code=0)
    job.look()

    assert job.latest_progress.step == 41


@pytest.mark.parametrize(("after", "step"), [(5 * 60 * SECOND, 55), (11 * 60 * SECOND, 40)])
def test_rest_of_an_unreadable_log_is_tried_for_ten_minutes(tmp_path, after, step):
    job = PrintingJob(tmp_path)
    job.says(line(40))
    make.end(tmp_path, job.attempt, f"{line(40)}\n{line(55)}\n", state=State.COMPLETED, exit_code=0)
    away = job.path.rename(tmp_path / "away")
    job.look()
    away.rename(job.path)
    job.look(after)

    assert job.latest_progress.step == step
    assert LogReadState.objects.filter(cadence__isnull=False).count() == 0


def test_log_that_was_unreadable_for_long_does_not_date_the_first_step(tmp_path):
    job = PrintingJob(tmp_path)
    job.path.unlink()
    job.look()
    job.path.touch()
    job.now += HOUR
    job.says(line(900), "checkpoint saved at step 900")

    assert (job.latest_progress.source, job.latest_progress.saved_at) == ("late", None)


def test_report_without_a_step_does_not_replace_steps_from_the_log(tmp_path):
    job = PrintingJob(tmp_path)
    job.says(line(40))
    progress.record_attempt_heartbeats(job.attempt.key, [{"tokens": 9000}])
    job.says(line(41))

    assert (job.latest_progress.step, job.latest_progress.source) == (41, "log")


def test_progress_bar_without_a_newline_is_read(tmp_path):
    job = PrintingJob(tmp_path)
    with job.path.open("a") as log:
        log.write("Epoch 0:   1%|1    | 7/900 [00:07<15:00,  1.00s/it, v_num=1, train_loss=2.50]\r")
    job.look()

    assert job.steps == [(7, 2.5)]


def test_checkpoint_in_the_log_is_dated_to_the_previous_look_and_not_stored(tmp_path):
    job = PrintingJob(tmp_path)
    job.says(line(40))
    job.says("successfully saved checkpoint from iteration 40 to /ckpt/run [ t 1/8 ]")

    latest = job.latest_progress
    assert (latest.saved_step, latest.saved_path, latest.saved_at) == (
        40,
        "/ckpt/run",
        job.now - LOOK,
    )
    assert not Checkpoint.objects.exists()


@pytest.mark.parametrize("asked", [{"labels": {"acme-recovery": "off"}}, {"requeue_limit": 0}, {"foreign_id": "77"}])
def test_jobs_excluded_from_recovery_are_read_but_not_diagnosed(tmp_path, asked):
    job = PrintingJob(tmp_path)
    Job.objects.filter(pk=job.attempt.job_id).update(**asked)
    Cluster.objects.update(mode=ClusterMode.OBSERVE if "foreign_id" in asked else ClusterMode.DRIVE)
    for step in range(20):
        job.says(line(step))

    assert job.look(HOUR) == 0 and not Diagnosis.objects.exists()
    assert job.latest_progress.step == 19


def test_log_of_a_debug_job_is_not_read(tmp_path):
    job = PrintingJob(tmp_path, kind="debug")
    job.says(line(40))

    assert job.latest_progress is None


def test_steps_of_an_earlier_attempt_in_the_same_file_are_ignored(tmp_path):
    job = PrintingJob(tmp_path)
    key, path = job.attempt.key + "-0", job.attempt.log_path
    Attempt.objects.create(job=job.attempt.job, number=9, key=key, log_path=path, state="FAILED", ended_at=job.now)
    job.says(line(9000))
    assert job.latest_progress is None

    job.says(line(3))
    assert job.latest_progress.step == 3


def test_hang_is_detected_from_the_log_and_ends_with_the_next_step(tmp_path):
    job = PrintingJob(tmp_path)
    for step in range(20):
        job.says(line(step))

    assert job.look(40 * SECOND) == 0  # for reported steps the limit would be thirty seconds
    assert job.look(60 * SECOND) == 1 and Diagnosis.objects.get().root_cause == "Hang"
    assert job.says(line(21)) == 1
    assert not Diagnosis.objects.exists()


def test_metrics_from_a_log_create_no_anomaly_and_no_diagnosis(tmp_path):
    job = PrintingJob(tmp_path)
    for step in range(60):
        job.says(
            line(step, loss=2.5 if step < 40 else "nan").replace("0.5 s/step", "9 s/step" if step > 40 else "1 s/step")
        )

    assert slow_steps_once(job.now) == 0
    assert not Diagnosis.objects.exists()
    assert job.latest_progress.loss != job.latest_progress.loss  # NaN is displayed


def test_steps_from_a_log_do_not_count_for_the_crash_loop_limit(tmp_path):
    job = PrintingJob(tmp_path)
    job.says(line(40))
    Attempt.objects.filter(pk=job.attempt.pk).update(state=State.FAILED, ended_at=job.now)
    job.attempt.refresh_from_db()

    assert job_actions.attempt_history(job.attempt)[-1].step is None


def test_first_step_in_a_log_ends_start_up_only_if_read_from_the_beginning(tmp_path):
    new, old = PrintingJob(tmp_path), PrintingJob(tmp_path, on=("seren-002",), ran=2 * HOUR)
    Attempt.objects.update(promised_at=new.now - 2 * HOUR)
    old.path.write_text(f"{line(40)}\ncheckpoint saved at step 40\n")
    new.says(line(40), "checkpoint saved at step 40")

    shares = ledger_facts.job_efficiency([new.attempt.job_id, old.attempt.job_id], new.now + 2 * HOUR)

    assert shares[new.attempt.job_id].ettr == pytest.approx(0.5, abs=0.01)
    assert shares[old.attempt.job_id].ettr == pytest.approx(1, abs=0.01)
    assert (old.latest_progress.source, old.latest_progress.step, old.latest_progress.saved_at) == ("late", 40, None)
    assert (new.latest_progress.source, new.latest_progress.saved_step) == ("log", 40)


def test_home_page_and_job_page_show_progress_from_the_log(tmp_path):
    job = PrintingJob(tmp_path)
    for number in range(6):
        job.says(f"iteration {number * 10 + 10}/ 5000 | lm loss: {3 - number / 10:.1f} | learning rate: 1e-4")
    job.says("saved checkpoint to /ckpt/<b>/iter_0000060")
    client = Client()
    client.force_login(rows.user("ada"))

    (one,) = running_trainings(Job.objects.visible_to(rows.user("ada")), job.now)
    first = client.get("/").content.decode()
    panel = client.get(f"/jobs/{one.job}/", headers={"HX-Request": "true", "HX-Target": "section#progress"})

    assert len(one.line.split()) == 6 and one.efficiency.ettr is not None and one.at_risk_since == job.now - LOOK
    assert "of 5,000" in first and "from the log (unverified)" in first and "/ckpt/<b>" not in first
    text = panel.content.decode()
    assert "read from log of the job" in text and "step 60," in text.split("last in log (unverified)")[1]


def test_api_returns_the_source_of_the_steps(tmp_path):
    job = PrintingJob(tmp_path)
    job.says(line(40))

    response = Caller(rows.user("ada"), TokenScope.READ).get(f"jobs/{job.attempt.job}/progress/").json()

    assert (response["source"], response["latest"]["step"], len(response["points"])) == ("log", 40, 1)
