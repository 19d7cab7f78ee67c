"""The loop that reads logs while they grow, and the diagnosis that continues from it."""

from __future__ import annotations

import gzip
import logging
from datetime import timedelta
from pathlib import Path

import pytest

from failures.actions import log_read_states as actions
from failures.loops.diagnose import diagnose_once
from failures.loops.follow import follow_once
from failures.models import Diagnosis, LogReadState
from failures.queries import diagnose_attempt
from failures.queries.log_resume import FollowPace
from jobs.models import Attempt, clock
from tests.failures import make

pytestmark = pytest.mark.django_db

STEPS = "".join(f"step {at} loss 2.{at} tokens/s 3000\n" for at in range(300))
NOW_AND_ALL = FollowPace(max_unread_bytes=1)


def turn(pace: FollowPace = NOW_AND_ALL) -> int:
    return follow_once(clock.now(), pace)


def running(root: Path) -> Attempt:
    """A running attempt on its own GPU."""
    return make.running(root, gpus_per_node=1, gpus=(Attempt.objects.count(),))


def writing(root: Path, text: str | bytes = STEPS) -> Attempt:
    """A running attempt whose log says this so far."""
    attempt = running(root)
    Attempt.objects.filter(pk=attempt.pk).update(log_path=f"{attempt.key}.log")
    attempt.refresh_from_db()
    write(root, attempt, text)
    return attempt


def write(root: Path, attempt: Attempt, text: str | bytes) -> None:
    with (root / attempt.log_path).open("ab") as log:
        log.write(text.encode() if isinstance(text, str) else text)


def due() -> None:
    LogReadState.objects.update(due_at=clock.now() - timedelta(seconds=1))


def ended(root: Path, attempt: Attempt, text: str = make.TYPO) -> Diagnosis:
    """Ends the attempt with this text in its log, and returns its diagnosis."""
    whole = (root / attempt.log_path).read_bytes() + text.encode()
    make.end(root, attempt, whole)
    diagnose_once(clock.now())
    return make.of(attempt)


# --- who is eligible


def test_only_running_attempts_with_a_log_are_followed(tmp_path):
    make.failed(tmp_path)
    here = writing(tmp_path)
    running(tmp_path)  # no output yet, so the path of the log is unknown

    turn()

    assert [row.attempt_id for row in LogReadState.objects.all()] == [here.pk]
    assert LogReadState.objects.get().read == len(STEPS)


def test_log_that_is_due_longest_is_read_first(tmp_path):
    first, second = writing(tmp_path), writing(tmp_path)
    actions.add_running_attempts(clock.now())
    LogReadState.objects.filter(pk=second.pk).update(due_at=clock.now() - timedelta(minutes=3))
    LogReadState.objects.filter(pk=first.pk).update(due_at=clock.now() - timedelta(minutes=2))

    assert actions.claim(clock.now()).pk == second.pk


def test_only_one_log_is_claimed_at_a_time(tmp_path):
    writing(tmp_path)
    writing(tmp_path)
    actions.add_running_attempts(clock.now())

    assert actions.claim(clock.now())
    assert actions.claim(clock.now()) is None


def test_followed_log_leaves_little_to_read_and_is_due_later(tmp_path):
    writing(tmp_path)

    turn(FollowPace())
    row = LogReadState.objects.get()

    assert (row.state, row.read, row.size) == (None, 0, len(STEPS))
    assert row.due_at > row.looked_at
    assert turn(FollowPace()) == 0


def test_faster_growing_log_is_read_sooner(tmp_path):
    slow, fast = writing(tmp_path), writing(tmp_path)
    turn(FollowPace())
    LogReadState.objects.update(looked_at=clock.now() - timedelta(minutes=1))
    write(tmp_path, fast, STEPS * 900)
    due()

    turn(FollowPace())

    rows = {row.attempt_id: row for row in LogReadState.objects.all()}
    assert rows[fast.pk].due_at < rows[slow.pk].due_at


def test_turn_reads_up_to_its_limit_and_the_next_continues(tmp_path):
    writing(tmp_path, STEPS * 20)
    half = FollowPace(max_unread_bytes=1, at_once=len(STEPS) * 10)
    actions.add_running_attempts(clock.now())

    from failures.loops.follow import _follow_row  # one step of the turn, which else goes on while there is time

    _follow_row(actions.claim(clock.now()), clock.now(), half)
    row = LogReadState.objects.get()
    assert row.read == len(STEPS) * 10
    assert row.due_at <= clock.now()

    turn(half)
    assert LogReadState.objects.get().read == len(STEPS) * 20


# --- what an end finds


