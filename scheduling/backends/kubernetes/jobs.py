"""One job for each top-level owner of pods that hold or request GPUs (`groups`). Pure.

The job of an owner that is known by reference alone ends when its pods have ended. GPU indices are not known, only how
many GPUs each node gives.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from jobs.core.backend_job import BackendJob
from jobs.core.lifecycle import Flag, State

from .attempts import attempt_end, running_pods
from .changes import ChangeReader
from .ends import PodEnd, failure_order
from .groups import GroupCache, WorkloadGroup
from .ownership import Owner
from .pods import Pod, pod_end, with_cause
from .resources import MAX_GPUS, limited_cpus
from .workloads import Workload

NOBODY = Owner(user="", team="", key="", installation="")


class JobCache:
    """The jobs as of the last look. Only groups that changed, or that wait, are read again."""

    def __init__(self) -> None:
        self._reader = ChangeReader()
        self._derived_for: object = None
        self._jobs: dict[str, BackendJob] = {}
        self._waiting: set[str] = set()

    def jobs(
        self,
        groups: GroupCache,
        workloads: Mapping[str, Workload],
        waits: Mapping[str, str],
        lost_nodes: frozenset[str],
        late: frozenset[str],
    ) -> list[BackendJob]:
        """See `group_job`."""
        with self._reader.changes([groups.changes]) as changed:
            uids: Iterable[str] = (changed or set()) | self._waiting
            if changed is None or self._derived_for != (lost_nodes, late):
                self._derived_for, self._jobs, self._waiting = (lost_nodes, late), {}, set()
                uids = list(groups.listed)
            for uid in uids:
                group = groups.listed.get(uid)
                self._keep(uid, group_job(group, workloads, waits, lost_nodes, late) if group else None)
        return list(self._jobs.values())

    def _keep(self, uid: str, job: BackendJob | None) -> None:
        self._waiting.discard(uid)
        if job is None:
            self._jobs.pop(uid, None)
            return
        self._jobs[uid] = job
        if job.state == State.PENDING:
            self._waiting.add(uid)


def group_job(
    group: WorkloadGroup,
    workloads: Mapping[str, Workload],
    waits: Mapping[str, str],
    lost_nodes: frozenset[str],
    late: frozenset[str] = frozenset(),
) -> BackendJob:
    """The group as one job.

    `waits` says by uid why an object waits; `lost_nodes` do not respond; `late` are uids of pods that exist, although
    they were not seen yet.
    """
    top, live = workloads.get(group.top.uid), [pod for pod in group.pods if pod.is_live]
    end = _group_end(group, top, live, lost_nodes, late)
    keeps_nodes = group.is_ours or end is not None  # Acme's attempts hold all their nodes until they end
    placed = [pod for pod in (group.pods if keeps_nodes else live) if pod.node]
    state, flags = _state(group, end, placed, lost_nodes)
    counts = _gpus_by_node(pod for pod in live if pod.node) if end is None else {}
    owner = _owner(group, top)
    return BackendJob(
        backend_id=group.top.uid,
        key=owner.key,
        installation=owner.installation,
        name=_name(group, top),
        user=owner.user,
        account=owner.team,
        state=state,
        flags=flags,
        reason=end.reason if end else _wait_reason(group, live, waits) if state == State.PENDING else "",
        held=state == State.PENDING and any(part.suspended for part in group.workloads),
        nodes=tuple(sorted({pod.node for pod in placed})),
        gpu_counts=counts,
        mig_counts=_slices_by_node(pod for pod in live if pod.node and pod.mig_slices) if counts else {},
        pods=_pods_by_node(pod for pod in live if pod.node and pod.gpus) if counts else {},
        gpus_per_node=max(counts.values(), default=group.gpus_per_pod),
        submitted_at=_earliest([*([top.created_at] if top else []), *(pod.created_at for pod in group.pods)]),
        started_at=_earliest(pod.started_at for pod in group.pods if pod.node),
        ended_at=end.at if end else None,
        exit_code=end.exit_code if end else None,
        signal=end.signal if end else None,
        cpus=limited_cpus(sum(pod.cpus for pod in placed)),
        memory_per_node_mb=max((pod.memory_mb for pod in placed), default=0),
        time_limit=top.time_limit if top else None,
    )


def _state(
    group: WorkloadGroup, end: PodEnd | None, placed: Sequence[Pod], lost_nodes: frozenset[str]
) -> tuple[State, frozenset[str]]:
    if end:
        unknown = lost_nodes if group.is_ours else frozenset()
        return end.state, frozenset({Flag.COMPLETING} if running_pods(group.pods, unknown) else ())
    if not placed:
        return State.PENDING, frozenset()
    run = all if group.is_ours else any  # a gang of ours has started when all its pods have
    return State.RUNNING, frozenset() if run(pod.running or not pod.is_live for pod in placed) else frozenset(
        {Flag.CONFIGURING}
    )


def _pods_by_node(pods: Iterable[Pod]) -> dict[str, tuple[str, ...]]:
    names: dict[str, tuple[str, ...]] = {}
    for pod in pods:
        names[pod.node] = (*names.get(pod.node, ()), f"{pod.namespace}/{pod.name}")
    return names


def _gpus_by_node(placed: Iterable[Pod]) -> dict[str, int]:
    counts: dict[str, int] = defaultdict(int)
    for pod in placed:
        if pod.gpus:
            counts[pod.node] = min(counts[pod.node] + pod.gpus, MAX_GPUS)
    return dict(counts)


def _slices_by_node(placed: Iterable[Pod]) -> dict[str, dict[str, int]]:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for pod in placed:
        counts[pod.node].update(pod.mig_slices)
    return {node: dict(slices) for node, slices in counts.items()}


def _owner(group: WorkloadGroup, top: Workload | None) -> Owner:
    """Whose job it is: as its top-level owner says, or what it owns if that says nothing."""
    parts = [*([top.owner] if top else []), *(part.owner for part in group.workloads), *(p.owner for p in group.pods)]
    return next((owner for owner in parts if owner.user or owner.team or owner.key), NOBODY)


def _name(group: WorkloadGroup, top: Workload | None) -> str:
    """`research/pytorchjob/llama-7b`, as kubectl takes it: -n research pytorchjob/llama-7b."""
    member = top or next(iter(group.workloads), None) or next(iter(group.pods), None)
    return f"{member.namespace if member else ''}/{group.top.kind.lower()}/{group.top.name}"


def _earliest(times: Iterable[datetime | None]) -> datetime | None:
    return min((at for at in times if at), default=None)


def _wait_reason(group: WorkloadGroup, live: Sequence[Pod], waits: Mapping[str, str]) -> str:
    uids = [group.top.uid, *(part.uid for part in group.workloads), *(pod.uid for pod in live)]
    if quota := next((waits[uid] for uid in uids if uid in waits), ""):
        return quota
    if any(part.suspended for part in group.workloads):
        return "suspended"
    return next((pod.waits for pod in live if pod.waits), "")


# --- how a group ended


def _group_end(
    group: WorkloadGroup,
    top: Workload | None,
    live: Sequence[Pod],
    lost_nodes: frozenset[str],
    late: frozenset[str],
) -> PodEnd | None:
    if attempt := group.attempt:
        return attempt_end(attempt, lost_nodes, late)
    if top:
        if top.end and top.end.state == State.FAILED:
            return with_cause(top.end, group.pods, lost_nodes)
        if top.end or top.gone_at is None:
            return top.end
        return PodEnd(state=State.CANCELLED, at=top.gone_at, reason="deleted")
    if (
        live
        or (group.is_ours and group.top.kind != "Pod")
        or any(part.gone_at is None and part.end is None for part in group.workloads)
    ):
        return None  # pods of ours whose owner is not known yet say nothing about the end of the attempt
    return _end_of_pods(group, lost_nodes)


def _end_of_pods(group: WorkloadGroup, lost_nodes: frozenset[str]) -> PodEnd:
    """The end of a bare pod, or of an owner that is only known by reference: the first failure, or that of the last."""
    ends = [pod_end(pod, lost_nodes) for pod in group.pods] or [part.end for part in group.workloads if part.end]
    last = max((end.at for end in ends if end.at), default=None)
    failures = sorted((end for end in ends if end.state != State.COMPLETED), key=failure_order)
    if not failures:
        return PodEnd(state=State.COMPLETED if ends else State.CANCELLED, at=last, exit_code=0 if ends else None)
    first = failures[0]
    return PodEnd(state=first.state, at=last, exit_code=first.exit_code, signal=first.signal, reason=first.reason)
