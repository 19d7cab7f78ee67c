"""What a decision is made from, and what it is. Pure values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from failures.diagnosis.values import Category, Restart
from failures.grouping import SERVICE_CAUSES
from failures.recovery.remedies import CORDONING, RESTARTING, Action, Mode
from failures.recovery.resizing import Change, Request
from jobs.ledgers import Try

Limit = tuple[Mode, str]  # what a mode was taken down to, and why

OPT_OUT = "acme-recovery"  # a label of the job; its value `off` opts out
OPT_IN = "acme-resize"  # `on`: what it asks for may be changed without a person's yes
ANY = "*"


@dataclass(frozen=True, kw_only=True)
class Saved:
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
class Facts:
    """One failed attempt, as its diagnosis and the record have it; or a sign of one that runs, or of a node alone
    (then there is no job)."""

    job: str
    team: str
    cause: str  # the label of the diagnosis
    category: Category
    at: datetime
    confidence: float = 1.0
    restart_helps: Restart = Restart.UNKNOWN
    incident: str = ""  # the same for every failure of one cause
    nodes: frozenset[str] = frozenset()
    suspects: frozenset[str] = frozenset()
    alike: int = 0  # other jobs in the same incident
    labels: Mapping[str, str] = field(default_factory=dict)
    checkpoints: tuple[Saved, ...] = ()
    started_from: int | None = None  # the step of the checkpoint that it had loaded
    ran: timedelta | None = None  # all attempts of the job together; known where no checkpoint is
    spike_at: int | None = None  # the step at which the loss went up
    sign: str = ""  # what a detector saw
    request: Request | None = None  # where it may have asked for too little

    @property
    def named(self) -> frozenset[str]:
        """Suspects on which it really ran; evidence against most of a gang is against nobody."""
        found = self.suspects & self.nodes
        return found if len(found) <= max(1, len(self.nodes) // 2) else frozenset()

    @property
    def is_service(self) -> bool:
        return self.cause in SERVICE_CAUSES and (not self.named or self.alike > 0)


@dataclass(frozen=True, kw_only=True)
class Done:
    """A deed that was carried out."""

    action: Action
    job: str
    at: datetime
    incident: str = ""
    nodes: frozenset[str] = frozenset()  # those that were drained
    until: datetime | None = None  # of a wait
    checkpoint: int | None = None  # the step that it went back to


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a person decided about a job or a node. It holds until it is lifted."""

    subject: str
    by: str
    why: str
    lifted: bool = False


@dataclass(frozen=True, kw_only=True)
class History:
    tries: Sequence[Try] = ()  # of this job, oldest first, the failed one last
    done: Sequence[Done] = ()  # on the whole cluster
    orders: Sequence[Order] = ()
    cluster_nodes: int = 0

    @property
    def step(self) -> int | None:
        """How far the failed attempt had come; None: nobody knows."""
        return self.tries[-1].step if self.tries else None


@dataclass(frozen=True, kw_only=True)
class Breaker:
    """When everything on a cluster is only proposed: so much automatic work has a common cause, perhaps ourselves."""

    cordoned_share: float = 0.1
    cordon_window: timedelta = timedelta(minutes=30)
    restarts: int = 60
    restart_window: timedelta = timedelta(hours=1)


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Modes by team and action; an action's own entry counts before that for everything.

    What is said for every team is the operators' word, and a team's can only take away from it. Where operators are
    silent, a team says what becomes of its jobs, but nodes belong to no team: they are proposed to be closed or tested.
    """

    modes: Mapping[tuple[str, str], Mode] = field(default_factory=dict)
    breaker: Breaker = Breaker()
    sure: float = 0.7  # what a diagnosis must reach before anything acts on it
    first_wait: timedelta = timedelta(minutes=1)
    longest_wait: timedelta = timedelta(minutes=5)  # a try costs less than a gang's GPUs that stand idle
    most_repeated: timedelta = timedelta(minutes=30)  # of a job without a checkpoint: a person takes as long to come
    skip_before: int = 0  # steps of data left out ahead of a spike
    skip_after: int = 100  # and behind it

    def mode(self, team: str, action: Action) -> Mode:
        said = [word for word in (self._said(ANY, action), self._said(team, action)) if word is not None]
        if not said or (action in CORDONING and self._said(ANY, action) is None):
            said.append(Mode.PROPOSE)
        return min(said, key=lambda one: one.rank)

    def _said(self, team: str, action: Action) -> Mode | None:
        return self.modes.get((team, action.value), self.modes.get((team, ANY)))


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """The decision. `pro` and `con` are sentences; `limits` are what took the mode down, each with the mode it left."""

    action: Action
    mode: Mode
    why: str
    pro: tuple[str, ...]
    con: tuple[str, ...]
    limits: tuple[Limit, ...]
    drain: frozenset[str]  # the job starts without them
    test: frozenset[str]  # two rounds of pairs, before the job starts again where it needs these nodes
    checkpoint: Saved | None
    skip: tuple[int, int] | None  # steps whose data are left out, both ends included
    not_before: datetime
    expires_at: datetime
    undo: str
    consumes: bool  # whether this failure counts in the ledgers of retries
    change: tuple[Change, ...] = ()  # what the job asks for instead

    @property
    def acts(self) -> bool:
        return self.mode is Mode.ACT

    @property
    def restarts(self) -> bool:
        return self.action in RESTARTING or bool(self.change)
