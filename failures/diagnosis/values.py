"""What the diagnosis speaks in: frozen values from the reading of a log to the verdict. Pure.

Every value carries what the next reader needs and nothing of where it came from: no file handle, no row, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class LineRole(StrEnum):
    """What a line is in the story of a failure. A cause beats a symptom wherever the two stand in the log."""

    INITIATING = "initiating"
    CASCADE = "cascade"
    TEARDOWN = "teardown"
    BENIGN = "benign"  # looks frightening, means nothing: hides weaker findings on its own line
    PLACE = "place"  # says only which rank lives where


class Blame(StrEnum):
    NODE = "node"
    GPU = "gpu"
    NETWORK = "network"
    STORAGE = "storage"
    SCHEDULER = "scheduler"
    JOB = "job"


class RestartAdvice(StrEnum):
    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


class FailureCategory(StrEnum):
    INFRASTRUCTURE = "Infrastructure"
    FRAMEWORK = "Framework"
    SCRIPT = "Script"
    NONE = "None"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, kw_only=True)
class ParsedLine:
    """One line of the log, its prefixes understood. `number` counts from 1 as an editor does."""

    number: int
    text: str
    message: str
    rank: int | None = None
    host: str = ""
    gpu: int | None = None
    time: str = ""
    level: str = ""


@dataclass(frozen=True, kw_only=True)
class LogFinding:
    """A signature seen in the log: where first, where last, how often, by how many ranks."""

    signature: str
    label: str
    role: LineRole
    specificity: int
    blame: Blame
    restart: RestartAdvice | None
    line: ParsedLine
    count: int = 1
    last_number: int = 0
    ranks: tuple[int, ...] = ()
    frames: tuple[str, ...] = ()
    more: tuple[ParsedLine, ...] = ()
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class ExitStatus:
    """How the process ended, where somebody knows it. A signal is positive, as in signal(7)."""

    exit_code: int | None = None
    signal: int | None = None

    @property
    def known(self) -> bool:
        return self.exit_code is not None or self.signal is not None


@dataclass(frozen=True, kw_only=True)
class EvidenceLine:
    line: int
    text: str
    rank: int | None
    host: str
    time: str
    signature: str
    count: int = 1


@dataclass(frozen=True, kw_only=True)
class ChainLink:
    """One step from the cause to the loud last line."""

    role: LineRole
    label: str
    line: int
    text: str
    time: str
    count: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class SuspectGpu:
    host: str
    pci: str = ""
    rank: int | None = None
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class SuspectNode:
    host: str
    why: str


@dataclass(frozen=True, kw_only=True)
class AlternativeCause:
    root_cause: str
    score: float
    line: int


@dataclass(frozen=True, kw_only=True)
class LogDiagnosis:
    """The answer. The same text and ending give the same answer under the same rules."""

    root_cause: str
    category: FailureCategory
    confidence: float
    evidence: tuple[EvidenceLine, ...]
    chain: tuple[ChainLink, ...]
    suspect_nodes: tuple[SuspectNode, ...]
    suspect_gpus: tuple[SuspectGpu, ...]
    restart_helps: RestartAdvice
    restart_reason: str
    action: str
    alternatives: tuple[AlternativeCause, ...]
    blame: Blame | None
    engine: str
    rules_version: str
    lines: int
    size: int
    notes: tuple[str, ...] = ()
