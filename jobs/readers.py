"""Reading one value that a stranger sent: value in, checked value out, BadSpec otherwise. Pure.

A reader is called with the name of the field and the value; what it refuses it says in a sentence without its subject,
because the name of the field stands before it. `read_all()` reads an object of fields by a table of readers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

from jobs import notation

HIGHEST_NUMBER = 1_000_000_000

Reader = Callable[[str, Any], Any]


class BadSpec(ValueError):
    """What was asked cannot be. `field` is the name in the request, `why` a sentence without its subject."""

    def __init__(self, field: str, why: str) -> None:
        self.field, self.why = field, why
        super().__init__(f"{field}: {why}")


def read_all(asked: Mapping[str, Any], readers: Mapping[str, Reader], what: str) -> dict[str, Any]:
    """The fields that were given, read; null stands for a field that was not given."""
    for name in asked:
        if name not in readers:
            raise BadSpec(str(name)[:40], f"is no field of {what}")
    return {name: readers[name](name, value) for name, value in asked.items() if value is not None}


def bad(name: str, why: str) -> NoReturn:
    raise BadSpec(name, why)


# C0 and C1 controls, and the overrides that let a line read otherwise than it is
UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


HALF = re.compile("[\ud800-\udfff]")


def text(most: int, lines: bool = False) -> Callable[[str, Any], str]:
    def read(name: str, value: Any) -> str:
        if not isinstance(value, str):
            bad(name, f"is {kind_of(value)}, not text")
        size = len(value) if value.isascii() else len(value.encode(errors="replace"))
        if size > most:
            bad(name, f"has {size} bytes, more than the {most} allowed")
        if "\x00" in value:
            bad(name, "contains a NUL byte")
        if HALF.search(value):
            bad(name, "contains half a character (a lone surrogate)")
        if not lines and UNPRINTABLE.search(value):
            bad(name, "contains a control character")
        return value

    return read


def needed(read: Callable[[str, Any], str]) -> Callable[[str, Any], str]:
    def checked(name: str, value: Any) -> str:
        found = read(name, value)
        return found if found.strip() else bad(name, "is empty")

    return checked


def whole(low: int, high: int) -> Callable[[str, Any], int]:
    def read(name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            bad(name, f"is {kind_of(value)}, not a whole number")
        if not low <= value <= high:
            bad(name, f"{short(value)} is not between {low} and {high}")
        return value

    return read


def truth(name: str, value: Any) -> bool:
    return value if isinstance(value, bool) else bad(name, f"is {kind_of(value)}, not true or false")


def word(pattern: re.Pattern[str], what: str) -> Callable[[str, Any], str]:
    def read(name: str, value: Any) -> str:
        found = text(200)(name, value)
        return found if not found or pattern.fullmatch(found) else bad(name, f"{found[:40]!r} is no {what}")

    return read


def path(name: str, value: Any) -> str:
    found = text(500)(name, value)
    if found and (not found.startswith("/") or ".." in found.split("/")):
        bad(name, f"{found[:40]!r} is no absolute path without ..")
    return found


def duration(name: str, value: Any) -> timedelta | None:
    """Seconds as a number, or Slurm's notation as text."""
    try:
        if isinstance(value, str):
            found = notation.parse_duration(value)
        elif isinstance(value, bool) or not isinstance(value, int | float) or value != value:
            bad(name, f"is {kind_of(value)}, neither seconds nor D-HH:MM:SS")
        else:
            found = notation.seconds_duration(value)
    except notation.BadNotation as error:
        bad(name, str(error))
    if found is not None and not found:
        bad(name, "is zero")
    return found


def memory(name: str, value: Any) -> int:
    """MiB as a number, or `512G` as text."""
    if isinstance(value, str):
        try:
            value = notation.parse_memory_mb(value)
        except notation.BadNotation as error:
            bad(name, str(error))
    return whole(0, HIGHEST_NUMBER)(name, value)


def signal(name: str, value: Any) -> str:
    """As sbatch --signal writes it; kept as it was written."""
    written = text(16)(name, value)
    try:
        notation.parse_signal(written) if written else None
    except notation.BadNotation as error:
        bad(name, str(error))
    return written.strip().upper()


# Nothing happened before, and days are added to and taken from every moment
FIRST_YEAR, LAST_YEAR = 1970, 9000


def moment(name: str, value: Any) -> datetime:
    written = text(40)(name, value)
    try:
        found = datetime.fromisoformat(written)
    except ValueError:
        bad(name, f"{written[:40]!r} is no ISO 8601 time")
    if found.tzinfo is None:
        bad(name, f"{written[:40]!r} has no time zone; write 2026-01-31T08:00:00Z")
    if not FIRST_YEAR <= found.year < LAST_YEAR:
        bad(name, f"{written[:40]!r} is out of range")
    return found.astimezone(UTC)


def kind_of(value: Any) -> str:
    names = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list", type(None): "null"}
    return names.get(type(value), "an object")


def short(value: Any) -> str:
    """A value as part of a sentence: never longer than a line, and no huge integer is turned into digits."""
    if isinstance(value, int) and abs(value) > 10**20:
        return "a number of more than 20 digits"
    return repr(value)[:40]


def one_of(choices: Sequence[str]) -> Callable[[str, Any], str]:
    def read(name: str, value: Any) -> str:
        if not isinstance(value, str) or value not in choices:
            bad(name, f"{short(value)} is none of {', '.join(choices)}")
        return value

    return read


def list_of(reader: Reader, most: int) -> Callable[[str, Any], list[Any]]:
    def read(name: str, value: Any) -> list[Any]:
        if not isinstance(value, list):
            bad(name, f"is {kind_of(value)}, not a list")
        if not 1 <= len(value) <= most:
            bad(name, f"has {len(value)} entries; between 1 and {most} are allowed")
        return [reader(name, one) for one in value]

    return read


def an_object(name: str, value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else bad(name, f"is {kind_of(value)}, not an object")
