"""What an observation of the cluster means for one attempt or one node. Pure: facts in, one small value out.

No change is a result too: an attempt that is not visible for a moment is not dead. If a cluster answers completely
but does not know an attempt, the attempt is only marked as missing: clusters forget ended jobs, so the outcome must be
looked up elsewhere (`outcomes`). A job that was refused because its attempt had started before is treated the same way.
An attempt that the cluster accepted but does not start is stranded: its nodes were drained, failed or were taken
between our decision and its submission. Waiting for exactly these nodes may take days while others are free.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import NamedTuple

from jobs.core.backend_job import BackendJob
from jobs.core.gpu_shares import WHOLE_GPU, slice_devices
from jobs.core.lifecycle import FINAL_STATES, Flag, NodeFlag, NodeState, State
from scheduling.backends.attempt_record import STARTED_BEFORE
from scheduling.backends.base import BackendNode

MAX_START_DELAY = timedelta(seconds=90)  # a controller may schedule only once a minute
MOST_DOUBLINGS = 5  # an attempt that never starts is requeued ever more rarely


class AttemptFacts(NamedTuple):
    """What our record says about a live attempt: its columns `ATTEMPT_FACT_COLUMNS`, and what follows from others."""

    backend_id: str
    confirmed_at: datetime | None
    state: str
    missing_since: datetime | None
    promised_at: datetime
    stop_state: str
    number: int  # number of the attempt within its job
    accepted_at: datetime | None = None  # by our clock
    sent: bool = True  # the cluster accepted it
    has_record: bool = False  # its batch script refuses to start twice

    @property
    def is_suspended(self) -> bool:
        return self.state == State.SUSPENDED

    def runs_as_known(self, job: BackendJob) -> bool:
        """Whether the job runs as the attempt says, so that nothing has changed. A short form of `observed_changes` for
        nearly all of thousands of attempts.
        """
        is_same = job.backend_id == self.backend_id and self.missing_since is None and self.confirmed_at is not None
        return is_same and job.state == State.RUNNING and not self.is_suspended


ATTEMPT_FACT_COLUMNS = AttemptFacts._fields[: AttemptFacts._fields.index("sent")]


class ObservedChange:
    """A change that follows from an observation."""


@dataclass(frozen=True)
class BackendIdChange(ObservedChange):
    """The submission did succeed: the cluster has the attempt under this id."""

    backend_id: str


@dataclass(frozen=True)
class RunStart(ObservedChange):
    started_at: datetime


@dataclass(frozen=True)
class SuspensionChange(ObservedChange):
    yes: bool


@dataclass(frozen=True)
class StrandedAttempt(ObservedChange):
    reason: str


@dataclass(frozen=True)
class ObservedEnd(ObservedChange):
    state: State
    at: datetime
    exit_code: int | None
    signal: int | None
    reason: str


@dataclass(frozen=True)
class MissingChange(ObservedChange):
    since: datetime | None


def observed_changes(facts: AttemptFacts, job: BackendJob | None, now: datetime) -> list[ObservedChange]:
    """The changes, in the order in which they must be applied."""
    if job is None:
        return _missing_changes(facts, now) if facts.sent else []
    if facts.has_record and refused_to_start(job):
        return _missing_changes(facts, now)
    changes: list[ObservedChange] = []
    if job.backend_id != facts.backend_id:
        changes.append(BackendIdChange(job.backend_id))
    elif facts.missing_since:
        changes.append(MissingChange(None))
    if not facts.confirmed_at and job.started_at and _has_run(job):
        changes.append(RunStart(job.started_at))
    if job.state in FINAL_STATES and Flag.COMPLETING not in job.flags:
        changes.append(ObservedEnd(job.state, job.ended_at or now, job.exit_code, job.signal, _reason_text(job)))
    elif _is_stranded(facts, job, now):
        changes.append(StrandedAttempt(job.reason))
    elif facts.is_suspended != (job.state == State.SUSPENDED):
        changes.append(SuspensionChange(job.state == State.SUSPENDED))
    return changes


def may_be_outdated(change: ObservedChange) -> bool:
    """Whether the change may be wrong if the listing is older than what others know. An end stays an end."""
    return isinstance(change, StrandedAttempt) or (isinstance(change, MissingChange) and change.since is not None)


def _is_stranded(facts: AttemptFacts, job: BackendJob, now: datetime) -> bool:
    """Whether the cluster accepted the attempt but does not start it."""
    is_waiting = job.state == State.PENDING and not job.held
    # There may be an outage between the decision and the submission, and the cluster's clock may be wrong
    accepted_at = facts.accepted_at or max(facts.promised_at, job.submitted_at or facts.promised_at)
    return is_waiting and not facts.confirmed_at and not facts.stop_state and now - accepted_at > patience(facts.number)


def patience(number: int) -> timedelta:
    """How long the cluster may take to start an accepted attempt. Doubles with each attempt."""
    doublings = min(max(number - 1, 0), MOST_DOUBLINGS)
    return MAX_START_DELAY * (1 << doublings)


def _has_run(job: BackendJob) -> bool:
    if job.state in (State.RUNNING, State.SUSPENDED):
        return Flag.CONFIGURING not in job.flags
    return job.state in FINAL_STATES and bool(job.nodes)


def _missing_changes(facts: AttemptFacts, now: datetime) -> list[ObservedChange]:
    return [MissingChange(now)] if facts.missing_since is None else []


def refused_to_start(job: BackendJob) -> bool:
    """Whether the batch script refused to run because its attempt had started before."""
    return job.state == State.FAILED and job.exit_code == STARTED_BEFORE


def _reason_text(job: BackendJob) -> str:
    return f"Reason given by the cluster: {job.reason}." if job.reason else ""


def pick_job(jobs: Sequence[BackendJob], backend_id: str) -> tuple[BackendJob | None, list[BackendJob]]:
    """Of all jobs with one key: the one that counts, and the other live ones, which must be cancelled."""
    if len(jobs) <= 1:
        return next(iter(jobs), None), []
    ordered = sorted(jobs, key=lambda job: _preference(job, backend_id))
    chosen = ordered[0]
    return chosen, [job for job in ordered[1:] if job.state not in FINAL_STATES]


def _preference(job: BackendJob, backend_id: str) -> tuple[object, ...]:
    """Jobs that ran go before jobs that were refused because of them, even if only the id of the latter is known."""
    return (refused_to_start(job), job.backend_id != backend_id, job.state in FINAL_STATES, job.backend_id)


TOPOLOGY_FEATURES = ("rack", "leaf", "pod")


def topology(features: Sequence[str]) -> dict[str, str | int]:
    """Parse node features that follow our convention: `rack-r01`, `leaf-l03`, `pod-p1`, `nic-hdr200x4`."""
    parsed: dict[str, str | int] = {}
    for feature in features:
        name, _, value = feature.partition("-")
        if name in TOPOLOGY_FEATURES and value:
            parsed[name] = value[:40]
        elif name == "nic" and value:
            kind, times, count = value.rpartition("x")
            has_count = bool(times) and count.isascii() and count.isdigit()
            parsed["nic_type"] = (kind if has_count else value)[:40]
            parsed["nic_count"] = min(int(count[:4]), 64) if has_count else 1
    return parsed


def node_fields(node: BackendNode) -> dict[str, object]:
    """The columns of a node row that the cluster determines. Topology it does not report stays as operators
    entered it.
    """
    return {
        "state": node.state,
        "flags": sorted(node.flags),
        "gpus": node.gpus,
        "mig_slices": dict(node.mig_slices),
        "shards_per_gpu": min(node.gpu_shards // node.gpus, WHOLE_GPU) if node.gpus else 0,
        "share_gres": node.share_gres,
        "gpu_model": node.gpu_model,
        "cpus": node.cpus,
        "memory_mb": node.memory_mb,
        **topology(node.features),
    }


def with_labeled_gpus(job: BackendJob, holders: Mapping[str, Mapping[str, list[int]]]) -> BackendJob:
    """The job with the GPU indices that telemetry knows. `holders`: node -> pod -> indices.

    Telemetry is some seconds old, so a node where its number of GPUs differs from the cluster's keeps the number only.
    """
    known: dict[str, tuple[int, ...]] = {}
    for node, pods in job.pods.items():
        if node in job.mig_counts:
            continue  # telemetry says on which GPU a slice is, and not which slice it is
        if (by_pod := holders.get(node)) is not None:
            indices = sorted(index for pod in pods for index in by_pod.get(pod, ()))
            if len(indices) == job.gpu_counts.get(node):
                known[node] = tuple(indices)
    if not known:
        return job
    counts = {node: count for node, count in job.gpu_counts.items() if node not in known}
    return replace(job, gpus={**job.gpus, **known}, gpu_counts=counts)


def indices_of_counts(counts: Sequence[int], others: Collection[int], ours: Collection[int], gpus: int) -> list[int]:
    """GPU indices for jobs of which the cluster only reports how many GPUs they hold on a node.

    The last ones that no other foreign job holds: which ones they really are, only the cluster knows. An index that one
    of our allocations has is used only if no other is left: its job has ended, and is released later in the same turn.
    """
    free = sorted((index for index in range(gpus) if index not in others), key=lambda index: (index in ours, -index))
    return sorted(free[: sum(counts)])


def indices_of_slices(
    counts: Mapping[str, int], node: BackendNode, others: Collection[int], ours: Collection[int]
) -> list[int]:
    """The same for jobs of which the cluster only reports how many MIG slices of each profile they hold on a node."""
    devices = slice_devices(node.gpus, node.mig_slices)
    found: list[int] = []
    for profile, count in counts.items():
        of_profile = [index for index in devices if devices[index] == profile and index not in others]
        found += sorted(of_profile, key=lambda index: (index in ours, -index))[:count]
    return sorted(found)


ABSENT_NODE: dict[str, object] = {"state": NodeState.UNKNOWN, "flags": [NodeFlag.NOT_RESPONDING]}


class HeldGpus(NamedTuple):
    indices: Sequence[int]
    milli: int = WHOLE_GPU  # of each


def index_corrections(held: Mapping[int, HeldGpus], given: Mapping[int, Sequence[int]]) -> list[tuple[int, int, int]]:
    """Return (attempt, index in the record, index to record instead). `held` has all attempts of the node, `given` what
    the cluster gave to those of which it says so. What differs in number was not allocated as requested, and stays.

    Clusters choose GPUs by themselves. Attempts may have each other's GPUs, in cycles of any length, and the GPU of an
    attempt may belong in the record to one whose GPUs the cluster does not say, because it has not started there or is
    ending. Such an attempt gets a GPU that was freed. Nothing is corrected where the reports contradict each other, as
    telemetry of different moments may.
    """
    known = {attempt: gpus for attempt, gpus in given.items() if len(gpus) == len(held[attempt].indices)}
    moves = [(attempt, *pair) for attempt, gpus in known.items() for pair in _swaps(held[attempt].indices, gpus)]
    if not moves:
        return []
    used: Counter[int] = Counter()
    for attempt, gpus in known.items():
        used.update(dict.fromkeys(gpus, held[attempt].milli))
    others: dict[int, list[int]] = defaultdict(list)
    for attempt in held.keys() - known.keys():
        for index in held[attempt].indices:
            others[index].append(attempt)
    amounts = {index: sum(held[attempt].milli for attempt in attempts) for index, attempts in others.items()}
    displaced = sorted(index for index, milli in amounts.items() if used[index] + milli > WHOLE_GPU)
    free = sorted({old for _, old, _ in moves if not used[old] and old not in others})
    if len(free) < len(displaced) or max(used.values()) > WHOLE_GPU:
        return []
    pairs = zip(displaced, free, strict=False)  # those who share a GPU stay together
    return moves + [(attempt, old, new) for old, new in pairs for attempt in others[old]]


def _swaps(promised: Sequence[int], actual: Sequence[int]) -> list[tuple[int, int]]:
    return list(zip(sorted(set(promised) - set(actual)), sorted(set(actual) - set(promised)), strict=True))
