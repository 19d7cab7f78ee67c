"""The immutable values of the diagnosis, from a parsed line to the result. Pure.

They contain data only: no file handles, no database rows, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class LineRole(StrEnum):
    """The role of a line in a failure. A cause ranks above a symptom, wherever they are in the log."""

    INITIATING = "initiating"
    CASCADE = "cascade"
    TEARDOWN = "teardown"
    BENIGN = "benign"  # looks like an error but is harmless; hides weaker findings on its own line
    PLACE = "place"  # only reports the host of a rank


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
    """One line of the log with its prefixes parsed. `number` counts from 1."""

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
    """A signature in the log: first line, last line, number of matches and the ranks that logged it."""

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
    more: tuple[ParsedLine, ...] = ()  # further lines with other words
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class ExitStatus:
    """How the process ended, if known. Signals are positive, as in signal(7)."""

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
    """One step from the cause to the last error."""

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
    """The result. It depends only on the text, the exit status and the rules."""

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
