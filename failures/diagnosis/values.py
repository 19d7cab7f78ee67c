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


class SignatureTrait(StrEnum):
    """What is special about a signature besides its role, label and specificity."""

    # How a matching line is read
    EXCEPTION = "exception"  # the name of the exception gives the label
    HEALTH_CODE = "health code"  # the DCGM catalog gives the label
    GPU_EVENT = "GPU event"  # the Xid and SXid catalogs give label, role and specificity
    ERROR_CODE = "error code"  # a code is more precise than other signatures on the same line
    VARIED = "varied"  # each line may name another error, so many lines are parsed before they are only counted
    AMBIGUOUS = "ambiguous"  # harmless, unless an exception below a traceback has these words in its message

    # What other lines of the log mean for it, or it for them
    TRACEBACK = "traceback"  # an exception with an unknown name may follow below
    PROCESS_KILLED = "process killed"  # makes lines about lost processes less specific
    LOST_AFTER_KILL = "lost after kill"  # less specific if a process was killed before
    LOST_WITH_KILL = "lost with kill"  # less specific if a process was killed, in any order
    STEP_KILL = "step kill"  # teardown if Slurm prints it after a task of the step has failed
    SCHEDULER_STOP = "scheduler stop"  # a symptom if a certain cause with another label precedes it
    EXPLAINS_NODE_FAILURE = "explains node failure"  # remains the cause after a node failure: the node was taken away
    TRUNCATED_DATA = "truncated data"  # teardown in a spawned process: its parent died while it wrote the start data
    HEALTHY_RANKS_COMPLAIN = "healthy ranks complain"  # the suspect is the rank that reports nothing

    # What continued work proves
    NO_TRAINING = "no training"  # steps continue, but nothing is trained: progress does not refute it
    RECORD_ONLY = "record only"  # memory is recorded for repair, the data was corrected: progress refutes it
    CLOSING_SIGNAL = "closing signal"  # sent to healthy workers too, before or after they report success


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
class CollectivePosition:
    """The collective operation in which a rank timed out. Operations are numbered per process group."""

    rank: int
    group: str
    sequence: int
    operation: str


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
    traits: tuple[SignatureTrait, ...] = ()
    collectives: tuple[CollectivePosition, ...] = ()  # of a collective timeout


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
