"""A configurable cluster in memory: the Backend protocol without a network."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from jobs.core.backend_job import BackendJob
from jobs.core.lifecycle import NodeFlag, NodeState, State
from scheduling.backends.base import (
    AccountingUnavailable,
    BackendError,
    BackendNode,
    ClusterListing,
    LogUpdate,
    PingReply,
    RequestRejected,
    SubmitRequest,
    UnreadableRow,
)
from scheduling.backends.slurm import SLURM_TRAITS


class FakeCluster:
    def __init__(self, nodes: int = 4, gpus: int = 8) -> None:
        self.known: dict[str, BackendJob] = {}
        self.listed: dict[str, BackendJob] | None = None  # what a listing that lags shows instead
        self.unreadable_jobs: list[UnreadableRow] = []
        self.unreadable_nodes: list[UnreadableRow] = []
        self.sent: list[SubmitRequest] = []
        self.cancelled: list[str] = []
        self.signaled: list[tuple[str, str]] = []
        self.drained: dict[str, str] = {}
        self.accounting: list[BackendJob] | None = None  # None: the cluster has no accounting
        self.job_id: Callable[[int], str] = str  # the cluster's id of its n-th job
        self.machines = {
            name: BackendNode(
                name=name,
                state=NodeState.IDLE,
                cpus=128,
                memory_mb=1024 * 1024,
                gpus=gpus,
                gpu_model="a100",
                features=("rack-r01", "leaf-l01"),
            )
            for name in (f"seren-{n:03d}" for n in range(1, nodes + 1))
        }
        self.traits = SLURM_TRAITS
        # Called before and after each operation; tests make them raise
        self.before: Callable[[str], None] = lambda verb: None
        self.after: Callable[[str], None] = lambda verb: None

    # test controls

    def lag(self) -> None:
        """From now on, listings show the jobs as they are now."""
        self.listed = dict(self.known)

    def change(self, key: str, **fields: object) -> None:
        (backend_id,) = [job.backend_id for job in self.known.values() if job.key == key]
        self.known[backend_id] = replace(self.known[backend_id], **fields)

    def start(self, key: str, at: datetime) -> None:
        self.change(key, state=State.RUNNING, started_at=at)

    def end(self, key: str, state: State, at: datetime, **fields: object) -> None:
        self.change(key, state=state, ended_at=at, **fields)

    def adopt(self, attempt) -> None:
        """Make the cluster run this attempt already."""
        self.known[attempt.backend_id] = BackendJob(
            backend_id=attempt.backend_id,
            key=attempt.key,
            name=attempt.job.name,
            user=attempt.job.user.username,
            state=State.RUNNING,
            started_at=attempt.confirmed_at,
        )

    def forget(self, key: str) -> None:
        self.known = {name: job for name, job in self.known.items() if job.key != key}

    def garble(self, backend_id: str) -> None:
        """Make its row unreadable."""
        last = self.known.pop(backend_id)
        sentence = f"job {backend_id}: job_state is a int"
        row = UnreadableRow(
            kind="job", name=backend_id, key=last.key, sentence=sentence, comment_read=True, last_seen=last
        )
        self.unreadable_jobs.append(row)

    def garble_node(self, name: str) -> None:
        del self.machines[name]
        self.unreadable_nodes.append(UnreadableRow(kind="node", name=name, sentence=f"node {name}: cpus is a str"))

    def foreign(self, name: str = "others", **fields: object) -> str:
        backend_id = self.job_id(9000 + len(self.known))
        plain = {"backend_id": backend_id, "key": "", "name": name, "user": "mallory", "state": State.RUNNING}
        self.known[backend_id] = BackendJob(**{**plain, **fields})
        return backend_id

    # the protocol

    def ping(self) -> PingReply:
        self.before("ping")
        return PingReply(product="slurm 23.11.4", api="v0.0.40")

    def nodes(self) -> ClusterListing[BackendNode]:
        self.before("nodes")
        return ClusterListing(self.machines.values(), self.unreadable_nodes)

    def jobs(self) -> ClusterListing[BackendJob]:
        self.before("jobs")
        return ClusterListing((self.known if self.listed is None else self.listed).values(), self.unreadable_jobs)

    def current_jobs(self, keys: Collection[str]) -> ClusterListing[BackendJob]:
        self.before("current_jobs")
        return ClusterListing((job for job in self.known.values() if job.key in keys), self.unreadable_jobs)

    def find(self, key: str) -> BackendJob | None:
        self.before("find")
        return next((job for job in self.known.values() if job.key == key), None)

    def accounting_jobs(self, backend_id: str) -> list[BackendJob]:
        return [job for job in self._accounting() if job.backend_id == backend_id]

    def accounting_jobs_since(self, since: datetime) -> list[BackendJob]:
        return [job for job in self._accounting() if job.submitted_at is None or job.submitted_at >= since]

    def _accounting(self) -> list[BackendJob]:
        self.before("accounting")
        if self.accounting is None:
            raise AccountingUnavailable("this cluster has no accounting")
        return self.accounting

    def submit(self, request: SubmitRequest) -> str:
        self.before("submit")
        backend_id = self.job_id(len(self.sent) + 1)
        self.sent.append(request)
        self.known[backend_id] = BackendJob(
            backend_id=backend_id,
            key=request.key,
            installation=request.installation,
            name=request.name,
            user=request.user,
            state=State.PENDING,
            nodes=request.nodes,
        )
        self.after("submit")
        return backend_id

    def submit_all(self, requests: Sequence[SubmitRequest]) -> list[str | BackendError]:
        return [self._submit_or_error(request) for request in requests]

    def _submit_or_error(self, request: SubmitRequest) -> str | BackendError:
        try:
            return self.submit(request)
        except BackendError as error:
            return error

    def cancel(self, backend_id: str) -> None:
        self.before("cancel")
        self.cancelled.append(backend_id)

    def signal(self, backend_id: str, name: str, *, shell: bool) -> None:
        self.before("signal")
        self.signaled.append((backend_id, f"B:{name}" if shell else name))

    def evict(self, backend_id: str) -> None:
        self.before("evict")
        self.cancel(backend_id)

    def advance_jobs(self) -> None:
        self.before("advance_jobs")

    def new_log_lines(self, backend_id: str, positions: Mapping[str, str]) -> LogUpdate:
        raise RequestRejected("jobs write their logs themselves")

    def drain(self, node: str, reason: str) -> None:
        self.before("drain")
        self.drained[node] = reason

    def resume(self, node: str) -> None:
        self.before("resume")
        self.drained.pop(node, None)

    def power_down(self, node: str) -> None:
        self.before("power_down")
        self.set_flags(node, NodeFlag.POWERED_DOWN)

    def power_up(self, node: str) -> None:
        self.before("power_up")
        if self.machines[node].flags:
            self.set_flags(node, NodeFlag.POWERING_UP)

    def set_flags(self, node: str, *flags: str) -> None:
        self.machines[node] = replace(self.machines[node], flags=frozenset(flags))

    def close(self) -> None:
        pass


def seen_job(**fields: object) -> BackendJob:
    return BackendJob(**{"backend_id": "7", "key": "", "name": "llm", "user": "ada", "state": State.RUNNING, **fields})


def failing(error: Exception, *verbs: str) -> Callable[[str], None]:
    """A hook that raises the error: `cluster.before = failing(ClusterUnreachable("gone"), "submit")`."""

    def hook(verb: str) -> None:
        if verb in verbs:
            raise error

    return hook
