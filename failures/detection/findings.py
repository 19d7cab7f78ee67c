"""The result of a detector: a symptom, its start, its subject and the measured values. Pure.

Times are seconds of one arbitrary clock and `now` is an argument. A detector without enough data returns no finding.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class SymptomType(StrEnum):
    HANG = "hang"
    SLOW = "slow"  # the whole job
    SLOW_RANK = "slow_rank"
    SLOW_NODE = "slow_node"
    LOSS_SPIKE = "loss_spike"
    NAN = "nan"
    NODE = "node"


class Severity(StrEnum):
    NOTE = "note"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True, kw_only=True)
class DetectorFinding:
    symptom: SymptomType
    since: float
    why: str
    subject: str = ""  # a rank, a node or a step range; empty means the whole attempt
    severity: Severity = Severity.BAD
    observed: float = 0.0
    expected: float = 0.0
