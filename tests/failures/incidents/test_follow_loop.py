"""The loop that reads logs while they grow, and what an end then finds."""

from __future__ import annotations

import gzip
import logging
from datetime import timedelta
from pathlib import Path

import pytest

from failures.actions import log_offsets as following
from failures.loops.diagnose import diagnose_once
from failures.loops.follow import follow_once
from failures.models import Diagnosis, Following
from failures.queries import diagnose_attempt
from failures.queries.log_resume import FollowPace
from jobs.models import Attempt, clock
from tests.failures import make

pytestmark = pytest.mark.django_db

STEPS = "".join(f"step {at} loss 2.{at} tokens/s 3000\n" for at in range(300))
NOW_AND_ALL = FollowPace(ahead=1)


def turn(pace: FollowPace = NOW_AND_ALL) -> int:
    return follow_once(clock.now(), pace)


def running(root: Path) -> Attempt:
    """Each on a GPU of its own."""
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
    Following.objects.update(due_at=clock.now() - timedelta(seconds=1))


def ended(root: Path, attempt: Attempt, text: str = make.TYPO) -> Diagnosis:
    """Its log ends in this, and it is diagnosed."""
    whole = (root / attempt.log_path).read_bytes() + text.encode()
    make.end(root, attempt, whole)
    diagnose_once(clock.now())
    return make.of(attempt)


# --- who is eligible


def test_a_running_attempt_with_a_log_is_followed_and_no_other(tmp_path):
    make.failed(tmp_path)
    here = writing(tmp_path)
    running(tmp_path)  # nothing printed yet, so nobody knows where

    turn()

    assert [row.attempt_id for row in Following.objects.all()] == [here.pk]
    assert Following.objects.get().read == len(STEPS)


def test_the_log_that_waited_longest_comes_first(tmp_path):
    first, second = writing(tmp_path), writing(tmp_path)
    following.add_running_attempts(clock.now())
    Following.objects.filter(pk=second.pk).update(due_at=clock.now() - timedelta(minutes=3))
    Following.objects.filter(pk=first.pk).update(due_at=clock.now() - timedelta(minutes=2))

    assert following.claim(clock.now()).pk == second.pk


def test_one_log_is_in_hand_at_any_moment(tmp_path):
    writing(tmp_path)
    writing(tmp_path)
    following.add_running_attempts(clock.now())

    assert following.claim(clock.now())
    assert following.claim(clock.now()) is None


def test_little_is_left_for_the_end_and_not_looked_at_again_soon(tmp_path):
    writing(tmp_path)

    turn(FollowPace())
    row = Following.objects.get()

    assert (row.state, row.read, row.size) == (None, 0, len(STEPS))
    assert row.due_at > row.looked_at
    assert turn(FollowPace()) == 0


def test_a_log_that_grows_faster_is_looked_at_sooner(tmp_path):
    slow, fast = writing(tmp_path), writing(tmp_path)
    turn(FollowPace())
    Following.objects.update(looked_at=clock.now() - timedelta(minutes=1))
    write(tmp_path, fast, STEPS * 900)
    due()

    turn(FollowPace())

    rows = {row.attempt_id: row for row in Following.objects.all()}
    assert rows[fast.pk].due_at < rows[slow.pk].due_at


def test_one_turn_reads_no_more_than_it_may_and_the_next_goes_on(tmp_path):
    writing(tmp_path, STEPS * 20)
    half = FollowPace(ahead=1, at_once=len(STEPS) * 10)
    following.add_running_attempts(clock.now())

    from failures.loops.follow import _follow_row  # one step of the turn, which else goes on while there is time

    _follow_row(following.claim(clock.now()), clock.now(), half)
    row = Following.objects.get()
    assert row.read == len(STEPS) * 10
    assert row.due_at <= clock.now()

    turn(half)
    assert Following.objects.get().read == len(STEPS) * 20


# --- what an end finds


def test_the_verdict_and_bundle_of_a_followed_log_are_those_of_the_log_read_whole(tmp_path):
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


