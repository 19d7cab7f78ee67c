"""The confidence of a diagnosis: the share of similar results that were correct on labeled logs. Pure.

The values are a table, not a formula. They were measured on 611 logs that the rules had not been tuned on (for `None`
after visible progress: on 458 later ones). `bench/diagnosis.py accuracy` prints them for any labeled set. The table is
coarse on purpose; a finer one would overfit its logs.
"""

from __future__ import annotations

from .labels import NONE, UNKNOWN
from .reader import MENTION_NOTE, LogReading
from .values import LineRole, LogFinding

# (minimum specificity, confidence)
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
RIVAL_PENALTY = 0.12  # subtracted for each other cause of about the same specificity
RIVAL_MARGIN = 12


def finding_confidence(finding: LogFinding) -> float:
    """The confidence of one finding by itself."""
    rows = CAUSE_CONFIDENCE if finding.role is LineRole.INITIATING else SYMPTOM_CONFIDENCE
    return next(value for least, value in rows if finding.specificity >= least)


def diagnosis_confidence(
    label: str, root: LogFinding | None, ranked: list[LogFinding], reading: LogReading, seen_working: bool
) -> float:
    if label == UNKNOWN:
        return 0.0
    if label == NONE:
        return 0.5 if reading.sentence else 0.8 if seen_working else 0.4  # a log without errors alone proves little
    if root is None:
        return 0.0
    rivals = {finding.label for finding in ranked if _is_rival(root, finding)}
    return round(max(0.2, finding_confidence(root) - RIVAL_PENALTY * min(2, len(rivals))), 2)


def _is_rival(root: LogFinding, finding: LogFinding) -> bool:
    """Whether a finding is another cause of nearly the same specificity. Mentions do not count."""
    near = root.specificity - finding.specificity < RIVAL_MARGIN
    return near and finding.role is root.role and finding.label != root.label and finding.note != MENTION_NOTE
