"""The table of remedies: one row for each cause. Pure: operators read this table to know what recovery does.

It has three columns. `named` applies when the evidence names nodes, `unnamed` when it does not, `again` when the same
cause recurred without progress. ELSEWHERE leaves the named nodes out; if none is named, all are tested. Named nodes are
drained if telemetry or the cluster confirms the fault, and otherwise closed only while they are tested. A program error
is never restarted: it would waste the same GPU-hours again.
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
    """Whether an action is only recorded, proposed for approval, or carried out automatically."""

    OBSERVE = "observe"
    PROPOSE = "propose"
    ACT = "act"

    @property
    def rank(self) -> int:
        return list(AutomationMode).index(self)


# Each of these makes the job run again, now or later
RESTART_ACTIONS = frozenset(
    {
        RecoveryAction.RESTART,
        RecoveryAction.ELSEWHERE,
        RecoveryAction.TEST,
        RecoveryAction.ROLL_BACK,
        RecoveryAction.WAIT,
    }
)
RERUN_ACTIONS = RESTART_ACTIONS | {RecoveryAction.RESIZE}  # RESIZE restarts only if a smaller request is known
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
    "ECCError":               _remedy(ELSEWHERE, TEST,      ELSEWHERE, "the memory of a GPU is damaged; other GPUs are not affected"),
    "GPUFallenOffBus":        _remedy(ELSEWHERE, TEST,      ELSEWHERE, "the GPU is unavailable until its node is power cycled"),
    "NVLinkError":            _remedy(ELSEWHERE, TEST,      TEST,      "a link between GPUs failed; pair tests find which one"),
    "NodeFailure":            _remedy(ELSEWHERE, RESTART,   ELSEWHERE, "node failure, not a program error"),
    "SlurmNodeFail":          _remedy(ELSEWHERE, RESTART,   ELSEWHERE, "node failure, not a program error"),
    # a part or the program: it is the program if it comes back elsewhere
    "CUDAError":              _remedy(ELSEWHERE, RESTART,   STOP,      "a faulty GPU stays on its node, a faulty kernel fails on every node"),
    "XidOther":               _remedy(ELSEWHERE, TEST,      STOP,      "an Xid that recurs on another GPU is caused by the program"),
    "NCCLTimeoutError":       _remedy(TEST,      TEST,      RESTART,   "a rank did not respond; pair tests find the faulty node"),
    "NCCLRemoteError":        _remedy(TEST,      RESTART,   TEST,      "a peer disconnected; the named node is tested"),
    "Hang":                   _remedy(TEST,      TEST,      STOP,      "a lost peer is transient, a deadlock in the program recurs"),
    "NodeHealth":             _remedy(TEST,      TEST,      TEST,      "the node reports a fault that would affect new jobs"),
    "SlowNode":               _remedy(ELSEWHERE, NOTHING,   ELSEWHERE, "all ranks wait for the slowest node; without it the job runs at full speed"),
    # a service: many jobs, one cause, one wait
    "NetworkError":           _remedy(ELSEWHERE, WAIT,      WAIT,      "the network failed; a named host can be left out, an outage must end first"),
    "ConnectionError":        _remedy(WAIT,      WAIT,      WAIT,      "the service is unavailable; an immediate retry would fail again"),
    "S3StorageError":         _remedy(WAIT,      WAIT,      WAIT,      "the object store is overloaded or unavailable; an immediate retry adds load"),
    # nothing is broken
    "Preempted/TimeLimit":    _remedy(RESTART,   RESTART,   RESTART,   "nothing is broken; the job continues from its checkpoint"),
    # the weights or a file is damaged
    "LossNaNOrSpike":         _remedy(ROLL_BACK, ROLL_BACK, ROLL_BACK, "the same weights and data would diverge again"),
    "CheckpointCorrupt":      _remedy(ROLL_BACK, ROLL_BACK, ROLL_BACK, "the file stays damaged; an earlier checkpoint may be complete"),
    # it needs more than it has
    "OutOfMemoryError":       _remedy(RESIZE,    RESIZE,    RESIZE,    "the same batch needs the same GPU memory"),
    "HostOOMKilled":          _remedy(RESIZE,    RESIZE,    RESIZE,    "the job would need as much host memory again"),
    "DataloaderKilled":       _remedy(RESIZE,    RESIZE,    RESIZE,    "the workers would need as much memory again"),
    # the program
    "AttributeError":         _stop("the same code fails on the same object"),
    "RuntimeError":           _stop("the same code and input fail the same way"),
    "AssertionError":         _stop("the same configuration violates the same condition"),
    "ValueError":             _stop("the same configuration gives the same value"),
    "ZeroDivisionError":      _stop("the same division by zero happens again"),
    "ModelLoadingError":      _stop("the same weights do not fit the same model"),
    "DatasetLoadingError":    _stop("the same data set fails to load again"),
    "FileNotFoundError":      _stop("the path will still be missing"),
    "OSError":                _stop("the system call fails the same way"),
    "TypeError":              _stop("the same call fails again"),
    "NameError":              _stop("the same code fails again"),
    "PermissionError":        _stop("the file permissions do not change by themselves"),
    "ImportError":            _stop("the package will still be missing"),
    "KeyError":               _stop("the same key is missing again"),
    "SyntaxError":            _stop("the same file has the same syntax error"),
    "ArgumentError":          _stop("the same command line is rejected again"),
    "CalledProcessError":     _stop("the same command fails again"),
    "IndexError":             _stop("the same index is out of range again"),
    "DiskFull":               _stop("the disk is still full"),
    # The cause is unknown: one restart costs less than a healthy run that stays stopped
    "Unknown":                _remedy(RESTART,   RESTART,   STOP,      "cause unknown, usually transient; investigate if it happens again"),
    "None":                   _remedy(NOTHING,   NOTHING,   NOTHING,   "nothing failed"),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ActionTerms:
    """The terms that apply to every action of a kind."""

    undo: str
    expires: timedelta  # older failures are not acted on
    most: int  # actions of this kind for one job
    within: timedelta


HALF_HOUR, HOUR, DAY = timedelta(minutes=30), timedelta(hours=1), timedelta(days=1)


def _action_terms(undo: str, expires: timedelta, most: int, within: timedelta) -> ActionTerms:
    return ActionTerms(undo=undo, expires=expires, most=most, within=within)


ACTION_TERMS: dict[RecoveryAction, ActionTerms] = {
    NOTHING:   _action_terms("There is nothing to undo.", HALF_HOUR, 1_000_000, HOUR),
    RESTART:   _action_terms("Hold or cancel the job while it waits.", HALF_HOUR, 3, HOUR),
    ELSEWHERE: _action_terms("Resume the nodes that were drained; hold or cancel the job while it waits.", HALF_HOUR, 3, HOUR),
    TEST:      _action_terms("Cancel the tests and resume the nodes; hold or cancel the job while it waits.", HALF_HOUR, 2, HOUR),
    ROLL_BACK: _action_terms("Hold the job and requeue it from its newest checkpoint, without skipping data.", HALF_HOUR, 3, DAY),
    WAIT:      _action_terms("Release the job to start it without waiting.", 4 * HOUR, 30, DAY),
    RESIZE:    _action_terms("Hold the job while it waits; its previous request is restored.", DAY, 1, DAY),
    STOP:      _action_terms("Requeue the job.", DAY, 1_000_000, DAY),
}  # fmt: skip
