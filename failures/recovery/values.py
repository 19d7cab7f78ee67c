"""What a decision is made from, and what it is. Pure values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from failures.diagnosis.values import FailureCategory, RestartAdvice
from failures.incidents.grouping import SERVICE_CAUSES
from failures.recovery.remedies import CORDON_ACTIONS, RESTART_ACTIONS, AutomationMode, RecoveryAction
from failures.recovery.resizing import MemoryRequest, RequestChange
from jobs.core.retry_budget import PastAttempt

ModeLimit = tuple[AutomationMode, str]  # what a mode was taken down to, and why

OPT_OUT_LABEL = "acme-recovery"  # a label of the job; its value `off` opts out
RESIZE_OPT_IN_LABEL = "acme-resize"  # `on`: what it asks for may be changed without a person's yes
ANY_SUBJECT = "*"


@dataclass(frozen=True, kw_only=True)
class SavedCheckpoint:
    """A checkpoint. `whole` is None where nobody has looked; `verdict` is what was judged of its contents."""

    step: int
    path: str
    whole: bool | None = None
    verdict: str = ""  # good, bad, or not judged
    order: int = 0  # in which they were saved, where that was written down

    @property
    def is_usable(self) -> bool:
        return self.whole is not False and self.verdict != "bad"


@dataclass(frozen=True, kw_only=True)
class FailureFacts:
    """One failed attempt, as its diagnosis and the record have it; or a sign of one that runs, or of a node alone
    (then there is no job)."""

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
    alike: int = 0  # other jobs in the same incident
    labels: Mapping[str, str] = field(default_factory=dict)
    checkpoints: tuple[SavedCheckpoint, ...] = ()
    started_from: int | None = None  # the step of the checkpoint that it had loaded
    ran: timedelta | None = None  # all attempts of the job together; known where no checkpoint is
    spike_at: int | None = None  # the step at which the loss went up
    sign: str = ""  # what a detector saw
    request: MemoryRequest | None = None  # where it may have asked for too little

    @property
    def named(self) -> frozenset[str]:
        """Suspects on which it really ran; evidence against most of a gang is against nobody."""
        found = self.suspects & self.nodes
        return found if len(found) <= max(1, len(self.nodes) // 2) else frozenset()

    @property
    def is_service_outage(self) -> bool:
        return self.cause in SERVICE_CAUSES and (not self.named or self.alike > 0)


@dataclass(frozen=True, kw_only=True)
class PastAction:
    """A deed that was carried out."""

    action: RecoveryAction
    job: str
    at: datetime
    incident: str = ""
    nodes: frozenset[str] = frozenset()  # those that were drained
    until: datetime | None = None  # of a wait
    checkpoint: int | None = None  # the step that it went back to


@dataclass(frozen=True, kw_only=True)
class OverrideFacts:
    """What a person decided about a job or a node. It holds until it is lifted."""

    subject: str
    by: str
    why: str
    lifted: bool = False


@dataclass(frozen=True, kw_only=True)
class FailureHistory:
    tries: Sequence[PastAttempt] = ()  # of this job, oldest first, the failed one last
    done: Sequence[PastAction] = ()  # on the whole cluster
    orders: Sequence[OverrideFacts] = ()
    cluster_nodes: int = 0

    @property
    def step(self) -> int | None:
        """How far the failed attempt had come; None: nobody knows."""
        return self.tries[-1].step if self.tries else None


@dataclass(frozen=True, kw_only=True)
class CircuitBreaker:
    """When everything on a cluster is only proposed: so much automatic work has a common cause, perhaps ourselves."""

    cordoned_share: float = 0.1
    cordon_window: timedelta = timedelta(minutes=30)
    restarts: int = 60
    restart_window: timedelta = timedelta(hours=1)


@dataclass(frozen=True, kw_only=True)
class RecoveryPolicy:
    """Modes by team and action; an action's own entry counts before that for everything.

    What is said for every team is the operators' word, and a team's can only take away from it. Where operators are
    silent, a team says what becomes of its jobs, but nodes belong to no team: they are proposed to be closed or tested.
    """

    modes: Mapping[tuple[str, str], AutomationMode] = field(default_factory=dict)
    breaker: CircuitBreaker = CircuitBreaker()
    sure: float = 0.7  # what a diagnosis must reach before anything acts on it
    first_wait: timedelta = timedelta(minutes=1)
    longest_wait: timedelta = timedelta(minutes=5)  # a try costs less than a gang's GPUs that stand idle
    most_repeated: timedelta = timedelta(minutes=30)  # of a job without a checkpoint: a person takes as long to come
    skip_before: int = 0  # steps of data left out ahead of a spike
    skip_after: int = 100  # and behind it

    def mode(self, team: str, action: RecoveryAction) -> AutomationMode:
        said = [
            word
            for word in (self._configured_mode(ANY_SUBJECT, action), self._configured_mode(team, action))
            if word is not None
        ]
        if not said or (action in CORDON_ACTIONS and self._configured_mode(ANY_SUBJECT, action) is None):
            said.append(AutomationMode.PROPOSE)
        return min(said, key=lambda one: one.rank)

    def _configured_mode(self, team: str, action: RecoveryAction) -> AutomationMode | None:
        return self.modes.get((team, action.value), self.modes.get((team, ANY_SUBJECT)))


@dataclass(frozen=True, kw_only=True)
class RecoveryDecision:
    """The decision. `pro` and `con` are sentences; `limits` are what took the mode down, each with the mode it left."""

    action: RecoveryAction
    mode: AutomationMode
    why: str
    pro: tuple[str, ...]
    con: tuple[str, ...]
    limits: tuple[ModeLimit, ...]
    drain: frozenset[str]  # the job starts without them
    test: frozenset[str]  # two rounds of pairs, before the job starts again where it needs these nodes
    checkpoint: SavedCheckpoint | None
    skip: tuple[int, int] | None  # steps whose data are left out, both ends included
    not_before: datetime
    expires_at: datetime
    undo: str
    consumes: bool  # whether this failure counts in the ledgers of retries
    change: tuple[RequestChange, ...] = ()  # what the job asks for instead

    @property
    def is_automatic(self) -> bool:
        return self.mode is AutomationMode.ACT

    @property
    def restarts(self) -> bool:
        return self.action in RESTART_ACTIONS or bool(self.change)
