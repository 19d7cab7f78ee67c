"""How fast jobs of a name are on each GPU model: given by operators, else measured in earlier attempts. Pure.

Only ratios between models count, so the speeds of one source may have any unit: steps per second, or factors. They are
never mixed with those of another source. Without the speeds of all models that a job names, none of them is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import NamedTuple

from jobs.core.gpu_models import SEPARATOR, gpu_models

WILDCARDS = "*?"
MAX_SPEED = 10**9
MIN_SPEED = 1e-9


class SpeedSource(StrEnum):
    GIVEN = "given"
    MEASURED = "measured"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class SpeedEntry:
    """A row of the operators' table: the speed of jobs whose name matches the pattern.
    `*` stands for any text, `?` for one character."""

    pattern: str
    gpu_model: str
    speed: float


class SpeedScope(NamedTuple):
    """The jobs that share measured speeds: steps per second are comparable only for equally many GPUs."""

    user: str
    title: str
    gpus: int


class JobSpeeds(NamedTuple):
    """The speed on each model, in the unit of its source, and what stands behind it."""

    source: SpeedSource
    by_model: Mapping[str, float]
    pattern: str = ""  # of given speeds
    attempts: Mapping[str, int] = {}  # of measured speeds

    def slowdowns(self, models: Iterable[str]) -> tuple[float, ...]:
        """How many times as long a job runs on each of the models as on the first one; empty if a speed is unknown.
        Rounded, so that equal requests with nearly equal speeds share a queue.
        """
        named = list(models)
        if not named or not all(model in self.by_model for model in named):
            return ()
        first = self.by_model[named[0]]
        return tuple(float(f"{first / self.by_model[model]:.3g}") for model in named)


UNKNOWN_SPEEDS = JobSpeeds(SpeedSource.UNKNOWN, {})


@dataclass(frozen=True, kw_only=True)
class MeasuredSpeed:
    """The median steps per second of some attempts on one model."""

    steps_per_s: float
    attempts: int


@dataclass(frozen=True, kw_only=True)
class GpuSpeeds:
    """What is known of the speeds of one cluster."""

    table: tuple[SpeedEntry, ...] = ()
    measured: Mapping[SpeedScope, Mapping[str, MeasuredSpeed]] = field(default_factory=dict)

    def of(self, scope: SpeedScope, models: Iterable[str] = ()) -> JobSpeeds:
        """The speeds of the first pattern or other source that has all of these models; else of the first with any."""
        known = [*self._from_table(scope.title), *self._measured(scope)]
        wanted = set(models)
        complete = (speeds for speeds in known if wanted <= set(speeds.by_model))
        return next(complete, known[0] if known else UNKNOWN_SPEEDS)

    def slowdowns(self, scope: SpeedScope, requested: str) -> tuple[float, ...]:
        """Those of the models that a job requests; empty if it names only one, or not all speeds are known."""
        if SEPARATOR not in requested:
            return ()
        models = gpu_models(requested)
        return self.of(scope, models).slowdowns(models)

    def _from_table(self, title: str) -> list[JobSpeeds]:
        """Those of each pattern that matches, the most specific one first."""
        by_pattern: dict[str, dict[str, float]] = {}
        for row in self.table:
            if row.pattern in by_pattern or fnmatchcase(title, row.pattern):
                by_pattern.setdefault(row.pattern, {})[row.gpu_model] = row.speed
        ordered = sorted(by_pattern, key=_generality)
        return [JobSpeeds(SpeedSource.GIVEN, by_pattern[pattern], pattern) for pattern in ordered]

    def _measured(self, scope: SpeedScope) -> list[JobSpeeds]:
        rows = self.measured.get(scope) if scope.title else None
        if not rows:
            return []
        speeds = {model: row.steps_per_s for model, row in rows.items()}
        return [JobSpeeds(SpeedSource.MEASURED, speeds, "", {model: row.attempts for model, row in rows.items()})]


def _generality(pattern: str) -> tuple[bool, int, str]:
    """Sorts names before patterns, then patterns with many fixed characters before those with few."""
    wild = sum(pattern.count(sign) for sign in WILDCARDS)
    return wild > 0, wild - len(pattern), pattern
