"""The loop that diagnoses every failed attempt."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.test import TransactionTestCase

from acmeweb.common.errors import StateConflict
from failures.actions import incidents as incident_actions
from failures.actions.incidents import DIAGNOSIS_AUTHOR
from failures.loops import diagnose
from failures.loops.diagnose import diagnose_once
from failures.models import Diagnosis, Incident
from failures.queries import diagnose_attempt
from failures.queries.diagnose_attempt import ReadBudget
from jobs.actions.jobs import cancel
from jobs.core.attempt_end import AttemptEnd
from jobs.core.lifecycle import State
from jobs.logs.storage import StorageUnresponsive
from jobs.models import Attempt, Checkpoint, Event, clock
from tests import make as rows
from tests.failures import make
from tests.jobs.logs.blocking import silent

pytestmark = pytest.mark.django_db


def turn(**how):
    return diagnose_once(clock.now(), **how)


def note():
    incident_actions.add_missing_diagnoses(clock.now() - timedelta(hours=1), clock.now())


def due_now():
    Diagnosis.objects.filter(bundle_stored_at=None).update(due_at=clock.now() - timedelta(seconds=1))


# --- who is eligible, and in which order


@pytest.mark.parametrize("state", ["FAILED", "TIMEOUT", "OUT_OF_MEMORY", "DEADLINE"])
def test_every_failed_attempt_gets_a_verdict(tmp_path, state):
    attempt = make.failed(tmp_path, state=state)

    turn()

    assert make.of(attempt).judged_at


def test_earlier_of_two_simultaneous_failures_is_diagnosed_first(tmp_path):
    attempts = [make.failed(tmp_path, on=(node,)) for node in ("seren-001", "seren-002")]
    note()
    due = make.of(attempts[0]).due_at
    for moment in (due + timedelta(seconds=1), due):  # written again, its row lies behind the other's
        Diagnosis.objects.filter(attempt=attempts[0]).update(due_at=moment)

    assert [incident_actions.claim(clock.now()).attempt for _ in attempts] == attempts


def test_requeued_attempt_is_diagnosed_after_a_node_failure(tmp_path):
    attempt = make.failed(tmp_path, "step 1\n", state="NODE_FAIL")

    turn()

    assert attempt.job.state == State.PENDING
    assert make.of(attempt).root_cause == "SlurmNodeFail"


def test_successful_or_stopped_attempts_are_not_diagnosed(tmp_path):
    make.cluster(tmp_path)
    rows.ended()
    stopped = rows.running(rows.job(gpus_per_node=1))
    cancel(stopped.job, author=rows.author())
    from jobs.actions import jobs

    jobs.finish(stopped, AttemptEnd(state=State.FAILED, at=clock.now(), exit_code=1), author=rows.LOOP)

    assert turn() == 0
    assert not Diagnosis.objects.exists()


def test_old_failures_are_left_to_the_sweep(tmp_path):
    attempt = make.failed(tmp_path)
    Attempt.objects.update(ended_at=clock.now() - timedelta(hours=5))

    assert turn() == 0
    assert turn(since=diagnose.ALL_FAILURES) == 2
    assert make.of(attempt).root_cause == "TypeError"


def test_verdicts_come_before_bundles(tmp_path):
    first, second = make.failed(tmp_path), make.failed(tmp_path)
    done = []

    def judge(attempt):
        done.append(("verdict", attempt.pk))
        return diagnose_attempt.judge_attempt(attempt)

    turn(judge=judge, bundle=lambda attempt: done.append(("bundle", attempt.pk)) or "")

    assert done == [("verdict", first.pk), ("verdict", second.pk), ("bundle", first.pk), ("bundle", second.pk)]


# --- the happy path


def test_verdict_has_evidence_chain_and_action(tmp_path):
    row = make.diagnosed(tmp_path, "loading\n" + make.TYPO)

    assert (row.root_cause, row.engine_root_cause, row.category) == ("TypeError", "TypeError", "Script")
    assert row.evidence[0]["line"] == 5
    assert row.chain[0]["role"] == "initiating"
    assert (row.restart_helps, bool(row.action), row.engine) == ("no", True, "signature")
    assert row.rules_version
    assert row.confidence > 0.5


def test_bundle_is_stored_compressed_and_small(tmp_path):
    noise = "".join(f"unusual {n:x} thing {'x' * (n % 90)}\n" for n in range(20_000))
    row = make.diagnosed(tmp_path, noise + make.TYPO)

    assert row.bundle_stored_at
    assert 0 < row.bundle_size <= 64 << 10
    assert len(row.bundle) < row.bundle_size
    assert "TypeError" in row.bundle_text


def test_same_log_gives_the_same_diagnosis(tmp_path):
    one, other = make.diagnosed(tmp_path), make.diagnosed(tmp_path)

    for name in ("root_cause", "confidence", "evidence", "chain", "alternatives", "rules_version"):
        assert getattr(one, name) == getattr(other, name)


def test_each_verdict_is_an_event_of_its_job(tmp_path):
    row = make.diagnosed(tmp_path)

    event = Event.objects.filter(job=row.attempt.job, type="diagnosis.created").get()
    assert (event.by, event.to_state, event.attempt_id) == (DIAGNOSIS_AUTHOR.by, "TypeError", row.attempt_id)


def test_lost_work_is_counted_since_the_last_checkpoint(tmp_path):
    attempt = make.failed(tmp_path, ran=timedelta(hours=2))
    Checkpoint.objects.create(
        job=attempt.job, attempt=attempt, step=1, path="/c/1", saved_at=attempt.ended_at - timedelta(minutes=30)
    )

    turn()

    row = make.of(attempt)
    assert row.gpu_hours == pytest.approx(16, abs=0.01)  # the clock of the database goes on meanwhile
    assert row.gpu_hours_lost == pytest.approx(4)
    assert row.incident.gpu_hours_lost == pytest.approx(4)


def test_second_run_finds_no_work(tmp_path):
    make.diagnosed(tmp_path)
    events = Event.objects.count()

    assert turn() == 0
    assert (Event.objects.count(), Diagnosis.objects.count(), Incident.objects.count()) == (events, 1, 1)


# --- logs that are not there, or break


@pytest.mark.parametrize("path", ["", "gone.log", "../outside.log", "/etc/passwd"])
def test_cause_is_unknown_with_a_reason_if_there_is_no_log(tmp_path, path):
    attempt = make.failed(tmp_path, None)
    Attempt.objects.filter(pk=attempt.pk).update(log_path=path)

    turn()
    due_now()
    turn()

    row = make.of(attempt)
    assert row.root_cause == "Unknown"
    assert row.notes[0].endswith(".")
    assert row.bundle_text == ""


def test_log_that_does_not_exist_yet_is_read_later(tmp_path):
    attempt = make.failed(tmp_path, None)

    turn()
    assert make.of(attempt).judged_at is None
    (tmp_path / attempt.log_path).write_text(make.TYPO)
    due_now()
    turn()

    assert make.of(attempt).root_cause == "TypeError"


def test_log_on_unresponsive_storage_is_read_later(tmp_path):
    attempt = make.failed(tmp_path)
    with silent(tmp_path, tmp_path / "hangs"):
        turn()
        row = make.of(attempt)
    assert (row.judged_at, row.tries) == (None, 1)
    assert "does not answer" in row.last_error

    due_now()
    turn()

    assert make.of(attempt).root_cause == "TypeError"


def test_unresponsive_storage_gives_a_verdict_without_log_after_three_tries(tmp_path):
    attempt = make.failed(tmp_path)
    with silent(tmp_path, tmp_path / "hangs"):
        for _ in range(3):
            turn()
            due_now()

    row = make.of(attempt)
    assert row.judged_at and "does not answer" in row.notes[0]


def test_unresponsive_storage_does_not_store_an_empty_bundle(tmp_path):
    attempt = make.failed(tmp_path)
    with silent(tmp_path, tmp_path / "hangs"), pytest.raises(StorageUnresponsive):
        diagnose_attempt.build_bundle(attempt)


@pytest.mark.parametrize(
    "raw",
    [b"", b"\x00" * 5000, b"\xff\xfe broken \x80\n" * 50, b"PK\x03\x04" + bytes(range(256)) * 40, b"x" * 3_000_000],
    ids=["empty", "NULs", "broken UTF-8", "a zip", "one long line"],
)
def test_malformed_logs_get_a_diagnosis(tmp_path, raw):
    row = make.diagnosed(tmp_path, raw)

    assert row.root_cause == "Unknown"
    assert row.bundle_stored_at


def test_characters_that_postgresql_rejects_are_replaced(tmp_path):
    row = make.diagnosed(tmp_path, b"TypeError: a\x00b \xed\xa0\x80\n" + make.TYPO.encode())

    assert row.root_cause == "TypeError"


def test_exit_code_and_signal_are_evidence(tmp_path):
    attempt = make.failed(tmp_path, "working\n", exit_code=137)

    turn()

    assert make.of(attempt).root_cause == "HostOOMKilled"


# --- one row blows up, and the rest go on


def poisoned(attempt):
    raise RuntimeError("this log is poison")


def test_failing_log_does_not_stop_the_others(tmp_path):
    bad, good = make.failed(tmp_path), make.failed(tmp_path)

    turn(judge=lambda one: poisoned(one) if one.pk == bad.pk else diagnose_attempt.judge_attempt(one))

    assert make.of(good).root_cause == "TypeError"
    row = make.of(bad)
    assert (row.judged_at, row.tries, row.last_error) == (None, 1, "RuntimeError: this log is poison")
    assert row.due_at > clock.now()


def test_log_that_fails_three_times_is_unknown_with_the_reason(tmp_path):
    attempt = make.failed(tmp_path)

    for _ in range(4):
        turn(judge=poisoned)
        due_now()

    row = make.of(attempt)
    assert row.root_cause == "Unknown"
    assert "could not be read in 3 attempts: RuntimeError: this log is poison" in row.notes[0]


def test_log_during_which_the_worker_was_ended_twice_is_not_read_again(tmp_path):
    attempt = make.failed(tmp_path, state="NODE_FAIL")
    note()
    for _ in range(2):
        incident_actions.claim(clock.now())
        due_now()

    turn(judge=poisoned)

    row = make.of(attempt)
    assert (row.root_cause, row.lines) == ("SlurmNodeFail", 0)
    assert "The log was not read: the worker was ended 2 times while it read the log." in row.notes


class Timer:
    """A clock that goes on by one second whenever it is read."""

    def __init__(self):
        self.now = 0

    def __call__(self):
        self.now += 1
        return self.now


def long_log(first="", last=""):
    return f"{first}\n" + "a line without meaning\n" * 400_000 + f"{last}\n"


@pytest.mark.parametrize(
    ("first", "last", "label", "used"),
    [
        ("", make.TYPO, "TypeError", "the last 4.19 MB, from which its lines are counted"),
        (make.TYPO, "", "TypeError", "the first 0.786 MB"),
        (make.TYPO, make.XID, "GPUFallenOffBus", "the last 4.19 MB, from which its lines are counted"),
        ("", "", "Unknown", "the last 4.19 MB, from which its lines are counted"),
    ],
)
def test_log_that_is_not_read_in_time_is_judged_by_its_ends(tmp_path, first, last, label, used):
    attempt = make.failed(tmp_path, long_log(first, last))

    verdict = diagnose_attempt.judge_attempt(attempt, ReadBudget(8.0, Timer())).verdict

    assert verdict.root_cause == label
    assert f"The log was not read to its end within 8 s; the verdict uses {used}." in verdict.notes


def test_log_that_is_read_in_time_is_judged_as_a_whole(tmp_path):
    attempt = make.failed(tmp_path, long_log(last=make.TYPO))

    verdict = diagnose_attempt.judge_attempt(attempt, ReadBudget(500.0, Timer())).verdict

    assert (verdict.root_cause, verdict.lines) == ("TypeError", 400_000 + 6)
    assert not any("was not read to its end" in note for note in verdict.notes)


def test_bundle_that_takes_too_long_has_what_was_read_in_time(tmp_path):
    attempt = make.failed(tmp_path, long_log(first=make.TYPO, last=make.XID))

    bundle = diagnose_attempt.build_bundle(attempt, budget=ReadBudget(8.0, Timer()))

    assert "TypeError" in bundle and "fallen off the bus" in bundle


def test_failing_bundle_keeps_the_verdict(tmp_path):
    attempt = make.failed(tmp_path)

    for _ in range(5):
        turn(bundle=poisoned)
        due_now()

    row = make.of(attempt)
    assert (row.root_cause, row.bundle_size) == ("TypeError", 0)
    assert row.bundle_stored_at


# --- concurrent changes of the row


def test_worker_with_an_expired_lease_writes_nothing(tmp_path):
    attempt = make.failed(tmp_path)
    note()
    asleep = incident_actions.claim(clock.now())
    due_now()
    turn()
    result = diagnose_attempt.judge_attempt(attempt)

    with pytest.raises(StateConflict), transaction.atomic():
        incident_actions.record_verdict(asleep, result.verdict, result.cost, result.first_symptom_at, clock.now())

    assert Event.objects.filter(type="diagnosis.created").count() == 1
    assert Incident.objects.get().attempts == 1


def test_row_claimed_by_one_worker_is_not_claimed_by_another(tmp_path):
    make.failed(tmp_path)
    note()

    assert incident_actions.claim(clock.now())
    assert incident_actions.claim(clock.now()) is None


def test_bundles_never_occupy_all_workers(tmp_path):
    for _ in range(2):
        make.failed(tmp_path)
    turn(bundle=poisoned)  # both have verdicts, and a bundle that failed
    due_now()

    held = incident_actions.claim(clock.now())
    assert held.judged_at
    assert incident_actions.claim(clock.now()) is None
    late = make.failed(tmp_path)
    note()
    assert incident_actions.claim(clock.now()).attempt == late


def test_killed_worker_loses_nothing(tmp_path):
    attempt = make.failed(tmp_path)

    class Killed(BaseException):
        pass

    def dies(_):
        raise Killed

    with pytest.raises(Killed):
        turn(judge=dies)
    assert turn() == 0  # its lease still holds
    due_now()

    assert turn() == 2
    assert make.of(attempt).root_cause == "TypeError"


def test_bundle_lines_are_numbered_as_in_the_whole_log(tmp_path):
    attempt = make.failed(tmp_path, "".join(f"line {n}\n" for n in range(1, 200_001)) + make.TYPO)

    text = diagnose_attempt.build_bundle(attempt, most=300_000)

    assert "@200004 | TypeError" in text


def test_attempt_gets_the_cause_from_verdict_and_correction(tmp_path):
    row = make.diagnosed(tmp_path, state=State.NODE_FAIL, exit_code=None)
    cause = Attempt.objects.values_list("cause", flat=True)
    assert cause.get() == row.root_cause == "TypeError"

    incident_actions.correct_verdict(row, "ECCError", author=rows.author(), now=clock.now())
    assert cause.get() == "ECCError"

    incident_actions.correct_verdict(row, "Unknown", author=rows.author(), now=clock.now())
    assert cause.get() == ""


@pytest.mark.parametrize("count", [3])
def test_turn_makes_a_fixed_number_of_queries_per_log(tmp_path, count, django_assert_max_num_queries):
    for _ in range(count):
        make.failed(tmp_path)

    with django_assert_max_num_queries(45 * count):
        turn()


class TwoWorkers(TransactionTestCase):
    def test_locked_row_is_skipped_without_waiting(self):
        import tempfile
        import threading
        from pathlib import Path

        make.failed(Path(tempfile.mkdtemp()))
        note()
        seen = []

        def other():
            seen.append(incident_actions.claim(clock.now()))
            connection.close()

        with transaction.atomic():
            list(Diagnosis.objects.select_for_update())
            worker = threading.Thread(target=other)
            worker.start()
            worker.join(20)

        self.assertEqual(seen, [None])
