"""How sure: the share of answers of this kind that were right on labelled logs. Pure.

A table, not a formula: set by what came out at first sight of 611 logs (what work that was seen says of health: of 458
later ones), never by what the rules say of logs they were tuned on (`bench/diagnosis.py accuracy` prints it for any
labelled set). It is coarse; a finer one would only remember its logs.
"""

from __future__ import annotations

from .labels import NONE, UNKNOWN
from .reader import MENTION_NOTE, LogReading
from .values import LineRole, LogFinding

CAUSE_CONFIDENCE: tuple[tuple[int, float], ...] = (
    (90, 0.96),
    (80, 0.94),
    (70, 0.92),
    (45, 0.91),
    (36, 0.78),
    (0, 0.5),
)
SYMPTOM_CONFIDENCE: tuple[tuple[int, float], ...] = (
    (60, 0.86),
    (50, 0.78),
    (44, 0.74),
    (36, 0.68),
    (20, 0.5),
    (0, 0.35),
)
RIVAL_PENALTY = 0.12  # each other cause of about the same weight takes this much
RIVAL_MARGIN = 12


def finding_confidence(finding: LogFinding) -> float:
    """Of one finding by itself."""
    rows = CAUSE_CONFIDENCE if finding.role is LineRole.INITIATING else SYMPTOM_CONFIDENCE
    return next(value for least, value in rows if finding.specificity >= least)


def diagnosis_confidence(
    label: str, root: LogFinding | None, ranked: list[LogFinding], reading: LogReading, seen_working: bool
) -> float:
    if label == UNKNOWN:
        return 0.0
    if label == NONE:
        return 0.5 if reading.sentence else 0.8 if seen_working else 0.4  # silence alone proves little
    if root is None:
        return 0.0
    rivals = {finding.label for finding in ranked if _is_rival(root, finding)}
    return round(max(0.2, finding_confidence(root) - RIVAL_PENALTY * min(2, len(rivals))), 2)


def _is_rival(root: LogFinding, finding: LogFinding) -> bool:
    """Another cause of nearly the same weight; what was only mentioned is no rival."""
    near = root.specificity - finding.specificity < RIVAL_MARGIN
    return near and finding.role is root.role and finding.label != root.label and finding.note != MENTION_NOTE
