"""What a look at the cluster means for one attempt or one node. Pure: facts in, one small value out.

Doing nothing is a value too: an attempt that cannot be seen for a moment is not dead. One that a cluster does not know
although it answers in full is only noted as missing: the cluster forgets ended jobs, so how it ended must be looked up
elsewhere (`outcomes`). A job that was refused because its attempt had been started before says as little. An
attempt that the cluster took and does not begin is stranded: its nodes were drained, died or went to somebody else
between our look and our deed, and waiting for just these may take days while others are free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from jobs.core.lifecycle import FINAL_STATES, Flag, NodeFlag, NodeState, State
from scheduling.backends.base import BackendJob, BackendNode
from scheduling.core.batch_script import STARTED_BEFORE

MAX_START_DELAY = timedelta(seconds=90)  # a controller may look at its queue only once a minute
MOST_DOUBLINGS = 5  # what never begins goes round ever more rarely
# By an operator of the cluster, who is respected, or until a time that the cluster itself has set
CLUSTER_HOLD_REASONS = ("JobHeld", "BeginTime", "launch failed", "launch_failed", "Dependency")
UNINFORMATIVE_REASONS = frozenset(
    {"", "None", "NonZeroExitCode", "TimeLimit", "OutOfMemory"}
)  # more than state and code do


@dataclass(frozen=True, kw_only=True)
class AttemptFacts:
    """What the record knows of a live attempt."""

    backend_id: str
    confirmed: bool
    suspended: bool
    sent: bool  # the cluster said yes to it
    missing_since: datetime | None
    promised_at: datetime
    stopping: bool
    number: int  # of the attempt among those of its job
    accepted_at: datetime | None = None  # by our clock
    has_record: bool = False  # its batch script refuses to start twice


class ObservedChange:
    """What follows from a look."""


@dataclass(frozen=True)
class NoChange(ObservedChange):
    pass


@dataclass(frozen=True)
class BackendIdChange(ObservedChange):
    """It was submitted after all: the cluster has it under this id."""

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


def observed_changes(facts: AttemptFacts, seen: BackendJob | None, now: datetime) -> list[ObservedChange]:
    """In the order in which to apply them."""
    if seen is None:
        return [_absence_change(facts, now)]
    if facts.has_record and refused_to_start(seen):
        return [_missing_change(facts, now)]
    news: list[ObservedChange] = []
    if seen.backend_id != facts.backend_id:
        news.append(BackendIdChange(seen.backend_id))
    elif facts.missing_since:
        news.append(MissingChange(None))
    if not facts.confirmed and seen.started_at and _has_run(seen):
        news.append(RunStart(seen.started_at))
    if seen.state in FINAL_STATES and Flag.COMPLETING not in seen.flags:
        news.append(ObservedEnd(seen.state, seen.ended_at or now, seen.exit_code, seen.signal, _reason_text(seen)))
    elif _is_stranded(facts, seen, now):
        news.append(StrandedAttempt(seen.reason))
    elif facts.suspended != (seen.state == State.SUSPENDED):
        news.append(SuspensionChange(seen.state == State.SUSPENDED))
    return news


def has_observed_changes(facts: AttemptFacts, seen: BackendJob | None, now: datetime) -> bool:
    return any(not isinstance(one, NoChange) for one in observed_changes(facts, seen, now))


def _is_stranded(facts: AttemptFacts, seen: BackendJob, now: datetime) -> bool:
    waits = seen.state == State.PENDING and not seen.reason.startswith(CLUSTER_HOLD_REASONS)
    # An outage may lie between the promise and the submission, and the cluster's clock may be wrong
    there_since = facts.accepted_at or max(facts.promised_at, seen.submitted_at or facts.promised_at)
    return waits and not facts.confirmed and not facts.stopping and now - there_since > patience(facts.number)


def patience(number: int) -> timedelta:
    """How long a cluster may take to begin what it took: twice as long with each attempt."""
    doublings = min(max(number - 1, 0), MOST_DOUBLINGS)
    return MAX_START_DELAY * (1 << doublings)


def _has_run(seen: BackendJob) -> bool:
    if seen.state in (State.RUNNING, State.SUSPENDED):
        return Flag.CONFIGURING not in seen.flags
    return seen.state in FINAL_STATES and bool(seen.nodes)


def _absence_change(facts: AttemptFacts, now: datetime) -> ObservedChange:
    return _missing_change(facts, now) if facts.sent else NoChange()


def _missing_change(facts: AttemptFacts, now: datetime) -> ObservedChange:
    return MissingChange(now) if facts.missing_since is None else NoChange()


def refused_to_start(seen: BackendJob) -> bool:
    return seen.state == State.FAILED and seen.exit_code == STARTED_BEFORE


def _reason_text(seen: BackendJob) -> str:
    return "" if seen.reason in UNINFORMATIVE_REASONS else f"The cluster says: {seen.reason}."


def pick_job(seen: Sequence[BackendJob], backend_id: str) -> tuple[BackendJob | None, list[BackendJob]]:
    """Of all jobs with one key: the one that counts, and the live ones that are too many."""
    if not seen:
        return None, []
    ordered = sorted(seen, key=lambda job: _preference(job, backend_id))
    chosen = ordered[0]
    return chosen, [job for job in ordered[1:] if job.state not in FINAL_STATES]


def _preference(job: BackendJob, backend_id: str) -> tuple[object, ...]:
    """One that ran counts before one that was refused because of it, even where only the latter's id is known."""
    return (refused_to_start(job), job.backend_id != backend_id, job.state in FINAL_STATES, job.backend_id)


TOPOLOGY_FEATURES = ("rack", "leaf", "pod")


def topology(features: Sequence[str]) -> dict[str, str | int]:
    """`rack-r01`, `leaf-l03`, `pod-p1`, `nic-hdr200x4`: what a cluster says of its nodes by convention."""
    found: dict[str, str | int] = {}
    for feature in features:
        name, _, value = feature.partition("-")
        if name in TOPOLOGY_FEATURES and value:
            found[name] = value[:40]
        elif name == "nic" and value:
            kind, times, count = value.rpartition("x")
            known = bool(times) and count.isascii() and count.isdigit()
            found["nic_type"] = (kind if known else value)[:40]
            found["nic_count"] = min(int(count[:4]), 64) if known else 1
    return found


def node_fields(seen: BackendNode) -> dict[str, object]:
    """The columns of a node row that the cluster decides. Topology it does not tell stays as operators entered it."""
    return {
        "state": seen.state,
        "flags": sorted(seen.flags),
        "gpus": seen.gpus,
        "gpu_model": seen.gpu_model,
        "cpus": seen.cpus,
        "memory_mb": seen.memory_mb,
        **topology(seen.features),
    }


ABSENT_NODE: dict[str, object] = {"state": NodeState.UNKNOWN, "flags": [NodeFlag.NOT_RESPONDING]}
