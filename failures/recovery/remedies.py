"""What helps against what: one row for each cause, readable by those who will have to trust it. Pure.

Three columns. `named` is what to do when the evidence names nodes, `unnamed` when it names none, `again` when the same
cause came back without a step of progress. ELSEWHERE leaves the named nodes out; where none is named, all are tested. A
program's own error is never restarted: it would burn the same GPU-hours.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum


class RecoveryAction(StrEnum):
    NOTHING = "nothing"
    RESTART = "restart"
    ELSEWHERE = "restart elsewhere"
    TEST = "test nodes"
    ROLL_BACK = "roll back"
    WAIT = "wait"
    RESIZE = "ask for more"
    STOP = "stop"


class AutomationMode(StrEnum):
    """How far a deed may go by itself."""

    OBSERVE = "observe"
    PROPOSE = "propose"
    ACT = "act"

    @property
    def rank(self) -> int:
        return list(AutomationMode).index(self)


# Each of them makes the job run again, now or later
RESTART_ACTIONS = frozenset(
    {
        RecoveryAction.RESTART,
        RecoveryAction.ELSEWHERE,
        RecoveryAction.TEST,
        RecoveryAction.ROLL_BACK,
        RecoveryAction.WAIT,
    }
)
RERUN_ACTIONS = RESTART_ACTIONS | {RecoveryAction.RESIZE}  # the last of them where it is known what to ask for instead
CORDON_ACTIONS = frozenset({RecoveryAction.ELSEWHERE, RecoveryAction.TEST})


@dataclass(frozen=True, kw_only=True)
class Remedy:
    named: RecoveryAction
    unnamed: RecoveryAction
    again: RecoveryAction
    why: str


def _remedy(named: RecoveryAction, unnamed: RecoveryAction, again: RecoveryAction, why: str) -> Remedy:
    return Remedy(named=named, unnamed=unnamed, again=again, why=why)


def _stop(why: str) -> Remedy:
    return _remedy(RecoveryAction.STOP, RecoveryAction.STOP, RecoveryAction.STOP, why)


RESTART, ELSEWHERE, TEST, WAIT = (
    RecoveryAction.RESTART,
    RecoveryAction.ELSEWHERE,
    RecoveryAction.TEST,
    RecoveryAction.WAIT,
)
ROLL_BACK, RESIZE, STOP, NOTHING = (
    RecoveryAction.ROLL_BACK,
    RecoveryAction.RESIZE,
    RecoveryAction.STOP,
    RecoveryAction.NOTHING,
)

#   cause                     the evidence names nodes   names none   it came back      why
REMEDIES: dict[str, Remedy] = {
    # a part is broken
    "ECCError":               _remedy(ELSEWHERE, TEST,      ELSEWHERE, "a GPU's memory is damaged, another GPU's is not"),
    "GPUFallenOffBus":        _remedy(ELSEWHERE, TEST,      ELSEWHERE, "the GPU is gone until its node is power cycled"),
    "NVLinkError":            _remedy(ELSEWHERE, TEST,      TEST,      "a link between GPUs failed; which one, two rounds of pairs tell"),
    "NodeFailure":            _remedy(ELSEWHERE, RESTART,   ELSEWHERE, "the node is gone, the program is not at fault"),
    "SlurmNodeFail":          _remedy(ELSEWHERE, RESTART,   ELSEWHERE, "the cluster lost the node, the program is not at fault"),
    # a part or the program: it is the program if it comes back elsewhere
    "CUDAError":              _remedy(ELSEWHERE, RESTART,   STOP,      "a sick GPU does not follow the job, a bad kernel does"),
    "XidOther":               _remedy(ELSEWHERE, TEST,      STOP,      "a code that follows the job to another GPU blames the program"),
    "NCCLTimeoutError":       _remedy(TEST,      TEST,      RESTART,   "a rank did not arrive; two rounds of pairs tell which node cannot talk"),
    "NCCLRemoteError":        _remedy(TEST,      RESTART,   TEST,      "a peer went away; the named one is tested"),
    "Hang":                   _remedy(TEST,      TEST,      STOP,      "a lost peer passes, a deadlock in the program comes back"),
    "NodeHealth":             _remedy(TEST,      TEST,      TEST,      "the node reports a fault; new work there would meet it"),
    "SlowNode":               _remedy(ELSEWHERE, NOTHING,   ELSEWHERE, "everybody waits for the slowest; without it the job keeps its pace"),
    # a service: many jobs, one cause, one wait
    "NetworkError":           _remedy(ELSEWHERE, WAIT,      WAIT,      "the fabric failed; a named host can be left out, an outage is waited for"),
    "ConnectionError":        _remedy(WAIT,      WAIT,      WAIT,      "services come back; asking at once is refused again"),
    "S3StorageError":         _remedy(WAIT,      WAIT,      WAIT,      "object stores recover; asking at once makes it worse"),
    # nothing is broken
    "Preempted/TimeLimit":    _remedy(RESTART,   RESTART,   RESTART,   "nothing is broken; it goes on from its checkpoint"),
    # the weights or a file went bad
    "LossNaNOrSpike":         _remedy(ROLL_BACK, ROLL_BACK, ROLL_BACK, "the same weights and data lead there again"),
    "CheckpointCorrupt":      _remedy(ROLL_BACK, ROLL_BACK, ROLL_BACK, "the file stays damaged; the one before it may be whole"),
    # it needs more than it has
    "OutOfMemoryError":       _remedy(RESIZE,    RESIZE,    RESIZE,    "the same batch needs the same GPU memory"),
    "HostOOMKilled":          _remedy(RESIZE,    RESIZE,    RESIZE,    "it will need as much host memory again"),
    "DataloaderKilled":       _remedy(RESIZE,    RESIZE,    RESIZE,    "the workers will need as much memory again"),
    # the program
    "AttributeError":         _stop("the same code meets the same object"),
    "RuntimeError":           _stop("the same code and input fail the same way"),
    "AssertionError":         _stop("the same configuration breaks the same condition"),
    "ValueError":             _stop("the same configuration gives the same value"),
    "ZeroDivisionError":      _stop("the same numbers divide again"),
    "ModelLoadingError":      _stop("the same weights do not fit the same model"),
    "DatasetLoadingError":    _stop("the same data set loads the same way"),
    "FileNotFoundError":      _stop("the path will still be missing"),
    "OSError":                _stop("the system call fails the same way"),
    "TypeError":              _stop("the same call fails again"),
    "NameError":              _stop("the same code fails again"),
    "PermissionError":        _stop("rights do not change by themselves"),
    "ImportError":            _stop("the package will still be missing"),
    "KeyError":               _stop("the same data lack the same key"),
    "SyntaxError":            _stop("the same file does not parse"),
    "ArgumentError":          _stop("the same command line is refused again"),
    "CalledProcessError":     _stop("the same command fails again"),
    "IndexError":             _stop("the same index is out of range again"),
    "DiskFull":               _stop("the disk is still full"),
    # nobody knows; one restart costs less than a healthy run that stands still
    "Unknown":                _remedy(RESTART,   RESTART,   STOP,      "the cause is not known; most such ends pass, a second one must be looked at"),
    "None":                   _remedy(NOTHING,   NOTHING,   NOTHING,   "nothing failed"),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ActionTerms:
    """What every deed of a kind comes with."""

    undo: str
    expires: timedelta  # a failure older than this is not acted on any more
    most: int  # of this kind for one job
    within: timedelta


HALF_HOUR, HOUR, DAY = timedelta(minutes=30), timedelta(hours=1), timedelta(days=1)


def _action_terms(undo: str, expires: timedelta, most: int, within: timedelta) -> ActionTerms:
    return ActionTerms(undo=undo, expires=expires, most=most, within=within)


ACTION_TERMS: dict[RecoveryAction, ActionTerms] = {
    NOTHING:   _action_terms("Nothing was done.", HALF_HOUR, 1_000_000, HOUR),
    RESTART:   _action_terms("Hold or cancel the job while it waits.", HALF_HOUR, 3, HOUR),
    ELSEWHERE: _action_terms("Resume the nodes that were drained; hold or cancel the job while it waits.", HALF_HOUR, 3, HOUR),
    TEST:      _action_terms("Cancel the tests and resume the nodes; hold or cancel the job while it waits.", HALF_HOUR, 2, HOUR),
    ROLL_BACK: _action_terms("Hold the job and requeue it from its newest checkpoint, with no data left out.", HALF_HOUR, 3, DAY),
    WAIT:      _action_terms("Release the job; it starts without the wait.", 4 * HOUR, 30, DAY),
    RESIZE:    _action_terms("Hold the job while it waits; it asks for what it asked for before.", DAY, 1, DAY),
    STOP:      _action_terms("Requeue it.", DAY, 1_000_000, DAY),
}  # fmt: skip
