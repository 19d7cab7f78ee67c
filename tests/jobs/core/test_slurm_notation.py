"""Durations, memory, arrays and signals in Slurm notation."""

import re
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acmeweb.common.errors import InvalidInput
from jobs.core import slurm_notation


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90", timedelta(minutes=90)),
        ("30:00", timedelta(minutes=30)),
        ("12:00:00", timedelta(hours=12)),
        ("2-03", timedelta(days=2, hours=3)),
        ("2-03:15", timedelta(days=2, hours=3, minutes=15)),
        ("2-03:15:30", timedelta(days=2, hours=3, minutes=15, seconds=30)),
        ("UNLIMITED", None),
        ("infinite", None),
    ],
)
def test_durations_are_parsed_as_by_sbatch(text, expected):
    assert slurm_notation.parse_duration(text) == expected


@pytest.mark.parametrize("text", ["", "x", "1:2:3:4", "-5", "1d", "1-", "12:00:00:00", "99999999-00", "１２", "1\n2"])
def test_invalid_duration_is_rejected_with_a_message(text):
    with pytest.raises(InvalidInput, match=r"duration|longer"):
        slurm_notation.parse_duration(text)


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=3000)))
def test_formatted_duration_parses_back_to_the_second(duration):
    printed = slurm_notation.format_duration(duration)

    assert slurm_notation.parse_duration(printed) == timedelta(seconds=int(duration.total_seconds()))


@pytest.mark.parametrize(
    ("text", "megabytes"), [("2048", 2048), ("512G", 512 * 1024), ("1T", 1024**2), ("1K", 1), ("3 GiB", 3072)]
)
def test_memory_units_are_powers_of_1024(text, megabytes):
    assert slurm_notation.parse_memory_mb(text) == megabytes


@pytest.mark.parametrize(("megabytes", "text"), [(512, "512M"), (2048, "2G"), (1536, "1.5G"), (1024**2, "1T")])
def test_memory_is_formatted_with_the_largest_unit(megabytes, text):
    assert slurm_notation.format_memory(megabytes) == text


@pytest.mark.parametrize(
    ("text", "indices", "limit"),
    [
        ("7", [7], None),
        ("0-3", [0, 1, 2, 3], None),
        ("0-9:3%2", [0, 3, 6, 9], 2),
        ("1,5,3", [1, 3, 5], None),
        ("2,1-3", [1, 2, 3], None),
    ],
)
def test_arrays_are_parsed_as_by_sbatch(text, indices, limit):
    assert slurm_notation.parse_array(text, 5000) == (indices, limit)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("5-1", "'5-1' counts down; write 1-5"),
        ("1-3:0", "'1-3:0' has a step of 0"),
        ("0-5001", "'0-5001' has 5002 tasks, more than the 5000 allowed"),
        ("1%0", "concurrent tasks after % must be between 1 and 5000"),
    ],
)
def test_array_error_names_the_problem(text, why):
    with pytest.raises(InvalidInput, match=re.escape(why)):
        slurm_notation.parse_array(text, 5000)


@pytest.mark.parametrize("text", ["", "a", "5-1", "0-9999999", "1-3:0", "1%0", "1%x", "1%", "0-5001", "1,,2"])
def test_invalid_array_is_rejected(text):
    with pytest.raises(InvalidInput):
        slurm_notation.parse_array(text, 5000)


@pytest.mark.parametrize(
    ("text", "ask", "grace_s"),
    [("USR1", "USR1", 60), ("sigterm@30", "TERM", 30), ("B:USR2@0", "B:USR2", 0), (" B:INT@120 ", "B:INT", 120)],
)
def test_signals_are_parsed_as_by_sbatch(text, ask, grace_s):
    signal = slurm_notation.parse_signal(text)

    assert (signal.text, signal.grace.total_seconds()) == (ask, grace_s)


@pytest.mark.parametrize("text", ["KILL", "9", "USR1@", "USR1@-5", "R:USR1", "USR1@999999", "USR1; reboot"])
def test_invalid_signal_is_rejected(text):
    with pytest.raises(InvalidInput, match="is not a signal such as USR1"):
        slurm_notation.parse_signal(text)