def test_an_end_reads_only_what_was_not_read_yet(tmp_path):
    attempt = writing(tmp_path, make.XID)
    turn()
    path = tmp_path / attempt.log_path
    seam = len(make.XID) - 64
    path.write_bytes(b"." * seam + path.read_bytes()[seam:])  # what was read is not looked at any more

    assert ended(tmp_path, attempt, "bye\n").root_cause == "GPUFallenOffBus"


def test_a_log_that_was_replaced_is_read_anew(tmp_path):
    attempt = writing(tmp_path, make.XID)
    turn()
    (tmp_path / attempt.log_path).write_text("x" * len(make.XID) * 2 + "\n")
    due()
    turn()

    assert ended(tmp_path, attempt).root_cause == "TypeError"


def test_a_log_that_was_cut_off_is_read_anew(tmp_path):
    attempt = writing(tmp_path, STEPS + make.XID)
    turn()
    (tmp_path / attempt.log_path).write_text("step 1\n")

    assert ended(tmp_path, attempt).root_cause == "TypeError"


def test_a_packed_log_is_left_to_the_end(tmp_path):
    attempt = writing(tmp_path, gzip.compress(make.XID.encode()))
    turn()

    assert Following.objects.get().state is None
    assert ended(tmp_path, attempt, "").root_cause == "GPUFallenOffBus"


def test_what_was_known_is_forgotten_when_the_bundle_is_kept(tmp_path):
    attempt = writing(tmp_path)
    turn()

    ended(tmp_path, attempt)

    assert not Following.objects.exists()


def test_who_ends_well_is_forgotten_and_who_failed_is_kept_for_the_diagnosis(tmp_path):
    well, badly = writing(tmp_path), writing(tmp_path)
    turn()
    make.end(tmp_path, well, STEPS, state="COMPLETED", exit_code=0)
    make.end(tmp_path, badly, STEPS)

    turn()

    assert [row.attempt_id for row in Following.objects.all()] == [badly.pk]


# --- what goes wrong


def test_who_slept_past_its_lease_writes_nothing(tmp_path):
    writing(tmp_path)
    following.add_running_attempts(clock.now())
    asleep = following.claim(clock.now())
    Following.objects.update(taken_until=clock.now() - timedelta(seconds=1))
    turn()

    late = following.LogFollowResult(size=1, read=1, seam=b"s", state=b"stale", due_at=clock.now())

    assert not following.save_log_offset(asleep, late, clock.now())
    assert Following.objects.get().read == len(STEPS)


def test_a_worker_killed_over_a_log_leaves_it_to_the_next_and_three_leave_it_to_the_diagnosis(tmp_path):
    attempt = writing(tmp_path)
    following.add_running_attempts(clock.now())
    for _ in range(3):
        assert following.claim(clock.now())
        Following.objects.update(taken_until=clock.now() - timedelta(seconds=1))

    assert following.claim(clock.now()) is None
    assert ended(tmp_path, attempt).root_cause == "TypeError"


def test_a_log_that_breaks_its_reader_does_not_stop_the_others(tmp_path, caplog):
    broken, whole = writing(tmp_path), writing(tmp_path)
    turn()
    Following.objects.filter(pk=broken.pk).update(size=2**62, read=2**62)
    for attempt in (broken, whole):
        write(tmp_path, attempt, STEPS)
    due()

    with caplog.at_level(logging.CRITICAL, logger="failures.loops.follow"):
        turn()

    assert Following.objects.get(pk=whole.pk).read == 2 * len(STEPS)


def test_bytes_of_the_state_that_nobody_can_read_cost_a_second_reading_and_nothing_else(tmp_path):
    attempt = writing(tmp_path, make.XID)
    turn()
    Following.objects.update(state=b"of another version")

    assert ended(tmp_path, attempt, "bye\n").root_cause == "GPUFallenOffBus"


def test_a_log_that_is_gone_is_looked_for_later(tmp_path):
    attempt = writing(tmp_path)
    (tmp_path / attempt.log_path).unlink()

    assert turn() == 1
    assert turn() == 0
    assert diagnose_attempt.build_bundle(attempt) == ""
