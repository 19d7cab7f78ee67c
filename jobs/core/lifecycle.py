"""Defines the states of jobs and nodes, and the allowed transitions between job states. Pure.

The names are Slurm's, because operators read them daily: one base state plus flags. `TRANSITIONS` is the only table of
allowed transitions. Each entry has a sentence that explains it; a state without an entry that starts from it is final.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from acmeweb.common.errors import StateConflict


class State(StrEnum):
    """The base state of a job or of one attempt."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    COMPLETED = "COMPLETED"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"
    TIMEOUT = "TIMEOUT"
    NODE_FAIL = "NODE_FAIL"
    PREEMPTED = "PREEMPTED"
    BOOT_FAIL = "BOOT_FAIL"
    DEADLINE = "DEADLINE"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    UNKNOWN = "UNKNOWN"  # attempts only: the cluster no longer knows the attempt, and nothing shows how it ended


class Flag(StrEnum):
    """What happens to a job in addition to its base state; a job may have several flags."""

    LAUNCH_FAILED = "LAUNCH_FAILED"
    COMPLETING = "COMPLETING"
    STAGE_OUT = "STAGE_OUT"
    CONFIGURING = "CONFIGURING"
    POWER_UP_NODE = "POWER_UP_NODE"
    RECONFIG_FAIL = "RECONFIG_FAIL"
    RESIZING = "RESIZING"
    REQUEUED = "REQUEUED"
    REQUEUE_FED = "REQUEUE_FED"
    REQUEUE_HOLD = "REQUEUE_HOLD"
    SPECIAL_EXIT = "SPECIAL_EXIT"
    STOPPED = "STOPPED"
    REVOKED = "REVOKED"
    RESV_DEL_HOLD = "RESV_DEL_HOLD"
    SIGNALING = "SIGNALING"
    RECOVERING = "RECOVERING"  # Acme only: waiting for a recovery decision
    OUTCOME_UNKNOWN = "OUTCOME_UNKNOWN"  # Acme only: a user must record how the last attempt ended


class JobKind(StrEnum):
    """The kind of work, with the categories of the Acme trace."""

    # Equality is that of the string, so its hash is correct. The hash of Enum is slow because it runs in Python
    __hash__ = str.__hash__

    PRETRAIN = "pretrain"
    SFT = "sft"
    MLLM = "mllm"
    EVALUATION = "evaluation"
    DEBUG = "debug"
    OTHER = "other"


STATE_CODES: dict[str, str] = {
    State.PENDING: "PD",
    State.RUNNING: "R",
    State.SUSPENDED: "S",
    State.COMPLETED: "CD",
    State.CANCELLED: "CA",
    State.FAILED: "F",
    State.TIMEOUT: "TO",
    State.NODE_FAIL: "NF",
    State.PREEMPTED: "PR",
    State.BOOT_FAIL: "BF",
    State.DEADLINE: "DL",
    State.OUT_OF_MEMORY: "OOM",
    State.UNKNOWN: "UN",
    Flag.COMPLETING: "CG",
    Flag.CONFIGURING: "CF",
    Flag.STAGE_OUT: "SO",
    Flag.RESIZING: "RS",
    Flag.REQUEUED: "RQ",
    Flag.REQUEUE_FED: "RF",
    Flag.REQUEUE_HOLD: "RH",
    Flag.SPECIAL_EXIT: "SE",
    Flag.STOPPED: "ST",
    Flag.REVOKED: "RV",
    Flag.RESV_DEL_HOLD: "RD",
    Flag.SIGNALING: "SI",
    Flag.RECOVERING: "RC",
    Flag.OUTCOME_UNKNOWN: "OU",
}

