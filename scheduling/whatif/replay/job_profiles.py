"""The table of job profiles that a user gives, and which job of a trace has which of them. Pure.

A row applies to the jobs of this name, and to those whose name differs only in its numbers. Traces without names can
have a row drawn for each job; the report says so. A job without a row never shares GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean

import numpy as np

from acmeweb.common.errors import InvalidField
from jobs.traces.csv_table import CsvTable
from jobs.traces.trace import Floats, Trace
from scheduling.engine.predicting import name_without_numbers
from scheduling.whatif.replay.sharing_profiles import JobProfile, SharingProfiles, score_of_speed, speeds_by_utilization

PROFILE_COLUMNS = ("name", "gpu_percent", "memory_mb", "score")  # the last is optional
PAIR_COLUMNS = ("name1", "name2", "speed1", "speed2")
# By option of `simulate`
TABLE_COLUMNS = {
    "profiles": PROFILE_COLUMNS[:3],
    "pair_speeds": PAIR_COLUMNS,
    "gpu_speeds": ("pattern", "gpu_model", "speed"),
}
MAX_PROFILES = 500
MAX_PAIRS = 5_000
MAX_SPEED = 10.0
MAX_MEMORY_MB = 10**7

Row = Mapping[str, object]
Pair = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class ProfileRow:
    """A row of the table. Without a score, it follows from the measured pairs of this row, else from all rows."""

    name: str
    gpu_percent: float
    memory_mb: float
    score: int | None = None


@dataclass(frozen=True, kw_only=True)
class ProfileTable:
    """Profiles by name of the job, and measured speeds of pairs of names."""

    rows: tuple[ProfileRow, ...]
    pairs: Mapping[Pair, tuple[float, float]] = field(default_factory=dict)
    are_drawn: bool = False  # whether each job gets a row at random, instead of the one with its name

    def of_trace(self, trace: Trace, seed: int) -> SharingProfiles:
        """The profiles of the jobs of a trace."""
        number = {row.name: at for at, row in enumerate(self.rows)}
        both = {}
        for (first, second), (one, other) in self.pairs.items():
            both[number[second], number[first]] = (other, one)
            both[number[first], number[second]] = (one, other)  # last, for pairs of equal jobs
        profiles = [
            JobProfile(at, row.name, row.gpu_percent, row.memory_mb, self._score(row))
            for at, row in enumerate(self.rows)
        ]
        return SharingProfiles(profiles, both, self._rows_of_jobs(trace, seed))

    def _rows_of_jobs(self, trace: Trace, seed: int) -> list[int]:
        if self.are_drawn:
            drawn: list[int] = np.random.default_rng(seed).integers(len(self.rows), size=len(trace)).tolist()
            return drawn
        exact = {row.name: at for at, row in enumerate(self.rows)}
        similar = {name_without_numbers(row.name): at for at, row in reversed(list(enumerate(self.rows)))}
        words = [exact.get(word, similar.get(name_without_numbers(word), -1)) for word in trace.names.words]
        found: list[int] = np.array(words, dtype=np.int64)[trace.names.codes].tolist() if words else []
        return found

    def profiled_jobs(self, trace: Trace) -> int:
        """How many jobs of the trace have a profile."""
        return sum(row >= 0 for row in self._rows_of_jobs(trace, 0))

    def _score(self, row: ProfileRow) -> int:
        if row.score is not None:
            return row.score
        measured = [speeds[pair.index(row.name)] for pair, speeds in self.pairs.items() if row.name in pair]
        estimated = [speeds_by_utilization((row.gpu_percent, other.gpu_percent))[0] for other in self.rows]
        return score_of_speed(fmean(measured or estimated))


@dataclass(frozen=True, kw_only=True)
class PackedTime:
    """By job: the seconds on GPUs that are charged to the other jobs on them, and the seconds lost by sharing."""

    uncharged_s: Floats
    slowed_s: Floats

    @property
    def jobs(self) -> int:
        """How many jobs shared GPUs at any time."""
        return int((self.uncharged_s > 0).sum())


def table_rows(field: str, lines: Iterable[str], source: str) -> list[dict[str, object]]:
    """The rows of a CSV table of profiles, pair speeds or GPU speeds, with their positions in `where`."""
    error = partial(InvalidField, field)
    optional = PROFILE_COLUMNS[3:] if field == "profiles" else ()
    rows = CsvTable(lines, source, TABLE_COLUMNS[field], optional=optional, error=error)
    return [{**cells, "where": where} for where, cells in rows]


def profiles_from_rows(rows: Sequence[tuple[str, Row]]) -> tuple[ProfileRow, ...]:
    """Profiles from objects, each with its position for errors."""
    found: dict[str, ProfileRow] = {}
    for where, row in rows:
        name = _name(row, "name", "profiles", where)
        if name in found:
            raise InvalidField("profiles", f"{where}: duplicate entry {name!r}")
        found[name] = ProfileRow(
            name=name,
            gpu_percent=_number(row, "gpu_percent", "profiles", where, 100.0),
            memory_mb=_number(row, "memory_mb", "profiles", where, MAX_MEMORY_MB),
            score=_score(row, where),
        )
    if not found:
        raise InvalidField("profiles", "contains no profile")
    if len(found) > MAX_PROFILES:
        raise InvalidField("profiles", f"has {len(found):,} rows; at most {MAX_PROFILES:,} are allowed")
    return tuple(found.values())


def pairs_from_rows(rows: Sequence[tuple[str, Row]], profiles: Sequence[ProfileRow]) -> dict[Pair, tuple[float, float]]:
    """Speeds of pairs from objects, each with its position for errors."""
    names = {row.name for row in profiles}
    found: dict[Pair, tuple[float, float]] = {}
    if len(rows) > MAX_PAIRS:
        raise InvalidField("pair_speeds", f"has {len(rows):,} rows; at most {MAX_PAIRS:,} are allowed")
    for where, row in rows:
        first, second = (_name(row, key, "pair_speeds", where) for key in ("name1", "name2"))
        if unknown := next((name for name in (first, second) if name not in names), None):
            raise InvalidField("pair_speeds", f"{where}: {unknown!r} is not a name in profiles")
        if (first, second) in found or (second, first) in found:
            raise InvalidField("pair_speeds", f"{where}: duplicate entry {first!r} with {second!r}")
        one, other = (_number(row, key, "pair_speeds", where, MAX_SPEED) for key in ("speed1", "speed2"))
        if not one or not other:
            raise InvalidField("pair_speeds", f"{where}: a speed must be above 0")
        found[first, second] = one, other
    return found


def _name(row: Row, key: str, table: str, where: str) -> str:
    name = str(row.get(key) or "").strip()
    if not name or len(name) > 200:
        raise InvalidField(table, f"{where}: {key} {name[:40]!r} is not a name")
    return name


def _number(row: Row, key: str, table: str, where: str, most: float) -> float:
    text = str(row.get(key) if row.get(key) is not None else "").strip()
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= most:
        raise InvalidField(table, f"{where}: {key} {text[:40]!r} is not a number from 0 to {most:,.0f}")
    return value


def _score(row: Row, where: str) -> int | None:
    text = str(row.get("score") if row.get("score") is not None else "").strip()
    if text not in ("", "0", "1", "2"):
        raise InvalidField("profiles", f"{where}: score {text[:40]!r} is not 0 (tiny), 1 (medium) or 2 (jumbo)")
    return int(text) if text else None
