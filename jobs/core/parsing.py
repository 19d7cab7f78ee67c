"""Reads values of untrusted requests: returns the checked value or raises InvalidField. Pure.

A reader is called with the name of the field and the value. Its error message has no subject, because the name of the
field is shown before it. `read_fields()` reads an object with a table of readers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

from acmeweb.common.errors import InvalidField, InvalidInput
from jobs.core import slurm_notation

MAX_NUMBER = 1_000_000_000

FieldReader = Callable[[str, Any], Any]


MAX_REPORTED_FIELDS = 20


def read_fields(
    request: Mapping[str, Any], readers: Mapping[str, FieldReader], what: str, required: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the values of the fields in the request. Null means the same as a missing field.

    Raises one InvalidField that names all invalid fields.
    """
    values: dict[str, Any] = {}
    errors = [InvalidField(name, "is missing") for name in required if request.get(name) is None]
    for name, value in request.items():
        try:
            if name not in readers:
                raise InvalidField(str(name)[:40], f"is not a field of {what}")
            if value is not None:
                values[name] = readers[name](name, value)
        except InvalidField as error:
            errors.append(error)
            if len(errors) == MAX_REPORTED_FIELDS:
                break
    if errors:
        raise InvalidField(errors[0].field, errors[0].why, errors[1:])
    return values


def raise_invalid_field(name: str, why: str) -> NoReturn:
    raise InvalidField(name, why)


# C0 and C1 control characters, and bidirectional overrides, which change the order in which a line is displayed
UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def text_reader(most: int, lines: bool = False) -> Callable[[str, Any], str]:
    def read_bounded_text(name: str, value: Any) -> str:
        if not isinstance(value, str):
            raise_invalid_field(name, f"is {json_type_name(value)}, not text")
        # Limits are in bytes, as in the database. For ASCII text the length is the same and faster
        size = len(value) if value.isascii() else len(value.encode(errors="replace"))
        if size > most:
            raise_invalid_field(name, f"has {size} bytes, more than the {most} allowed")
        if "\x00" in value:
            raise_invalid_field(name, "contains a NUL byte")
        if LONE_SURROGATE.search(value):
            raise_invalid_field(name, "contains half a character (a lone surrogate)")
        if not lines and UNPRINTABLE.search(value):
            raise_invalid_field(name, "contains a control character")
        return value

    return read_bounded_text


def nonempty_reader(read: Callable[[str, Any], str]) -> Callable[[str, Any], str]:
    def read_nonempty(name: str, value: Any) -> str:
        text = read(name, value)
        return text if text.strip() else raise_invalid_field(name, "is empty")

    return read_nonempty


def integer_reader(low: int, high: int) -> Callable[[str, Any], int]:
    def read_integer(name: str, value: Any) -> int:
        # bool is a subclass of int in Python
        if isinstance(value, bool) or not isinstance(value, int):
            raise_invalid_field(name, f"is {json_type_name(value)}, not a whole number")
        if not low <= value <= high:
            raise_invalid_field(name, f"{short_repr(value)} is not between {low} and {high}")
        return value

    return read_integer


def number_reader(low: int, high: int) -> Callable[[str, Any], float]:
    def read_number(name: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise_invalid_field(name, f"is {json_type_name(value)}, not a number")
        if not low <= value <= high:  # false for NaN too
            raise_invalid_field(name, f"{short_repr(value)} is not between {low} and {high}")
        return float(value)

    return read_number


def read_bool(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise_invalid_field(name, f"is {json_type_name(value)}, not true or false")
    return value


def pattern_reader(pattern: re.Pattern[str], what: str) -> Callable[[str, Any], str]:
    def read_matching(name: str, value: Any) -> str:
        text = text_reader(200)(name, value)
        return (
            text
            if not text or pattern.fullmatch(text)
            else raise_invalid_field(name, f"{text[:40]!r} is not a valid {what}")
        )

    return read_matching


def read_absolute_path(name: str, value: Any) -> str:
    path = text_reader(500)(name, value)
    if path and (not path.startswith("/") or ".." in path.split("/")):
        raise_invalid_field(name, f"{path[:40]!r} is not an absolute path without ..")
    return path


def read_duration(name: str, value: Any) -> timedelta | None:
    """Read seconds as a number, or Slurm's notation as text."""
    try:
        if isinstance(value, str):
            duration = slurm_notation.parse_duration(value)
        # value != value is true only for NaN
        elif isinstance(value, bool) or not isinstance(value, int | float) or value != value:
            raise_invalid_field(name, f"is {json_type_name(value)}, not seconds or D-HH:MM:SS")
        else:
            duration = slurm_notation.duration_from_seconds(value)
    except InvalidInput as error:
        raise_invalid_field(name, str(error))
    # None means UNLIMITED, which is valid
    if duration is not None and not duration:
        raise_invalid_field(name, "is zero")
    return duration


def read_memory_mb(name: str, value: Any) -> int:
    """Read MiB as a number, or text such as `512G`."""
    if isinstance(value, str):
        try:
            value = slurm_notation.parse_memory_mb(value)
        except InvalidInput as error:
            raise_invalid_field(name, str(error))
    return integer_reader(0, MAX_NUMBER)(name, value)


def read_checkpoint_signal(name: str, value: Any) -> str:
    """Check the notation of sbatch --signal and return it in upper case."""
    notation = text_reader(16)(name, value)
    try:
        slurm_notation.parse_signal(notation) if notation else None
    except InvalidInput as error:
        raise_invalid_field(name, str(error))
    return notation.strip().upper()


# Leaves room for adding and subtracting days without leaving the range of datetime
FIRST_YEAR, LAST_YEAR = 1970, 9000


def read_timestamp(name: str, value: Any) -> datetime:
    text = text_reader(40)(name, value)
    try:
        timestamp = datetime.fromisoformat(text)
    except ValueError:
        raise_invalid_field(name, f"{text[:40]!r} is not an ISO 8601 time")
    if timestamp.tzinfo is None:
        raise_invalid_field(name, f"{text[:40]!r} has no time zone; write 2026-01-31T08:00:00Z")
    if not FIRST_YEAR <= timestamp.year < LAST_YEAR:
        raise_invalid_field(name, f"{text[:40]!r} is out of range")
    return timestamp.astimezone(UTC)


def json_type_name(value: Any) -> str:
    names = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list", type(None): "null"}
    return names.get(type(value), "an object")


def short_repr(value: Any) -> str:
    """Return a value for use in a sentence: at most 40 characters, and huge integers are not converted to digits."""
    if isinstance(value, int) and abs(value) > 10**20:
        return "a number of more than 20 digits"
    return repr(value)[:40]


def choice_reader(choices: Sequence[str]) -> Callable[[str, Any], str]:
    def read_choice(name: str, value: Any) -> str:
        if not isinstance(value, str) or value not in choices:
            raise_invalid_field(name, f"{short_repr(value)} is not one of {', '.join(choices)}")
        return value

    return read_choice


def list_reader(reader: FieldReader, most: int) -> Callable[[str, Any], list[Any]]:
    def read_list(name: str, value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise_invalid_field(name, f"is {json_type_name(value)}, not a list")
        if not 1 <= len(value) <= most:
            raise_invalid_field(name, f"has {len(value)} entries; between 1 and {most} are allowed")
        return [reader(name, entry) for entry in value]

    return read_list


def read_object(name: str, value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else raise_invalid_field(name, f"is {json_type_name(value)}, not an object")
