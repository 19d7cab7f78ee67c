"""The keys of rows of several histories. Lists are sorted by key, so each table has its keys in the order of time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from django.db.models import Model

from scheduling.simulation.drill.jobs import DrillJob


@dataclass(frozen=True, kw_only=True)
class HistoryKeys:
    """The keys of one history's jobs, by name, and attempts, by the name of the job and their number."""

    jobs: dict[str, int] = field(default_factory=dict)
    attempts: dict[tuple[str, int], int] = field(default_factory=dict)


def keys_by_time(histories: Sequence[Sequence[DrillJob]]) -> list[HistoryKeys]:
    """The keys of each history, counted over all of them."""
    keys = [HistoryKeys() for _ in histories]
    jobs = [(work.submitted, which, place, work) for which, works in enumerate(histories) for place, work in
            enumerate(works)]  # fmt: skip
    for key, (_, which, _, work) in enumerate(sorted(jobs, key=lambda row: row[:3]), start=1):
        keys[which].jobs[work.name] = key
    attempts = [
        (life.promised, which, place, number, work.name)
        for _, which, place, work in jobs
        for number, life in enumerate(work.lives, start=1)
    ]
    for key, (_, which, _, number, name) in enumerate(sorted(attempts), start=1):
        keys[which].attempts[name, number] = key
    return keys


def number_by_time(rows: list[Any], column: str) -> None:
    """Sort and number rows by this time. `refresh_references` then updates the rows that refer to them."""
    rows.sort(key=attrgetter(column))
    for number, row in enumerate(rows, start=1):
        row.pk = number


def refresh_references(rows: Iterable[Model], names: Sequence[str]) -> None:
    """Copy the new keys of the rows that these fields refer to."""
    for row in rows:
        for name in names:
            if (target := getattr(row, name)) is not None:
                setattr(row, name, target)
