"""Derives step times and sections from the log of a job that does not report its steps. Pure.

A time is when a look at the log found a higher step, not when the step ended. A program with buffered output is silent
until a block is full, and that is normal for it. Step numbers are compared only with lines of the same shape, so that a
line about a future step (`will evaluate at step 2000`) does not hide the steps before it.

A line that announces a save, an evaluation or a compilation opens a section, in which no step is due; the next step
closes it. Work that the log does not announce counts as silence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

from failures.detection.findings import DetectorFinding
from failures.detection.hang import MIN_PATIENCE_S, MIN_SECTION_S, STEP_COUNTER, SectionInterval, detect_hang

MAX_MOMENTS = 260
MAX_SECTIONS = 40
MAX_SHAPES = 20
LOG_PATIENCE_FACTOR = 5.0  # with 3, one log in seventy was called a hang for a pause of six steps (bench/detectors.py)
MIN_BLOCKS, MIN_BLOCK_S, MIN_BLOCK_STEPS = 4, 20.0, 4  # 20 s: more than the time between two looks, and its delay
MAX_LINE_CHARS = 500
DIGITS = re.compile(r"\d+")
SECTION_PATTERNS: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "checkpoint",
        re.compile(
            r"(?i)\b(?:saving|writing|uploading|loading|restoring|flushing)\b.{0,80}"
            r"\b(?:checkpoint|ckpt|weights|model|optimi[sz]er|state|shards?)\b"
        ),
    ),
    (
        "evaluation",
        re.compile(r"(?i)\b(?:evaluating|validating|(?:running|starting|begin\w*) (?:the )?(?:eval|valid)\w*)"),
    ),
    ("compile", re.compile(r"(?i)\b(?:compiling|recompiling|autotuning|torch\.compile|building extension)\b")),
)


@dataclass(frozen=True, kw_only=True)
class CadenceState:
    """What has been read from one log so far."""

    furthest: Mapping[str, int] = field(default_factory=dict)  # highest step by shape of line
    moments: tuple[float, ...] = ()
    sections: tuple[SectionInterval, ...] = ()
    steps: tuple[int, ...] = ()  # number of new steps at each of the moments

    @property
    def is_buffered(self) -> bool:
        """Whether output is buffered: many steps at once, then none for several looks."""
        if len(self.moments) < MIN_BLOCKS:
            return False
        gaps = [b - a for a, b in pairwise(self.moments[-MIN_BLOCKS:])]
        return median(gaps) > MIN_BLOCK_S and median(self.steps[-MIN_BLOCKS:]) >= MIN_BLOCK_STEPS


def cadence_to_json(state: CadenceState) -> dict[str, Any]:
    """The state as JSON. `furthest` becomes pairs, because PostgreSQL does not keep the order of keys."""
    return asdict(state) | {"furthest": list(state.furthest.items())}


def cadence_from_json(stored: Mapping[str, Any] | None) -> CadenceState:
    if not stored:
        return CadenceState()
    return CadenceState(
        furthest=dict(stored["furthest"]),
        moments=tuple(stored["moments"]),
        sections=tuple(SectionInterval(**section) for section in stored["sections"]),
        steps=tuple(stored["steps"]),
    )


def update_cadence(before: CadenceState, lines: Iterable[str], at: float) -> CadenceState:
    """The state after the new `lines`, which were read at `at`."""
    furthest, sections, new_steps = dict(before.furthest), list(before.sections), 0
    for line in lines:
        if name := _section_name(line[:MAX_LINE_CHARS]):
            if not sections or sections[-1].end is not None:
                sections.append(SectionInterval(name=name, begin=at))
        elif _advances_step(line[:MAX_LINE_CHARS], furthest):
            new_steps += 1
            if sections and sections[-1].end is None:
                sections[-1] = SectionInterval(name=sections[-1].name, begin=sections[-1].begin, end=at)
    moments = (*before.moments, at) if new_steps else before.moments
    steps = (*before.steps, new_steps) if new_steps else before.steps
    newest = dict(list(furthest.items())[-MAX_SHAPES:])
    recent = tuple(sections[-MAX_SECTIONS:])
    return CadenceState(furthest=newest, moments=moments[-MAX_MOMENTS:], steps=steps[-MAX_MOMENTS:], sections=recent)


def detect_silence(state: CadenceState, now: float) -> DetectorFinding | None:
    """A finding if the log has counted no step for too long.

    The rule is that of reported steps, with a higher limit, because such a job does not declare its pauses.
    """
    if state.is_buffered:
        return _detect_missing_block(state, now)
    return detect_hang(state.moments, now, state.sections, floor_s=MIN_PATIENCE_S, factor=LOG_PATIENCE_FACTOR)


def _detect_missing_block(state: CadenceState, now: float) -> DetectorFinding | None:
    """A finding if the next block of buffered output is overdue.

    A block holds many steps, so blocks come evenly and a few of them show when the next one is due. The limit also
    includes the time of a section, because the line that announces it may be in the block that is not written yet.
    """
    longest = max((b - a for a, b in pairwise(state.moments[1:])), default=0.0)
    due_s = longest + MIN_SECTION_S
    return detect_hang(state.moments, now, state.sections, floor_s=due_s, factor=0.0, first=1, enough=MIN_BLOCKS - 2)


def _section_name(line: str) -> str:
    low = line.lower()
    if not ("ing" in low or "begin" in low or "torch.compile" in low):  # cheap test that rules out nine of ten lines
        return ""
    return next((name for name, pattern in SECTION_PATTERNS if pattern.search(line)), "")


def _advances_step(line: str, furthest: dict[str, int]) -> bool:
    """Whether a line has a higher step than any line of its shape. Keeps `furthest` in order of last use."""
    low = line.lower()
    if not ("step" in low or "iter" in low) or (match := STEP_COUNTER.search(line)) is None:
        return False
    shape, step = DIGITS.sub("#", line[: match.start(1)])[-60:], int(match[1])
    if step <= furthest.get(shape, -1):
        return False
    furthest.pop(shape, None)
    furthest[shape] = step
    return True
