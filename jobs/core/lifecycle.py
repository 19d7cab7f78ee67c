"""The states of jobs and nodes, and which may follow which.

The words are Slurm's, because operators read them daily: one base state plus flags. `MOVES` is the only table of what
may happen to a job; every arrow has the sentence that explains it, and a state without an arrow out of it is final.
This module only answers questions; it never changes anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """What a job, or one attempt of it, is."""

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
    UNKNOWN = "UNKNOWN"  # of an attempt only: its cluster forgot it, and nothing shows how it ended


class Flag(StrEnum):
    """What is going on around a base state; a job may wear several."""

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
    RECOVERING = "RECOVERING"  # ours: what is done about its failure is being decided
    OUTCOME_UNKNOWN = "OUTCOME_UNKNOWN"  # ours: a person records how its last attempt ended


class JobKind(StrEnum):
    """What the work is, as the Acme trace tells it apart."""

    # As equality is that of the word; and Enum's own is written in Python, for keys that are asked ten thousand times
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
    (State.PENDING, State.RUNNING): "The scheduler promised it nodes and GPUs; CONFIGURING until the cluster runs it.",
    (State.PENDING, State.CANCELLED): "A person withdrew it before it ran.",
    (
        State.PENDING,
        State.FAILED,
    ): "It can never start: what it depends on ended the wrong way, the cluster refused it, or it had failed for good.",
    (State.PENDING, State.DEADLINE): "Its deadline passed while it waited.",
    (State.PENDING, State.COMPLETED): "The outcome of its last attempt was unknown; it had succeeded.",
    (State.PENDING, State.TIMEOUT): "The outcome of its last attempt was unknown; it had reached its time limit.",
    (State.PENDING, State.PREEMPTED): "The outcome of its last attempt was unknown; it had been preempted.",
    (State.PENDING, State.NODE_FAIL): "A node under it had died, and recovery did not start it again.",
    (State.PENDING, State.BOOT_FAIL): "Its nodes had not come up, and recovery did not start it again.",
    (State.PENDING, State.OUT_OF_MEMORY): "It had used too much memory, and recovery did not start it again.",
    (
        State.RUNNING,
        State.PENDING,
    ): "It goes back to its place in the queue: requeued, preempted, or its launch was refused.",
    (State.RUNNING, State.SUSPENDED): "The cluster stopped its processes and keeps its GPUs.",
    (State.RUNNING, State.COMPLETED): "Its command ended with exit code 0.",
    (State.RUNNING, State.FAILED): "Its command ended with another exit code or by a signal.",
    (State.RUNNING, State.CANCELLED): "A person stopped it.",
    (State.RUNNING, State.TIMEOUT): "It reached its time limit.",
    (State.RUNNING, State.NODE_FAIL): "A node under it died and its requeue budget is spent.",
    (State.RUNNING, State.PREEMPTED): "It gave way to other work and may not be requeued.",
    (State.RUNNING, State.BOOT_FAIL): "Its nodes did not come up and its requeue budget is spent.",
    (State.RUNNING, State.DEADLINE): "Its deadline passed while it ran.",
    (State.RUNNING, State.OUT_OF_MEMORY): "It used more memory than it was given.",
    (State.SUSPENDED, State.RUNNING): "The cluster lets it go on.",
    (State.SUSPENDED, State.PENDING): "It is requeued from where it was suspended.",
    (State.SUSPENDED, State.COMPLETED): "It ended well between two looks at the cluster.",
    (State.SUSPENDED, State.FAILED): "It ended badly between two looks at the cluster.",
    (State.SUSPENDED, State.CANCELLED): "A person stopped it while it was suspended.",
    (State.SUSPENDED, State.TIMEOUT): "It reached its time limit while it was suspended.",
    (State.SUSPENDED, State.NODE_FAIL): "A node under it died while it was suspended.",
}

JOB_STATES = tuple(state for state in State if state != State.UNKNOWN)
FINAL_STATES = frozenset(State) - {source for source, _ in TRANSITIONS}
RECOVERING = "Recovering"  # the word of a job that waits for recovery, as Slurm's JobHeldUser is of a held one
OUTCOME_UNKNOWN = "OutcomeUnknown"  # the same for a job whose outcome a person must record
LIVE_STATES = frozenset({State.RUNNING, State.SUSPENDED})  # an attempt exists and GPUs are held

# Ends that are the platform's doing: they may consume the requeue budget instead of ending the job.
PLATFORM_FAILURES = frozenset({State.NODE_FAIL, State.BOOT_FAIL})

# Ends that somebody must explain. A person's cancel and a preemption explain themselves.
FAILURE_STATES = frozenset(
    {State.FAILED, State.TIMEOUT, State.NODE_FAIL, State.BOOT_FAIL, State.DEADLINE, State.OUT_OF_MEMORY}
)


class ForbiddenTransition(Exception):
    """A move that `MOVES` does not know."""

    def __init__(self, source: State, target: State) -> None:
        super().__init__(f"a job that is {source} cannot become {target}")


def check_transition(source: State, target: State) -> None:
    if (source, target) not in TRANSITIONS:
        raise ForbiddenTransition(source, target)


@dataclass(frozen=True, kw_only=True)
class StateBadge:
    """How a state is shown: never by colour alone."""

    label: str
    code: str
    tone: str
    icon: str


# Tones are names of custom properties in app.css; icons are text that DejaVu has, so that a terminal prints them too.
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

# The flag that names the state on its own, as squeue shows it: the first that is worn wins.
TITLE_FLAGS = (
    *(Flag.SIGNALING, Flag.CONFIGURING, Flag.COMPLETING),
    *(Flag.OUTCOME_UNKNOWN, Flag.RECOVERING, Flag.REQUEUE_HOLD, Flag.REQUEUED),
)


def state_title(state: State, flags: Iterable[str] = ()) -> State | Flag:
    """The one word for a state and its flags; a final state is always called by its own name."""
    worn = set(flags)
    return next((flag for flag in TITLE_FLAGS if flag in worn and state not in FINAL_STATES), state)


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
    UNREADABLE = "UNREADABLE"  # ours: the cluster's row of it cannot be read, so the rest is its last known state


USABLE_NODE_STATES = frozenset({NodeState.IDLE, NodeState.MIXED, NodeState.ALLOCATED})
CLOSED_NODE_FLAGS = frozenset(
    {NodeFlag.DRAIN, NodeFlag.FAIL, NodeFlag.MAINTENANCE, NodeFlag.NOT_RESPONDING, NodeFlag.UNREADABLE}
)

TITLE_NODE_FLAGS = (NodeFlag.FAIL, NodeFlag.MAINTENANCE, NodeFlag.UNREADABLE, NodeFlag.RESERVED)  # the first one counts
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
}


def takes_work(state: NodeState, flags: Iterable[str]) -> bool:
    """Whether new jobs may start on the node."""
    return state in USABLE_NODE_STATES and not CLOSED_NODE_FLAGS.intersection(flags)


def node_condition(state: NodeState, flags: Iterable[str]) -> str:
    """What of a node's state is worth an Event: its health and what operators did, not that work comes and goes."""
    health = "UP" if state in USABLE_NODE_STATES else str(state)
    notable = sorted(set(flags) - {NodeFlag.COMPLETING, NodeFlag.PLANNED})
    return "+".join([health, *notable])


def parse_node_condition(words: str) -> tuple[str, list[str]]:
    """What `condition` wrote, back in health and flags: UP, or the state of a node that is not."""
    health, *flags = words.split("+")
    return ("UP" if health in USABLE_NODE_STATES else health), flags


def node_state_for_usage(gpus: int, used: int, busy: bool) -> NodeState:
    """The state of a healthy node, from what it carries."""
    if not busy:
        return NodeState.IDLE
    return NodeState.ALLOCATED if gpus and used >= gpus else NodeState.MIXED


def node_badge(state: NodeState, flags: Iterable[str] = ()) -> StateBadge:
    """sinfo's word: a drained node is empty, a draining one is not, and `*` says that it does not answer."""
    worn = set(flags)
    word: str = state
    if state in USABLE_NODE_STATES:
        if NodeFlag.DRAIN in worn:
            word = "DRAINED" if state == NodeState.IDLE else "DRAINING"
        else:
            word = next((flag for flag in TITLE_NODE_FLAGS if flag in worn), state)
    short, tone, icon = NODE_STYLES[word]
    star = "*" if NodeFlag.NOT_RESPONDING in worn else ""
    return StateBadge(label=str(word) + star, code=short + star, tone="bad" if star else tone, icon=icon)
