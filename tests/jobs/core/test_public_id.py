"""Short ids that sort by time."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from jobs.core.public_id import ID_CHARACTERS, public_id, task_id

START = datetime(2026, 11, 21, 12, tzinfo=UTC)
moments = st.datetimes(min_value=datetime(2025, 1, 2), max_value=datetime(2080, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


@given(moments, st.integers(1, 60_000), st.integers(0, 10**9))
def test_later_id_sorts_after_earlier_id(at, later_ms, number):
    assert public_id(at, number) < public_id(at + timedelta(milliseconds=later_ms), number)


def test_sequence_orders_ids_within_one_millisecond():
    ids = [public_id(START, number) for number in range(16_384)]

    assert len(set(ids)) == len(ids)
    assert ids == sorted(ids)


def test_ids_are_short_and_hard_to_misread():
    name = public_id(START, 7)

    assert len(name) == ID_CHARACTERS
    assert not set(name) & set("ilou")


def test_array_task_id_has_slurms_notation():
    assert task_id("01k3v9q2m7t", 7) == "01k3v9q2m7t_7"
