"""What the rest of Acme knows of a cluster: a few verbs, the values that cross them, and the ways to fail.

Simulated, local and real clusters are reached through the same `Backend`; they differ by the address alone. Nothing in
here touches a network. A backend never decides; it carries out one deed or says what it sees.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol, TypeVar

from jobs.core.lifecycle import NodeState, State
from jobs.core.turn_errors import EndsTurn, SkipsRow

T = TypeVar("T")


class BackendError(EndsTurn):
    """Anything that goes wrong between us and a cluster."""


class ClusterUnreachable(BackendError):
    """It did not answer, and the deed was surely not done. Says nothing about the jobs that run there."""


class OutcomeUnknown(BackendError):
    """The answer got lost: the deed may have been done. Look before doing it again."""


class RequestTimedOut(OutcomeUnknown):
    """The request was sent and the deadline passed without an answer: what comes next would wait as long."""


class AccountingUnavailable(BackendError):
    """The cluster keeps no record of ended jobs beyond its controller's memory."""


class RequestRejected(SkipsRow, BackendError):
    """It answered no, with a reason. Asking again without a change is pointless."""


class PlacementRejected(RequestRejected):
    """The no is about the nodes that were asked for, as they are now; elsewhere the same job may run."""


@dataclass(frozen=True, kw_only=True)
class SubmitRequest:
    """One attempt, as a cluster is asked to run it: on exactly these nodes, with this many GPUs on each."""

    key: str  # our attempt's id; the cluster keeps it in the comment, and it is looked up before sending again
    name: str
    user: str  # of Acme, who asked for it; empty for Acme's own tests of nodes
    account: str
    script: str
    workdir: str
    environment: Mapping[str, str]
    nodes: tuple[str, ...]
    gpus_per_node: int
    gpu_model: str
    cpus_per_node: int
    memory_per_node_mb: int
    time_limit: timedelta | None
    stdout: str
    installation: str = ""  # which Acme submits it; the cluster keeps it beside the key


@dataclass(frozen=True, kw_only=True)
class BackendJob:
    """One job as the cluster reports it. `key` is empty for a job that no Acme submitted.

    `installation` names the Acme that submitted it. It is empty for jobs of versions that did not send it.
    """

    backend_id: str
    key: str
    name: str
    user: str
    state: State
    flags: frozenset[str] = frozenset()
    reason: str = ""
    nodes: tuple[str, ...] = ()
    gpus: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # node name -> GPU indices, while known
    submitted_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    exit_code: int | None = None
    signal: int | None = None
    account: str = ""
    gpus_per_node: int = 0  # as asked, also while it waits
    cpus: int = 0  # of all its nodes together
    memory_per_node_mb: int = 0
    time_limit: timedelta | None = None
    stdout: str = ""
    installation: str = ""


@dataclass(frozen=True, kw_only=True)
class BackendNode:
    """One node as the cluster reports it."""

    name: str
    state: NodeState
    flags: frozenset[str] = frozenset()
    reason: str = ""
    cpus: int = 0
    memory_mb: int = 0
    gpus: int = 0
    gpu_model: str = ""
    features: tuple[str, ...] = ()  # `rack-r01`, `leaf-l03`, `pod-p1`, `nic-hdr200x4`: topology by convention
    boot_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class UnreadableRow:
    """One row of a cluster's answer that could not be read. Nothing may be concluded about the job or node it is."""

    kind: str  # "job" or "node"
    name: str = ""  # job id or node name; empty if even that cannot be read
    key: str = ""
    installation: str = ""
    sentence: str
    comment_read: bool = False  # then an empty key means that the job is not ours
    last_seen: BackendJob | None = None  # what this connection last read of the job: it still holds those GPUs

    def may_match(self, backend_id: str, key: str) -> bool:
        """Whether this row may be the job with this backend id (empty: not known) and key (empty: not ours)."""
        if self.key and key:
            return self.key == key
        if self.name and backend_id:
            return self.name == backend_id
        return not self.comment_read


class ClusterListing(list[T]):
    """The rows of an answer that could be read, and those that could not."""

    def __init__(self, rows: Iterable[T] = (), unreadable: Iterable[UnreadableRow] = ()) -> None:
        super().__init__(rows)
        self.unreadable = tuple(unreadable)

    def hides_job(self, backend_id: str, key: str) -> bool:
        """Whether an unreadable row may be this job: then its absence from the listing means nothing."""
        return any(row.may_match(backend_id, key) for row in self.unreadable)

    def hides_node(self, name: str) -> bool:
        return any(row.name in ("", name) for row in self.unreadable)


@dataclass(frozen=True, kw_only=True)
class PingReply:
    """What a cluster says of itself when it is pinged."""

    product: str  # "slurm 22.05.8"
    api: str  # "v0.0.38"


class Backend(Protocol):
    """A cluster. Every verb may raise Unreachable, Doubtful (deeds only) or Refused (deeds only).

    Every verb ends within the backend's deadline, however slowly the cluster answers.
    """

    def ping(self) -> PingReply: ...

    def nodes(self) -> ClusterListing[BackendNode]: ...

    def jobs(self) -> ClusterListing[BackendJob]:
        """Every job the cluster still knows, ended ones included."""
        ...

    def find(self, key: str) -> BackendJob | None:
        """The newest job with our key, after a submit without an answer. Unreachable if an unreadable row may be it."""
        ...

    def accounted(self, backend_id: str) -> Sequence[BackendJob]:
        """Every job that accounting recorded under this id, oldest first; ids are given out again after a controller
        lost its state. Empty where accounting does not know it. NoAccounting where there is none. Clusters without
        AccountingStoreFlags=job_comment record no keys."""
        ...

    def accounted_since(self, since: datetime) -> Sequence[BackendJob]:
        """What accounting recorded of jobs submitted since then, oldest first. NoAccounting where there is none."""
        ...

    def submit(self, what: SubmitRequest) -> str:
        """Hand it over and return the cluster's own id of it."""
        ...

    def submit_all(self, what: Sequence[SubmitRequest]) -> Sequence[str | BackendError]:
        """Several at once, over as many connections as the cluster bears; the answers in the order asked. Once it does
        not answer, those not sent yet are left."""
        ...

    def cancel(self, backend_id: str) -> None:
        """TERM, then KILL. A job that has ended already, or is not known any more, is no error."""
        ...

    def signal(self, backend_id: str, name: str, *, shell: bool) -> None:
        """To the processes of a job: to its batch shell alone, or to all but that. It goes on running."""
        ...

    def drain(self, node: str, reason: str) -> None: ...

    def resume(self, node: str) -> None: ...

    def close(self) -> None: ...
