"""What a follower knows survives being set down as bytes, and bytes of anybody else make nothing."""

from __future__ import annotations

import os
import pickle
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from failures.diagnosis import classify, filters, scan
from failures.diagnosis.filters import FilterRule
from failures.diagnosis.following import MAX_STATE_BYTES, LogFollower, restore_follower
from failures.diagnosis.signatures import cause
from tests.failures.diagnosis.samples import SAMPLES

CALM = "".join(f"[rank{at % 8}]: iteration {at} / 500000 | lm loss: 2.0 | time 0.4\n" for at in range(400))
XIDS = "tern-3 kernel: NVRM: Xid (PCI:0000:3b:00): 74, pid=9, name=python, NVLink: fatal error detected on link 3\n" * 3
LOG = (CALM + SAMPLES[0].log + XIDS + SAMPLES[1].log + CALM).encode()


def told(follower: LogFollower) -> tuple[object, str]:
    return classify.diagnose_reading(follower.reader.build_reading()), follower.compressor.bundle().text


def unbroken(raw: bytes) -> LogFollower:
    follower = LogFollower()
    follower.feed(raw)
    return follower


def set_down(follower: LogFollower) -> bytes:
    raw = follower.frozen()
    assert raw is not None
    return raw


def taken_up(raw: bytes) -> LogFollower:
    follower = restore_follower(raw)
    assert follower is not None
    return follower


@given(cuts=st.lists(st.integers(min_value=0, max_value=len(LOG)), max_size=4))
def test_result_does_not_depend_on_how_often_the_state_is_restored(cuts: list[int]) -> None:
    follower, at = LogFollower(), 0
    for cut in [*sorted(cuts), len(LOG)]:
        follower.feed(LOG[at:cut])
        follower, at = taken_up(set_down(follower)), cut

    assert told(follower) == told(unbroken(LOG))


def test_restored_follower_does_not_repeat_findings() -> None:
    first = unbroken(XIDS.encode())

    assert taken_up(set_down(first)).feed(XIDS.encode()) == ()


@pytest.mark.parametrize("damage", [b"", b"x", b"x" * 900])
def test_damaged_state_is_rejected(damage: bytes) -> None:
    raw = set_down(unbroken(LOG))

    assert restore_follower(raw[: len(raw) // 2] + damage) is None
    assert restore_follower(damage) is None


class Bomb:
    def __reduce__(self):
        return os.system, ("touch /nowhere/at/all",)


def test_state_with_foreign_objects_is_rejected() -> None:
    stamp = set_down(LogFollower())[:32]

    assert restore_follower(stamp + zlib.compress(pickle.dumps((Bomb(), {}, set())))) is None


def test_state_that_decompresses_without_end_is_rejected() -> None:
    stamp = set_down(LogFollower())[:32]

    assert restore_follower(stamp + zlib.compress(bytes(70 << 20), 1)) is None


def test_state_from_other_rules_is_rejected() -> None:
    raw = set_down(unbroken(LOG))
    rule = cause("lane-lost", "NodeFailure", 74, "lane [0-9]+ lost", "lane 3 lost")
    mine = FilterRule(name="mine", pattern="heartbeat", example="heartbeat")

    assert restore_follower(raw, scanner=scan.shipped_scanner().with_rules([rule])) is None
    assert restore_follower(raw, rules=(*filters.SHIPPED_FILTERS, mine)) is None


def test_state_of_a_long_log_is_small() -> None:
    follower = LogFollower()
    for _ in range(50):
        follower.feed(LOG)

    assert len(set_down(follower)) < 100_000


def test_state_of_several_megabytes_is_not_stored() -> None:
    follower = LogFollower()
    dice = os.urandom(MAX_STATE_BYTES)
    follower.compressor.tail = [(1, dice.hex())]

    assert follower.frozen() is None