TRANSITIONS: dict[tuple[State, State], str] = {
    (State.PENDING, State.RUNNING): "The scheduler allocated nodes and GPUs; CONFIGURING until the cluster starts it.",
    (State.PENDING, State.CANCELLED): "A user cancelled it before it started.",
    (
        State.PENDING,
        State.FAILED,
    ): "It can never start: a dependency ended in the wrong state, the cluster rejected it, or its failure is final.",
    (State.PENDING, State.DEADLINE): "Its deadline passed while it waited.",
    (State.PENDING, State.COMPLETED): "The outcome of its last attempt was unknown; it had succeeded.",
    (State.PENDING, State.TIMEOUT): "The outcome of its last attempt was unknown; it had reached its time limit.",
    (State.PENDING, State.PREEMPTED): "The outcome of its last attempt was unknown; it had been preempted.",
    (State.PENDING, State.NODE_FAIL): "One of its nodes failed, and recovery did not restart it.",
    (State.PENDING, State.BOOT_FAIL): "Its nodes did not boot, and recovery did not restart it.",
    (State.PENDING, State.OUT_OF_MEMORY): "It used too much memory, and recovery did not restart it.",
    (
        State.RUNNING,
        State.PENDING,
    ): "It returns to its place in the queue: requeued, preempted, or its launch was rejected.",
    (State.RUNNING, State.SUSPENDED): "The cluster suspended its processes; its GPUs stay allocated.",
    (State.RUNNING, State.COMPLETED): "Its command ended with exit code 0.",
    (State.RUNNING, State.FAILED): "Its command ended with another exit code or by a signal.",
    (State.RUNNING, State.CANCELLED): "A user cancelled it.",
    (State.RUNNING, State.TIMEOUT): "It reached its time limit.",
    (State.RUNNING, State.NODE_FAIL): "One of its nodes failed, and no requeues remain.",
    (State.RUNNING, State.PREEMPTED): "It was preempted and may not be requeued.",
    (State.RUNNING, State.BOOT_FAIL): "Its nodes did not boot, and no requeues remain.",
    (State.RUNNING, State.DEADLINE): "Its deadline passed while it ran.",
    (State.RUNNING, State.OUT_OF_MEMORY): "It exceeded its memory limit.",
    (State.SUSPENDED, State.RUNNING): "The cluster resumed it.",
    (State.SUSPENDED, State.PENDING): "It was requeued while it was suspended.",
    (State.SUSPENDED, State.COMPLETED): "It completed between two observations of the cluster.",
    (State.SUSPENDED, State.FAILED): "It failed between two observations of the cluster.",
    (State.SUSPENDED, State.CANCELLED): "A user cancelled it while it was suspended.",
    (State.SUSPENDED, State.TIMEOUT): "It reached its time limit while it was suspended.",
    (State.SUSPENDED, State.DEADLINE): "Its deadline passed while it was suspended.",
    (State.SUSPENDED, State.NODE_FAIL): "One of its nodes failed while it was suspended.",
}

JOB_STATES = tuple(state for state in State if state != State.UNKNOWN)
# Derived from the table, so a new transition cannot contradict this set
FINAL_STATES = frozenset(State) - {source for source, _ in TRANSITIONS}
RECOVERING = "Recovering"  # wait reason of a job that waits for recovery, like Slurm's JobHeldUser for a held job
POWER = "Power"  # wait reason of a job for which power budgets leave too little
OUTCOME_UNKNOWN = "OutcomeUnknown"  # wait reason of a job whose outcome a user must record
LIVE_STATES = frozenset({State.RUNNING, State.SUSPENDED})  # the job has a live attempt, which holds GPUs

# Failures of the platform. They consume a requeue instead of ending the job, as long as any remain.
PLATFORM_FAILURES = frozenset({State.NODE_FAIL, State.BOOT_FAIL})

# Ends that need a diagnosis. A cancel and a preemption have a known cause.
FAILURE_STATES = frozenset(
    {State.FAILED, State.TIMEOUT, State.NODE_FAIL, State.BOOT_FAIL, State.DEADLINE, State.OUT_OF_MEMORY}
)


def check_transition(source: State, target: State) -> None:
    if (source, target) not in TRANSITIONS:
        raise StateConflict(f"a job that is {source} cannot become {target}")


@dataclass(frozen=True, kw_only=True)
class StateBadge:
    """How a page shows a state: label, code and icon, so that color is never the only difference."""

    label: str
    code: str
    tone: str
    icon: str


