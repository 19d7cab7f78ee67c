"""Detects jobs that have stopped completing steps. Pure.

The limit is max(30 s, 3 x the p99 of the recent step intervals). The first steps do not count (compilation, warm-up of
caches), nor does time inside a section that the job declared (checkpoint, evaluation, compile). A section is a hang of
its own when it lasts three times as long as any earlier section of its name, and at least half an hour. Until there
are enough steps there is no finding, because a slow start is not a hang.

A job that does not report steps is judged by its log: by the lines that count steps if it prints any, otherwise by
silence. Silence has a higher limit, because a healthy program may print nothing for minutes.

A finding leads to a request for the stacks of all ranks; the detector never ends a job.
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
WARMUP_STEPS = 5  # not representative: they include compilation
RECENT_INTERVALS = 200
MIN_INTERVALS = 5  # below this there is no finding
MIN_SILENCE_S = 300.0
MIN_SECTION_S = 1800.0

# Up to 12 separators, because trainers align the number in a column: `iteration        7/   90000`
STEP_COUNTER = re.compile(r"(?i)\b(?:global[_ ]?step|step|iter(?:ation)?)s?\W{0,12}(\d{1,12})\b")


@dataclass(frozen=True, kw_only=True)
class SectionInterval:
    """A period without steps that the job declared; `end` is None while it lasts."""

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
    """A finding if no step completed for longer than the limit.

    `steps` are the completion times, oldest first. The `first` ones are ignored, and at least `enough` intervals are
    needed.
    """
    open_sections = [section for section in sections if section.end is None]
    if open_sections:
        return _detect_stuck_section(open_sections[-1], sections, now)
    intervals = _step_intervals(steps[first:], sections)[-RECENT_INTERVALS:]
    if len(intervals) < enough:
        return None
    patience = max(floor_s, factor * _percentile_99(intervals))
    since = max([steps[-1], *(section.end for section in sections if section.end is not None)])
    if now - since <= patience:
        return None
    return DetectorFinding(
        symptom=SymptomType.HANG,
        since=since,
        observed=now - since,
        expected=patience,
        why=f"No step completed for {now - since:.0f} s; the limit for this job is {patience:.0f} s.",
    )


def detect_hang_in_log(lines: Sequence[TimedLine], now: float) -> DetectorFinding | None:
    """A finding based on log lines alone. `lines` are in order of arrival, each with its arrival time."""
    steps = step_times(lines)
    if len(steps) > WARMUP_STEPS + MIN_INTERVALS:
        return detect_hang(steps, now)
    return detect_hang([line.at for line in lines], now, floor_s=MIN_SILENCE_S)


def step_times(lines: Iterable[TimedLine]) -> list[float]:
    """The times at which the step number rose. A line that repeats a number, such as a watchdog's, is not a step."""
    times, furthest = [], -1
    for line in lines:
        match = STEP_COUNTER.search(line.text[:500])
        if match and int(match[1]) > furthest:
            furthest = int(match[1])
            times.append(line.at)
    return times


def _step_intervals(steps: Sequence[float], sections: Sequence[SectionInterval]) -> list[float]:
    """Intervals between steps, without those that overlap a section."""
    return [
        b - a
        for a, b in pairwise(steps)
        if not any(section.begin < b and (section.end or section.begin) > a for section in sections)
    ]


def _percentile_99(values: Sequence[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(0.99 * len(values)))]


def _detect_stuck_section(
    current: SectionInterval, sections: Iterable[SectionInterval], now: float
) -> DetectorFinding | None:
    longest: dict[str, float] = defaultdict(float)
    for section in sections:
        if section.end is not None:
            longest[section.name] = max(longest[section.name], section.end - section.begin)
    patience = max(MIN_SECTION_S, PATIENCE_FACTOR * longest[current.name])
    duration = now - current.begin
    if duration <= patience:
        return None
    return DetectorFinding(
        symptom=SymptomType.HANG,
        since=current.begin,
        subject=current.name,
        observed=duration,
        expected=patience,
        why=f'Section "{current.name}" has lasted for {duration:.0f} s; the limit is {patience:.0f} s.',
    )
