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

from failures.detect.findings import Finding
from failures.detect.hang import FLOOR_S, SECTION_FLOOR_S, STEP, Section, hang

KEPT = 260  # moments
SECTIONS_KEPT = 40
SHAPES_KEPT = 20
FACTOR = 5.0  # with 3, one log in seventy was called a hang for a pause of six steps (bench/detectors.py)
BLOCKS, BLOCK_S, BLOCK_STEPS = 4, 20.0, 4  # moments that are looked at; longer than a look is late
LONGEST = 500  # characters of a line that are looked at
DIGITS = re.compile(r"\d+")
BEGINS: tuple[tuple[str, re.Pattern[str]], ...] = (
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
class Heard:
    """What is known of one log so far."""

    furthest: Mapping[str, int] = field(default_factory=dict)  # by the shape of the line
    moments: tuple[float, ...] = ()
    sections: tuple[Section, ...] = ()
    steps: tuple[int, ...] = ()  # so many were told at each of the moments

    @property
    def comes_in_blocks(self) -> bool:
        """Many steps at once, and then none for several looks: somebody buffers."""
        if len(self.moments) < BLOCKS:
            return False
        gaps = [b - a for a, b in pairwise(self.moments[-BLOCKS:])]
        return median(gaps) > BLOCK_S and median(self.steps[-BLOCKS:]) >= BLOCK_STEPS


def hear(before: Heard, lines: Iterable[str], at: float) -> Heard:
    """The lines that came since the last look, in their order, seen at this moment."""
    furthest, sections, rose = dict(before.furthest), list(before.sections), 0
    for line in lines:
        if name := _begins(line[:LONGEST]):
            if not sections or sections[-1].end is not None:
                sections.append(Section(name=name, begin=at))
        elif _counts(line[:LONGEST], furthest):
            rose += 1
            if sections and sections[-1].end is None:
                sections[-1] = Section(name=sections[-1].name, begin=sections[-1].begin, end=at)
    moments = (*before.moments, at) if rose else before.moments
    steps = (*before.steps, rose) if rose else before.steps
    newest = dict(list(furthest.items())[-SHAPES_KEPT:])
    kept = tuple(sections[-SECTIONS_KEPT:])
    return Heard(furthest=newest, moments=moments[-KEPT:], steps=steps[-KEPT:], sections=kept)


def silence(heard: Heard, now: float) -> Finding | None:
    """The rule of steps that are reported, with more patience: nobody declares a pause here."""
    if heard.comes_in_blocks:
        return _no_block(heard, now)
    return hang(heard.moments, now, heard.sections, floor_s=FLOOR_S, factor=FACTOR)


def _no_block(heard: Heard, now: float) -> Finding | None:
    """A block holds many steps, so that blocks come evenly and a few of them tell when the next is due. It is given the
    time that a section may take besides: the word that one begins is in the block that is not written yet."""
    longest = max((b - a for a, b in pairwise(heard.moments[1:])), default=0.0)
    due_s = longest + SECTION_FLOOR_S
    return hang(heard.moments, now, heard.sections, floor_s=due_s, factor=0.0, first=1, enough=BLOCKS - 2)


def _begins(line: str) -> str:
    low = line.lower()
    if not ("ing" in low or "begin" in low or "torch.compile" in low):  # nine of ten lines; the patterns cost more
        return ""
    return next((name for name, pattern in BEGINS if pattern.search(line)), "")


def _counts(line: str, furthest: dict[str, int]) -> bool:
    """Whether it tells a higher step than any line of its shape; the shapes heard last stand last."""
    low = line.lower()
    if not ("step" in low or "iter" in low) or (found := STEP.search(line)) is None:
        return False
    shape, step = DIGITS.sub("#", line[: found.start(1)])[-60:], int(found[1])
    if step <= furthest.get(shape, -1):
        return False
    furthest.pop(shape, None)
    furthest[shape] = step
    return True