@dataclass(frozen=True, kw_only=True)
class StatusBadge:
    """How a page shows the status of a setting, a check or a run: icon and label in a tone, without a short code.

    With `since`, the page shows that time in place of the label.
    """

    tone: str
    icon: str
    label: str = ""
    since: datetime | None = None
    title: str = ""


# Tones are names of custom properties in app.css. Icons are characters of DejaVu, so that terminals print them too.
STATE_STYLES: dict[str, tuple[str, str]] = {
    State.PENDING: ("waiting", "…"),
    State.RUNNING: ("running", "▶"),
    State.SUSPENDED: ("waiting", "‖"),
    State.COMPLETED: ("good", "✓"),
    State.CANCELLED: ("quiet", "⊘"),
    State.FAILED: ("bad", "✗"),
    State.TIMEOUT: ("warn", "◷"),
    State.NODE_FAIL: ("bad", "⚡"),
    State.PREEMPTED: ("warn", "⇤"),
    State.BOOT_FAIL: ("bad", "⚡"),
    State.DEADLINE: ("warn", "◷"),
    State.OUT_OF_MEMORY: ("bad", "▲"),
    State.UNKNOWN: ("warn", "?"),
    Flag.CONFIGURING: ("starting", "◌"),
    Flag.COMPLETING: ("starting", "◍"),
    Flag.SIGNALING: ("warn", "!"),
    Flag.RECOVERING: ("warn", "↺"),
    Flag.OUTCOME_UNKNOWN: ("warn", "?"),
    Flag.REQUEUED: ("waiting", "↻"),
    Flag.REQUEUE_HOLD: ("waiting", "‖"),
}

# Flags that replace the name of the state, as in squeue. The first one that is present counts.
TITLE_FLAGS = (
    *(Flag.SIGNALING, Flag.CONFIGURING, Flag.COMPLETING),
    *(Flag.OUTCOME_UNKNOWN, Flag.RECOVERING, Flag.REQUEUE_HOLD, Flag.REQUEUED),
)


def state_title(state: State, flags: Iterable[str] = ()) -> State | Flag:
    """Return the one word that names a state with its flags. A final state always has its own name."""
    present = set(flags)
    return next((flag for flag in TITLE_FLAGS if flag in present and state not in FINAL_STATES), state)


def badge(state: State, flags: Iterable[str] = ()) -> StateBadge:
    word = state_title(state, flags)
    tone, icon = STATE_STYLES[word]
    return StateBadge(label=str(word), code=STATE_CODES[word], tone=tone, icon=icon)


class NodeState(StrEnum):
    IDLE = "IDLE"
    MIXED = "MIXED"
    ALLOCATED = "ALLOCATED"
    DOWN = "DOWN"
    ERROR = "ERROR"
    UNKNOWN = "UNKNOWN"


class NodeFlag(StrEnum):
    COMPLETING = "COMPLETING"
    DRAIN = "DRAIN"
    MAINTENANCE = "MAINTENANCE"
    RESERVED = "RESERVED"
    FAIL = "FAIL"
    PLANNED = "PLANNED"
    NOT_RESPONDING = "NOT_RESPONDING"
    POWER_DOWN = "POWER_DOWN"  # it is to power down when its jobs have ended
    POWERING_DOWN = "POWERING_DOWN"
    POWERED_DOWN = "POWERED_DOWN"
    POWERING_UP = "POWERING_UP"
    UNREADABLE = "UNREADABLE"  # Acme only: the cluster's row of the node is invalid, so the other values are old


USABLE_NODE_STATES = frozenset({NodeState.IDLE, NodeState.MIXED, NodeState.ALLOCATED})
CLOSED_NODE_FLAGS = frozenset(
    {NodeFlag.DRAIN, NodeFlag.FAIL, NodeFlag.MAINTENANCE, NodeFlag.NOT_RESPONDING, NodeFlag.UNREADABLE}
)
# A node with one of these runs jobs only after it has booted
ASLEEP_NODE_FLAGS = (NodeFlag.POWERING_UP, NodeFlag.POWERED_DOWN, NodeFlag.POWERING_DOWN, NodeFlag.POWER_DOWN)

