"""The interface between Acme and a cluster: operations, the values they exchange, and the errors they raise.

Simulated, local and real clusters are reached through the same `Backend` and differ only in their address. This module
has no network code. A backend makes no decisions: it carries out one command or reports what it reads.

What a backend must do:

- Store the key and the installation of a job with it, and report both with the job. A job is found by its key, whoever
  asks and however late. Its id is opaque text.
- Run the job on exactly the requested nodes, at most once, and never requeue it by itself.
- Run the user's script so that the attempt writes its record (`attempt_record`): to the directory `record`, when the
  command starts and when it ends. A second start of the same attempt exits with `STARTED_BEFORE`. Standard output and
  standard error go to `stdout`. A signal in `shell_signals` reaches the script although only its shell is signaled.
- Translate: states and flags are those of `jobs.core.lifecycle`, whatever the cluster calls them. A rejection that
  concerns only the nodes is `PlacementRejected`; a job that waits there on purpose is `held`. No other code reads the
  cluster's reasons, messages or error numbers.
- Refuse a job with an image or mounts unless `traits.supports_images` is true, and then run it with them.
- Copy the output of jobs to `stdout` through `new_log_lines`, if the cluster does not write it there (`traits`).
- Say whether a failed command may have been carried out: see the exceptions below.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol, TypeVar

from acmeweb.common.errors import EndsTurn, SkipsRow
from jobs.core.backend_job import BackendJob
from jobs.core.gpu_shares import SHARD
from jobs.core.lifecycle import NodeState, State

T = TypeVar("T")


class BackendError(EndsTurn):
    """Base of everything that goes wrong between Acme and a cluster."""


class ClusterUnreachable(BackendError):
    """The cluster did not respond, and the command was certainly not carried out. Jobs may still run."""


class OutcomeUnknown(BackendError):
    """The response was lost, so the command may have been carried out. Look it up before sending it again."""


class RequestTimedOut(OutcomeUnknown):
    """The request was sent and the deadline passed without a response. Further requests would probably time out too."""


class AccountingUnavailable(BackendError):
    """The cluster has no record of ended jobs beyond the memory of its controller."""


class RequestRejected(SkipsRow, BackendError):
    """The cluster rejected the command with a reason. Repeating it unchanged is pointless."""


class PlacementRejected(RequestRejected):
    """The rejection concerns the requested nodes in their present state; the same job may run on other nodes."""


class EvictionRefused(RequestRejected):
    """The cluster's rules about disruptions forbid an eviction now; it may be allowed later."""


@dataclass(frozen=True, kw_only=True)
class SubmitRequest:
    """One attempt as it is submitted to a cluster: on exactly these nodes, with this many GPUs on each."""

    key: str  # the attempt's id; stored in the job's comment, and looked up before the attempt is sent again
    name: str
    user: str  # the Acme user who owns the job; empty for Acme's own node tests
    account: str
    script: str  # the user's own script or command line; the backend adds what its cluster needs to run it
    workdir: str
    environment: Mapping[str, str]
    nodes: tuple[str, ...]
    gpus_per_node: int
    gpu_model: str
    cpus_per_node: int
    memory_per_node_mb: int
    time_limit: timedelta | None
    stdout: str
    record: str = ""  # directory in which the attempt writes its record (`attempt_record`); empty: no record
    shell_signals: tuple[str, ...] = ()  # may be sent to the batch shell alone, which passes them to the script
    image: str = ""  # reference of a container image; RequestRejected if the cluster cannot run it
    mounts: tuple[str, ...] = ()  # names of volumes that the cluster's settings offer
    # Sent before a stop that the cluster decides itself, in the form NAME@SECONDS; empty: the job has no such signal
    checkpoint_signal: str = ""
    installation: str = ""  # the installation that submits it; stored in the comment next to the key
    gpu_shards: int = 0  # parts of one GPU (`BackendNode.gpu_shards`), which the cluster selects, instead of whole GPUs
    share_gres: str = SHARD  # as `BackendNode.share_gres` of its node
    wckey: str = ""  # of the accounting of the cluster
    mig_profile: str = ""  # one MIG slice of this profile (`BackendNode.mig_slices`) instead of whole GPUs


@dataclass(frozen=True, kw_only=True)
class BackendNode:
    """One node as the cluster reports it."""

    name: str
    state: NodeState
    flags: frozenset[str] = frozenset()
    reason: str = ""
    cpus: int = 0
    memory_mb: int = 0
    gpus: int = 0  # with MIG slices, each of which counts as one
    mig_slices: Mapping[str, int] = field(default_factory=dict)  # number of MIG slices by profile
    gpu_shards: int = 0  # equal parts of its GPUs, all together, that jobs may hold; 0: GPUs are not shared
    share_gres: str = SHARD  # what the cluster calls these parts; of MPS, one GPU of a node is shared at a time
    gpu_model: str = ""
    features: tuple[str, ...] = ()  # `rack-r01`, `leaf-l03`, `pod-p1`, `nic-hdr200x4`: topology by convention
    boot_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class UnreadableRow:
    """One row of a cluster's response that could not be read. Nothing may be concluded about its job or node."""

    kind: str  # "job" or "node"
    name: str = ""  # job id or node name; empty if even that cannot be read
    key: str = ""
    installation: str = ""
    sentence: str
    comment_read: bool = False  # if true, an empty key means that the job is not Acme's
    last_seen: BackendJob | None = None  # the job as last read on this connection: it still holds those GPUs

    def may_match(self, backend_id: str, key: str) -> bool:
        """Whether this row may be the job with this backend id (empty: unknown) and key (empty: not Acme's)."""
        if self.key and key:
            return self.key == key
        if self.name and backend_id:
            return self.name == backend_id
        return not self.comment_read


