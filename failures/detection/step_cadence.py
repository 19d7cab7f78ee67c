"""How the log of a job that reports nothing counts its steps: its lines as they come → moments and sections. Pure.

A moment is when the log was seen to count further, not when a step ended: a program that writes by blocks is silent for
as long as a block takes to fill, and that is its usual. Numbers are compared with those of lines of the same shape, so
that a line which tells of a step to come (`will evaluate at step 2000`) does not hide those before it.

A line that says that a save, an evaluation or a compilation begins opens a section, in which no step is due; it ends
with the next step. What such a job does without a word is not known, and counts as silence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from failures.detection.findings import DetectorFinding
from failures.detection.hang import MIN_PATIENCE_S, MIN_SECTION_S, STEP_COUNTER, SectionInterval, detect_hang

MAX_MOMENTS = 260  # moments
MAX_SECTIONS = 40
MAX_SHAPES = 20
LOG_PATIENCE_FACTOR = 5.0  # with 3, one log in seventy was called a hang for a pause of six steps (bench/detectors.py)
MIN_BLOCKS, MIN_BLOCK_S, MIN_BLOCK_STEPS = 4, 20.0, 4  # moments that are looked at; longer than a look is late
MAX_LINE_CHARS = 500  # characters of a line that are looked at
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
    """What is known of one log so far."""

    furthest: Mapping[str, int] = field(default_factory=dict)  # by the shape of the line
    moments: tuple[float, ...] = ()
    sections: tuple[SectionInterval, ...] = ()
    steps: tuple[int, ...] = ()  # so many were told at each of the moments

    @property
    def is_buffered(self) -> bool:
        """Many steps at once, and then none for several looks: somebody buffers."""
        if len(self.moments) < MIN_BLOCKS:
            return False
        gaps = [b - a for a, b in pairwise(self.moments[-MIN_BLOCKS:])]
        return median(gaps) > MIN_BLOCK_S and median(self.steps[-MIN_BLOCKS:]) >= MIN_BLOCK_STEPS


def update_cadence(before: CadenceState, lines: Iterable[str], at: float) -> CadenceState:
    """The lines that came since the last look, in their order, seen at this moment."""
    furthest, sections, rose = dict(before.furthest), list(before.sections), 0
    for line in lines:
        if name := _section_name(line[:MAX_LINE_CHARS]):
            if not sections or sections[-1].end is not None:
                sections.append(SectionInterval(name=name, begin=at))
        elif _advances_step(line[:MAX_LINE_CHARS], furthest):
            rose += 1
            if sections and sections[-1].end is None:
                sections[-1] = SectionInterval(name=sections[-1].name, begin=sections[-1].begin, end=at)
    moments = (*before.moments, at) if rose else before.moments
    steps = (*before.steps, rose) if rose else before.steps
    newest = dict(list(furthest.items())[-MAX_SHAPES:])
    kept = tuple(sections[-MAX_SECTIONS:])
    return CadenceState(furthest=newest, moments=moments[-MAX_MOMENTS:], steps=steps[-MAX_MOMENTS:], sections=kept)


def detect_silence(heard: CadenceState, now: float) -> DetectorFinding | None:
    """The rule of steps that are reported, with more patience: nobody declares a pause here."""
    if heard.is_buffered:
        return _detect_missing_block(heard, now)
    return detect_hang(heard.moments, now, heard.sections, floor_s=MIN_PATIENCE_S, factor=LOG_PATIENCE_FACTOR)


def _detect_missing_block(heard: CadenceState, now: float) -> DetectorFinding | None:
    """A block holds many steps, so that blocks come evenly and a few of them tell when the next is due. It is given the
    time that a section may take besides: the word that one begins is in the block that is not written yet."""
    longest = max((b - a for a, b in pairwise(heard.moments[1:])), default=0.0)
    due_s = longest + MIN_SECTION_S
    return detect_hang(heard.moments, now, heard.sections, floor_s=due_s, factor=0.0, first=1, enough=MIN_BLOCKS - 2)


def _section_name(line: str) -> str:
    low = line.lower()
    if not ("ing" in low or "begin" in low or "torch.compile" in low):  # nine of ten lines; the patterns cost more
        return ""
    return next((name for name, pattern in SECTION_PATTERNS if pattern.search(line)), "")


def _advances_step(line: str, furthest: dict[str, int]) -> bool:
    """Whether it tells a higher step than any line of its shape; the shapes heard last stand last."""
    low = line.lower()
    if not ("step" in low or "iter" in low) or (found := STEP_COUNTER.search(line)) is None:
        return False
    shape, step = DIGITS.sub("#", line[: found.start(1)])[-60:], int(found[1])
    if step <= furthest.get(shape, -1):
        return False
    furthest.pop(shape, None)
    furthest[shape] = step
    return True