def test_followed_log_gives_the_same_verdict_and_bundle(tmp_path):
    followed = writing(tmp_path, STEPS + make.XID + STEPS)
    turn()
    write(tmp_path, followed, STEPS)
    due()
    turn()
    row = ended(tmp_path, followed)
    alone = make.diagnosed(tmp_path, STEPS + make.XID + STEPS + STEPS + make.TYPO)

    same = ("root_cause", "confidence", "evidence", "chain", "alternatives", "lines", "size", "bundle_text")
    assert {name: getattr(row, name) for name in same} == {name: getattr(alone, name) for name in same}
    assert row.root_cause == "GPUFallenOffBus"


def test_diagnosis_reads_only_the_unread_part(tmp_path):
    attempt = writing(tmp_path, make.XID)
    turn()
    path = tmp_path / attempt.log_path
    seam = len(make.XID) - 64
    path.write_bytes(b"." * seam + path.read_bytes()[seam:])  # what was read is not looked at any more

    assert ended(tmp_path, attempt, "bye\n").root_cause == "GPUFallenOffBus"


def test_replaced_log_is_read_from_the_beginning(tmp_path):
    attempt = writing(tmp_path, make.XID)
    turn()
    (tmp_path / attempt.log_path).write_text("x" * len(make.XID) * 2 + "\n")
    due()
    turn()

    assert ended(tmp_path, attempt).root_cause == "TypeError"


def test_truncated_log_is_read_from_the_beginning(tmp_path):
    attempt = writing(tmp_path, STEPS + make.XID)
    turn()
    (tmp_path / attempt.log_path).write_text("step 1\n")

    assert ended(tmp_path, attempt).root_cause == "TypeError"


def test_compressed_log_is_read_only_at_the_end(tmp_path):
    attempt = writing(tmp_path, gzip.compress(make.XID.encode()))
    turn()

    assert LogReadState.objects.get().state is None
    assert ended(tmp_path, attempt, "").root_cause == "GPUFallenOffBus"


def test_follower_state_is_deleted_when_the_bundle_is_stored(tmp_path):
    attempt = writing(tmp_path)
    turn()

    ended(tmp_path, attempt)

    assert not LogReadState.objects.exists()


def test_state_of_successful_attempts_is_deleted_and_of_failed_ones_kept(tmp_path):
    well, badly = writing(tmp_path), writing(tmp_path)
    turn()
    make.end(tmp_path, well, STEPS, state="COMPLETED", exit_code=0)
    make.end(tmp_path, badly, STEPS)

    turn()

    assert [row.attempt_id for row in LogReadState.objects.all()] == [badly.pk]


# --- what goes wrong


def test_worker_with_an_expired_lease_writes_nothing(tmp_path):
    writing(tmp_path)
    actions.add_running_attempts(clock.now())
    asleep = actions.claim(clock.now())
    LogReadState.objects.update(claimed_until=clock.now() - timedelta(seconds=1))
    turn()

    late = actions.LogFollowResult(size=1, read=1, seam=b"s", state=b"stale", due_at=clock.now())

    assert not actions.save_diagnosis_position(asleep, late, clock.now())
    assert LogReadState.objects.get().read == len(STEPS)


def test_log_that_kills_three_workers_is_left_to_the_diagnosis(tmp_path):
    attempt = writing(tmp_path)
    actions.add_running_attempts(clock.now())
    for _ in range(3):
        assert actions.claim(clock.now())
        LogReadState.objects.update(claimed_until=clock.now() - timedelta(seconds=1))

    assert actions.claim(clock.now()) is None
    assert ended(tmp_path, attempt).root_cause == "TypeError"


def test_failing_log_does_not_stop_the_others(tmp_path, caplog):
    broken, whole = writing(tmp_path), writing(tmp_path)
    turn()
    LogReadState.objects.filter(pk=broken.pk).update(size=2**62, read=2**62)
    for attempt in (broken, whole):
        write(tmp_path, attempt, STEPS)
    due()

    with caplog.at_level(logging.CRITICAL, logger="failures.loops.follow"):
        turn()

    assert LogReadState.objects.get(pk=whole.pk).read == 2 * len(STEPS)


def test_unreadable_state_only_causes_a_second_read(tmp_path):
    attempt = writing(tmp_path, make.XID)
    turn()
    LogReadState.objects.update(state=b"of another version")

    assert ended(tmp_path, attempt, "bye\n").root_cause == "GPUFallenOffBus"


def test_missing_log_is_read_later(tmp_path):
    attempt = writing(tmp_path)
    (tmp_path / attempt.log_path).unlink()

    assert turn() == 1
    assert turn() == 0
    assert diagnose_attempt.build_bundle(attempt) == ""
