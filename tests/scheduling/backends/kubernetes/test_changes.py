"""What changed since the last look, and indexes that follow the changes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.backends.kubernetes.changes import ChangeLog, ChangeReader


def read(reader, *logs):
    with reader.changes(logs) as changed:
        return changed


def test_reader_gets_each_change_once():
    log, reader = ChangeLog(), ChangeReader()
    assert read(reader, log) is None  # everything

    log.add("a")
    log.add("b")
    log.add("a")

    assert read(reader, log) == {"a", "b"}
    assert read(reader, log) == set()


def test_readers_do_not_take_changes_from_each_other():
    log, first, second = ChangeLog(), ChangeReader(), ChangeReader()
    read(first, log), read(second, log)
    log.add("a")

    assert read(first, log) == read(second, log) == {"a"}


def test_changes_of_an_interrupted_look_are_not_lost():
    log, reader = ChangeLog(), ChangeReader()
    read(reader, log)
    log.add("a")

    with pytest.raises(TimeoutError), reader.changes([log]):
        raise TimeoutError

    assert read(reader, log) is None


def test_everything_counts_as_changed_after_more_changes_than_are_kept():
    log, reader = ChangeLog(most=2), ChangeReader()
    read(reader, log)

    for name in "abc":
        log.add(name)

    assert read(reader, log) is None
    log.add("d")
    assert read(reader, log) == {"d"}


def test_everything_counts_as_changed_when_a_log_is_new_or_starts_again():
    log, other, reader = ChangeLog(), ChangeLog(), ChangeReader()
    read(reader, log)

    assert read(reader, log, other) is None
    other.add("a")
    log.add_everything()
    assert read(reader, log, other) is None
    assert read(reader, log, other) == set()


@given(st.lists(st.one_of(st.sampled_from("abc"), st.none(), st.just(1))))
def test_reader_sees_what_a_log_says(events):
    """Names are changes, None is a change of everything, 1 is a look."""
    log, reader = ChangeLog(), ChangeReader()
    read(reader, log)
    expected: set[str] | None = set()

    for event in events:
        if event == 1:
            assert read(reader, log) == expected
            expected = set()
        elif event is None:
            log.add_everything()
            expected = None
        else:
            log.add(event)
            expected = None if expected is None else expected | {event}
