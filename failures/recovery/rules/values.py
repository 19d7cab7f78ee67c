"""The inputs of a recovery decision, and the decision. Pure values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from failures.diagnosis.values import FailureCategory, RestartAdvice
from failures.incidents.grouping import SERVICE_CAUSES
from failures.recovery.rules.remedies import CORDON_ACTIONS, RESTART_ACTIONS, AutomationMode, RecoveryAction
from failures.recovery.rules.resizing import MemoryRequest, RequestChange
from jobs.core.retry_budget import PastAttempt

ModeLimit = tuple[AutomationMode, str]  # the lowered mode, and the reason

OPT_OUT_LABEL = "acme-recovery"  # job label; the value `off` opts out of recovery
RESIZE_OPT_IN_LABEL = "acme-resize"  # job label; the value `on` allows changing the request without approval
ANY_SUBJECT = "*"


@dataclass(frozen=True, kw_only=True)
class SavedCheckpoint:
    """A checkpoint. `whole` is None if it was not verified; `verdict` is the judgment of its contents."""

    step: int
    path: str
    whole: bool | None = None
    verdict: str = ""  # good, bad, or empty: not judged
    order: int = 0  # number of the save, if the checkpointer records it

    @property
    def is_usable(self) -> bool:
        return self.whole is not False and self.verdict != "bad"


@dataclass(frozen=True, kw_only=True)
class NodeEvidence:
    """A sentence about a fault of a node from a source that no job can write: telemetry, or the state of the node."""

    node: str
    sentence: str


@dataclass(frozen=True, kw_only=True)
class FailureFacts:
    """The facts about one failed attempt, or about an anomaly of a running attempt or of a node (then `job` is
    empty)."""

    job: str
    team: str
    cause: str  # the label of the diagnosis
    category: FailureCategory
    at: datetime
    confidence: float = 1.0
    restart_helps: RestartAdvice = RestartAdvice.UNKNOWN
    incident: str = ""  # the same for every failure of one cause
    nodes: frozenset[str] = frozenset()
    suspects: frozenset[str] = frozenset()
    evidence: tuple[NodeEvidence, ...] = ()
    alike: int = 0  # number of other jobs in the same incident
    labels: Mapping[str, str] = field(default_factory=dict)
    checkpoints: tuple[SavedCheckpoint, ...] = ()
    started_from: int | None = None  # the step of the checkpoint that the attempt loaded
    ran: timedelta | None = None  # run time of all attempts of the job; set only if there is no checkpoint
    spike_at: int | None = None  # the step at which the loss went up
    anomaly: str = ""  # the finding of a detector
    request: MemoryRequest | None = None  # set if the job may have requested too little memory

    @property
    def named_nodes(self) -> frozenset[str]:
        """Suspect nodes that the job ran on. Empty if these are most of its nodes: then the evidence proves nothing."""
        named = self.suspects & self.nodes
        return named if len(named) <= max(1, len(self.nodes) // 2) else frozenset()

    @property
    def confirmed_nodes(self) -> frozenset[str]:
        """Named nodes with a fault that does not rest on the word of the job alone."""
        return self.named_nodes & {row.node for row in self.evidence}

    @property
    def is_service_outage(self) -> bool:
        return self.cause in SERVICE_CAUSES and (not self.named_nodes or self.alike > 0)


@dataclass(frozen=True, kw_only=True)
class PastAction:
    """A recovery action that was carried out."""

    action: RecoveryAction
    job: str
    at: datetime
    incident: str = ""
    nodes: frozenset[str] = frozenset()  # drained nodes
    until: datetime | None = None  # end of a wait
    checkpoint: int | None = None  # the step that the job resumed from


@dataclass(frozen=True, kw_only=True)
class OverrideFacts:
    """An operator's or owner's override for a job or a node. It applies until it is lifted."""

    subject: str
    by: str
    why: str
    lifted: bool = False


@dataclass(frozen=True, kw_only=True)
class FailureHistory:
    tries: Sequence[PastAttempt] = ()  # attempts of this job, oldest first, the failed one last
    done: Sequence[PastAction] = ()  # past actions on the whole cluster
    overrides: Sequence[OverrideFacts] = ()
    cluster_nodes: int = 0

    @property
    def step(self) -> int | None:
        """The last step of the failed attempt; None if it is unknown."""
        return self.tries[-1].step if self.tries else None


@dataclass(frozen=True, kw_only=True)
class CircuitBreaker:
    """Limits above which every action on a cluster is only proposed: so many have a common cause, perhaps Acme."""

    cordoned_share: float = 0.1
    cordon_window: timedelta = timedelta(minutes=30)
    restarts: int = 60
    restart_window: timedelta = timedelta(hours=1)


@dataclass(frozen=True, kw_only=True)
class RecoveryPolicy:
    """Modes by team and action. The entry of an action takes precedence over the entry for all actions.

    Entries for every team are set by operators; the stricter of the operator and the team setting applies. Without an
    operator setting, the team setting applies to its jobs. Nodes belong to no team, so draining and testing them is
    then only proposed.
    """

    modes: Mapping[tuple[str, str], AutomationMode] = field(default_factory=dict)
    breaker: CircuitBreaker = CircuitBreaker()
    sure: float = 0.7  # least confidence for automatic actions
    first_wait: timedelta = timedelta(minutes=1)
    longest_wait: timedelta = timedelta(minutes=5)  # an attempt costs less than the idle GPUs of a large job
    most_repeated: timedelta = timedelta(minutes=30)  # run time without a checkpoint; an approval takes as long
    skip_before: int = 0  # steps of data skipped before a spike
    skip_after: int = 100  # steps of data skipped after it

    def mode(self, team: str, action: RecoveryAction) -> AutomationMode:
        modes = [
            mode
            for mode in (self._configured_mode(ANY_SUBJECT, action), self._configured_mode(team, action))
            if mode is not None
        ]
        if not modes or (action in CORDON_ACTIONS and self._configured_mode(ANY_SUBJECT, action) is None):
            modes.append(AutomationMode.PROPOSE)
        return min(modes, key=lambda mode: mode.rank)

    def _configured_mode(self, team: str, action: RecoveryAction) -> AutomationMode | None:
        return self.modes.get((team, action.value), self.modes.get((team, ANY_SUBJECT)))


@dataclass(frozen=True, kw_only=True)
class RecoveryDecision:
    """The decision. `pro` and `con` are sentences; `limits` lists the lowered modes with the reasons."""

    action: RecoveryAction
    mode: AutomationMode
    why: str
    pro: tuple[str, ...]
    con: tuple[str, ...]
    limits: tuple[ModeLimit, ...]
    drain: frozenset[str]  # nodes that are drained; the job starts on others
    test: frozenset[str]  # nodes that are tested in pairs before jobs start on them again
    checkpoint: SavedCheckpoint | None
    skip: tuple[int, int] | None  # first and last step whose data are skipped
    not_before: datetime
    expires_at: datetime
    undo: str
    consumes_retry: bool  # whether this failure counts against the retry limit
    change: tuple[RequestChange, ...] = ()  # changes to the request of the job

    @property
    def is_automatic(self) -> bool:
        return self.mode is AutomationMode.ACT

    @property
    def restarts(self) -> bool:
        return self.action in RESTART_ACTIONS or bool(self.change)
