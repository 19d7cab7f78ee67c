"""The tables of `acme simulate` for policies that let jobs share GPUs: CSV files, as objects of a request."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from acme_client.terminal import exit_with_usage_error


@dataclass(frozen=True)
class ProfileFile:
    """The columns of a file: names, numbers, and whole numbers that may be left out."""

    names: tuple[str, ...]
    numbers: tuple[str, ...]
    optional: tuple[str, ...] = ()

    @property
    def header(self) -> str:
        return ",".join((*self.names, *self.numbers, *(f"[{name}]" for name in self.optional)))


PROFILES = ProfileFile(("name",), ("gpu_percent", "memory_mb"), ("score",))
PAIR_SPEEDS = ProfileFile(("name1", "name2"), ("speed1", "speed2"))


def read_profile_file(path: Path, columns: ProfileFile) -> list[dict[str, str | float]]:
    """The rows. Ends the program with one sentence if the file is not such a table."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as lines:
            rows = csv.DictReader(lines, restval="")
            if not {*columns.names, *columns.numbers} <= set(rows.fieldnames or ()):
                exit_with_usage_error(f"{path}: must be a CSV with the columns {columns.header}.")
            return [_entry(row, columns, f"{path} line {rows.line_num}") for row in rows]
    except (OSError, UnicodeError, csv.Error) as error:
        exit_with_usage_error(f"{path}: {error}")


def _entry(row: Mapping[str, str], columns: ProfileFile, where: str) -> dict[str, str | float]:
    entry: dict[str, str | float] = {name: row[name].strip() for name in columns.names}
    entry |= {name: _number(row[name], name, where) for name in columns.numbers}
    given: Sequence[str] = [name for name in columns.optional if (row.get(name) or "").strip()]
    return entry | {name: _whole_number(row[name], name, where) for name in given}


def _number(text: str, name: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        _refuse(text, name, where, "number")
    return value


def _whole_number(text: str, name: str, where: str) -> int:
    try:
        return int(text)
    except ValueError:
        _refuse(text, name, where, "whole number")


def _refuse(text: str, name: str, where: str, kind: str) -> NoReturn:
    exit_with_usage_error(f"{where}: {name} {text.strip()[:40]!r} is not a {kind}.")