class ClusterListing(list[T]):
    """The readable rows of a response, and the unreadable ones."""

    def __init__(self, rows: Iterable[T] = (), unreadable: Iterable[UnreadableRow] = ()) -> None:
        super().__init__(rows)
        self.unreadable = tuple(unreadable)

    def hides_job(self, backend_id: str, key: str) -> bool:
        """Whether an unreadable row may be this job. If so, its absence from the listing means nothing."""
        return any(row.may_match(backend_id, key) for row in self.unreadable)

    def hides_node(self, name: str) -> bool:
        return any(row.name in ("", name) for row in self.unreadable)


@dataclass(frozen=True, kw_only=True)
class LogUpdate:
    """New output of a job. `positions` says how far each part of the job has been read; it is opaque outside the
    backend, and is passed to the next call.
    """

    lines: Sequence[str]  # without line ends; with the rank in front, like `srun --label`, if the job has several
    positions: Mapping[str, str]
    is_complete: bool = False  # the job has ended and all its output has been read


@dataclass(frozen=True, kw_only=True)
class BackendTraits:
    """What is known about a cluster without a request: mostly what all clusters of its kind have in common."""

    # Whether jobs write their output to `SubmitRequest.stdout` themselves. If not, Acme copies it there.
    writes_logs: bool

    # Whether jobs may run in a container image. Users cannot submit jobs with an image to other clusters.
    supports_images: bool
    # Whether the cluster itself powers nodes down and up. If not, `power_down` and `power_up` only keep pods off the
    # node until it is awake, and a webhook of the site has to do the rest.
    powers_nodes: bool
    # Lines of shell that start a program of several ranks: they run `python3 - "$@"` once on each of `$ranks` nodes,
    # with MASTER_ADDR and what the function `program` prints as standard input, and exit with the result. They do
    # nothing where that is impossible.
    rank_launcher: str
    # The end of a job's log → the state in which the cluster itself says that it ended the job
    state_in_log: Callable[[str], State | None]
    # The message of a failed ping → what an operator should check
    connection_advice: Callable[[str], str]
    # Why no job may be submitted now, for example because of a setting; empty if jobs may be
    no_jobs_reason: str = ""


@dataclass(frozen=True, kw_only=True)
class PingReply:
    """What a cluster reports about itself when it is pinged."""

    product: str  # "slurm 22.05.8"
    api: str  # "v0.0.38"


class Backend(Protocol):
    """A cluster. All operations may raise ClusterUnreachable; commands also OutcomeUnknown or RequestRejected.

    Every operation ends within the backend's deadline, however slowly the cluster responds.
    """

    @property
    def traits(self) -> BackendTraits: ...

    def ping(self) -> PingReply: ...

    def nodes(self) -> ClusterListing[BackendNode]: ...

    def jobs(self) -> ClusterListing[BackendJob]:
        """All jobs that the cluster still knows, including ended ones."""
        ...

    def current_jobs(self, keys: Collection[str]) -> ClusterListing[BackendJob]:
        """The jobs with these keys as the cluster has them now. `jobs` may return what it had some time ago."""
        ...

    def find(self, key: str) -> BackendJob | None:
        """The newest job with this key; used after a submission whose response was lost.

        Raises ClusterUnreachable if an unreadable row may be this job.
        """
        ...

    def accounting_jobs(self, backend_id: str) -> Sequence[BackendJob]:
        """All jobs that accounting recorded under this id, oldest first; empty if accounting does not know the id.

        One id may have several jobs, because a controller that lost its state reuses ids. Raises AccountingUnavailable
        if the cluster has no accounting. Clusters without AccountingStoreFlags=job_comment record no keys.
        """
        ...

    def accounting_jobs_since(self, since: datetime) -> Sequence[BackendJob]:
        """Accounting records of jobs submitted since then, oldest first. AccountingUnavailable without accounting."""
        ...

    def submit(self, request: SubmitRequest) -> str:
        """Submit a job and return the cluster's id of it."""
        ...

    def submit_all(self, requests: Sequence[SubmitRequest]) -> Sequence[str | BackendError]:
        """Submit several jobs over parallel connections; the results are in the order of the requests.

        Once the cluster stops responding, the remaining requests are not sent. Returns before the jobs have their nodes
        if that needs `advance_jobs`.
        """
        ...

    def cancel(self, backend_id: str) -> None:
        """Send TERM, then KILL. Does not fail if the job has ended or is no longer known."""
        ...

    def signal(self, backend_id: str, name: str, *, shell: bool) -> None:
        """Signal a running job's batch shell only, or all its processes except the shell."""
        ...

    def evict(self, backend_id: str) -> None:
        """Cancel a job that is to run again elsewhere. Raises EvictionRefused while the cluster's own rules about
        disruptions forbid it.
        """
        ...

    def advance_jobs(self) -> None:
        """Take the next steps of jobs that need more than their submission, such as placing the pods of a gang that is
        complete now. The cluster's own objects say what to do, so any process may call it at any time, and repeat it.
        """
        ...

    def new_log_lines(self, backend_id: str, positions: Mapping[str, str]) -> LogUpdate:
        """The output of a job since `positions`, which are empty at first. Only if not `traits.writes_logs`."""
        ...

    def drain(self, node: str, reason: str) -> None: ...

    def resume(self, node: str) -> None: ...

    def power_down(self, node: str) -> None:
        """Let the node sleep once its jobs have ended, or prepare it if `traits.powers_nodes` is false. Repeatable."""
        ...

    def power_up(self, node: str) -> None:
        """Wake the node up. Has no effect on a node that is awake or wakes up."""
        ...

    def close(self) -> None: ...
