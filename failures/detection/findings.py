"""What a detector says: a symptom, since when, of whom, and what it is based on. Pure.

Moments are seconds (of any one clock), `now` is an argument, and a detector that knows too little finds nothing.
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
    subject: str = ""  # a rank, a node, a step range; empty: the attempt
    severity: Severity = Severity.BAD
    observed: float = 0.0
    expected: float = 0.0
