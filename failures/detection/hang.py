"""A job that completes no step any more. Pure.

Patience is max(30 s, 3 x the p99 of the recent intervals). The first steps are no measure (compilation, warm caches),
and neither is time inside a section that the job declared (checkpoint, evaluation, compile). A section that goes on
three times as long as any of its name before, and half an hour at least, is a hang of its own. Before there are enough
steps nothing is said: a slow start is no hang.

A job that reports nothing is judged by its log: by the lines that count steps where it has such lines, else by
silence, with a longer patience because a healthy program may have nothing to say.

What is found asks for the stacks of all ranks; it never kills.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from failures.detection.findings import DetectorFinding, SymptomType

MIN_PATIENCE_S = 30.0
PATIENCE_FACTOR = 3.0
WARMUP_STEPS = 5  # steps that are no measure
RECENT_INTERVALS = 200
MIN_INTERVALS = 5  # intervals
MIN_SILENCE_S = 300.0
MIN_SECTION_S = 1800.0

# Trainers write the number in a column: `iteration        7/   90000`
STEP_COUNTER = re.compile(r"(?i)\b(?:global[_ ]?step|step|iter(?:ation)?)s?\W{0,12}(\d{1,12})\b")


@dataclass(frozen=True, kw_only=True)
class SectionInterval:
    """A time in which no step is due, as the job declared it; `end` is None while it lasts."""

    name: str
    begin: float
    end: float | None = None


@dataclass(frozen=True, kw_only=True)
class TimedLine:
    at: float
    text: str


def detect_hang(
    steps: Sequence[float],
    now: float,
    sections: Sequence[SectionInterval] = (),
    *,
    floor_s: float = MIN_PATIENCE_S,
    factor: float = PATIENCE_FACTOR,
    first: int = WARMUP_STEPS,
    enough: int = MIN_INTERVALS,
) -> DetectorFinding | None:
    """`steps` are the moments at which a step was completed, oldest first; of the `first` ones nothing is learned, and
    nothing is said before `enough` intervals are known."""
    open_ = [one for one in sections if one.end is None]
    if open_:
        return _detect_stuck_section(open_[-1], sections, now)
    intervals = _step_intervals(steps[first:], sections)[-RECENT_INTERVALS:]
    if len(intervals) < enough:
        return None
    patience = max(floor_s, factor * _percentile_99(intervals))
    since = max([steps[-1], *(one.end for one in sections if one.end is not None)])
    if now - since <= patience:
        return None
    return DetectorFinding(
        symptom=SymptomType.HANG,
        since=since,
        observed=now - since,
        expected=patience,
        why=f"No step was completed for {now - since:.0f} s; {patience:.0f} s is the longest that is usual here.",
    )


def detect_hang_in_log(lines: Sequence[TimedLine], now: float) -> DetectorFinding | None:
    """From the text alone. `lines` in the order they came, each with the moment it came."""
    steps = step_times(lines)
    if len(steps) > WARMUP_STEPS + MIN_INTERVALS:
        return detect_hang(steps, now)
    return detect_hang([line.at for line in lines], now, floor_s=MIN_SILENCE_S)


def step_times(lines: Iterable[TimedLine]) -> list[float]:
    """When the number of steps rose; a line that repeats one (a watchdog that complains) is no step."""
    moments, furthest = [], -1
    for line in lines:
        found = STEP_COUNTER.search(line.text[:500])
        if found and int(found[1]) > furthest:
            furthest = int(found[1])
            moments.append(line.at)
    return moments


def _step_intervals(steps: Sequence[float], sections: Sequence[SectionInterval]) -> list[float]:
    return [
        b - a for a, b in pairwise(steps) if not any(one.begin < b and (one.end or one.begin) > a for one in sections)
    ]


def _percentile_99(values: Sequence[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(0.99 * len(values)))]


def _detect_stuck_section(
    one: SectionInterval, sections: Iterable[SectionInterval], now: float
) -> DetectorFinding | None:
    lasted: dict[str, float] = defaultdict(float)
    for other in sections:
        if other.end is not None:
            lasted[other.name] = max(lasted[other.name], other.end - other.begin)
    patience = max(MIN_SECTION_S, PATIENCE_FACTOR * lasted[one.name])
    if now - one.begin <= patience:
        return None
    return DetectorFinding(
        symptom=SymptomType.HANG,
        since=one.begin,
        subject=one.name,
        observed=now - one.begin,
        expected=patience,
        why=f"Its section {one.name} lasts for {now - one.begin:.0f} s; {patience:.0f} s are the most it should.",
    )