TITLE_NODE_FLAGS = (
    NodeFlag.FAIL,
    NodeFlag.MAINTENANCE,
    NodeFlag.UNREADABLE,
    *ASLEEP_NODE_FLAGS,
    NodeFlag.RESERVED,
)  # the first present one counts
NODE_STYLES: dict[str, tuple[str, str, str]] = {
    NodeState.IDLE: ("idle", "good", "○"),
    NodeState.MIXED: ("mix", "running", "◐"),
    NodeState.ALLOCATED: ("alloc", "running", "●"),
    NodeState.DOWN: ("down", "bad", "✗"),
    NodeState.ERROR: ("error", "bad", "✗"),
    NodeState.UNKNOWN: ("unk", "quiet", "?"),
    "DRAINING": ("drng", "drain", "◒"),
    "DRAINED": ("drain", "drain", "⊖"),
    NodeFlag.FAIL: ("fail", "warn", "▲"),
    NodeFlag.MAINTENANCE: ("maint", "drain", "⚒"),
    NodeFlag.UNREADABLE: ("unread", "warn", "?"),
    NodeFlag.RESERVED: ("resv", "starting", "◇"),
    NodeFlag.PLANNED: ("plnd", "starting", "◇"),
    NodeFlag.POWERING_UP: ("pow_up", "starting", "◌"),
    NodeFlag.POWERED_DOWN: ("pow_dn", "quiet", "☾"),
    NodeFlag.POWERING_DOWN: ("powering_dn", "quiet", "☾"),
    NodeFlag.POWER_DOWN: ("power_dn", "quiet", "☾"),
}


def is_schedulable(state: NodeState, flags: Iterable[str]) -> bool:
    """Return whether new jobs may start on the node."""
    return state in USABLE_NODE_STATES and not CLOSED_NODE_FLAGS.intersection(flags)


def is_asleep(state: NodeState, flags: Iterable[str]) -> bool:
    """Return whether a healthy node sleeps, falls asleep or wakes up, so that jobs start there only after a boot."""
    return state in USABLE_NODE_STATES and not set(ASLEEP_NODE_FLAGS).isdisjoint(flags)


def node_condition(state: NodeState, flags: Iterable[str]) -> str:
    """Return the part of a node's state whose changes are recorded as events: its health and its drains, but not its
    load."""
    health = "UP" if state in USABLE_NODE_STATES else str(state)
    recorded = sorted(set(flags) - {NodeFlag.COMPLETING, NodeFlag.PLANNED})
    return "+".join([health, *recorded])


def parse_node_condition(words: str) -> tuple[str, list[str]]:
    """Split the text of `node_condition` into health and flags. Health is UP, or the state of an unusable node."""
    health, *flags = words.split("+")
    return ("UP" if health in USABLE_NODE_STATES else health), flags


def node_state_for_usage(gpus: int, used: int, busy: bool) -> NodeState:
    """Return the state of a healthy node from its load."""
    if not busy:
        return NodeState.IDLE
    return NodeState.ALLOCATED if gpus and used >= gpus else NodeState.MIXED


def node_badge(state: NodeState, flags: Iterable[str] = ()) -> StateBadge:
    """Return sinfo's name: a drained node is empty, a draining one is not, and `*` marks a node that does not
    respond."""
    present = set(flags)
    word: str = state
    if state in USABLE_NODE_STATES:
        # As in sinfo: DRAINED when the last job has left, DRAINING before
        if NodeFlag.DRAIN in present:
            word = "DRAINED" if state == NodeState.IDLE else "DRAINING"
        else:
            word = next((flag for flag in TITLE_NODE_FLAGS if flag in present), state)
    short, tone, icon = NODE_STYLES[word]
    star = "*" if NodeFlag.NOT_RESPONDING in present else ""
    return StateBadge(label=str(word) + star, code=short + star, tone="bad" if star else tone, icon=icon)
