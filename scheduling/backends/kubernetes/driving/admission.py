"""The next steps of attempts that need more than their submission. Pure: the cached objects in, small values out.

| attempt | step |
|---|---|
| pods are missing that Acme creates itself, and it was not admitted | `CreatePods` |
| all its pods exist, and each fits on its node | `Admit`: record the uids of the pods, then place them |
| it is admitted, and some of its pods were not placed | `Place` them |
| its pods have ended, or one was deleted, and nothing records the end | `RecordEnd`, which ends the other pods |
| a stop was recorded, but its pods had succeeded before it reached them | `RecordEnd` again: the pods will be gone |
| its recorded end has left pods running | `DeletePods` |
| it ended a day ago | `DeleteOwner` |

Attempts are looked at in the order of their creation, and each admitted one takes its share of its nodes first. Pods of
other people count, so what does not fit waits here, with a sentence, instead of being rejected by the kubelet.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from jobs.core.lifecycle import State

from ..attempts import OLDEST, OwnAttempt, attempt_end
from ..ends import PodEnd
from ..pods import Pod
from .capacity import FreeCapacity, PodRequests

KEEP_ENDED = timedelta(days=1)
NEVER = datetime.max.replace(tzinfo=UTC)
CREATED_BY_ACME = "ConfigMap"  # the kind of owner whose pods no controller creates
SINGLE_POD = "Pod"


@dataclass(frozen=True, kw_only=True)
class Step:
    attempt: OwnAttempt


@dataclass(frozen=True, kw_only=True)
class CreatePods(Step):
    pass


@dataclass(frozen=True, kw_only=True)
class Place(Step):
    """Pods with their nodes."""

    placements: Sequence[tuple[Pod, str]]


@dataclass(frozen=True, kw_only=True)
class Admit(Place):
    pass


@dataclass(frozen=True, kw_only=True)
class RecordEnd(Step):
    end: PodEnd


@dataclass(frozen=True, kw_only=True)
class DeletePods(Step):
    pods: Sequence[Pod]


@dataclass(frozen=True, kw_only=True)
class DeleteOwner(Step):
    pass


def next_steps(
    attempts: Iterable[OwnAttempt],
    free: FreeCapacity,
    lost_nodes: Collection[str],
    late: Collection[str],
    now: datetime,
) -> list[Step]:
    """At most one step of each attempt. `late`: see `attempt_end`."""
    ordered = sorted(attempts, key=lambda attempt: (attempt.owner.created_at or OLDEST, attempt.owner.uid))
    steps = []
    for attempt in ordered:
        end = attempt_end(attempt, lost_nodes, late)
        step = step_after_end(attempt, end, now) if end else _next_step(attempt, free)
        if step:
            steps.append(step)
    return steps


def idle_until(attempt: OwnAttempt, lost_nodes: Collection[str], late: Collection[str]) -> datetime | None:
    """Until when an attempt without a next step needs none, unless it, the lost nodes or the late pods change. None: it
    waits for others.
    """
    if end := attempt_end(attempt, lost_nodes, late):
        return min(end.at, NEVER - KEEP_ENDED) + KEEP_ENDED if end.at else NEVER
    return NEVER if attempt.plan.admitted else None


def _next_step(attempt: OwnAttempt, free: FreeCapacity) -> Step | None:
    """The next step of an attempt that has not ended."""
    if attempt.plan.admitted:
        unplaced = [
            (pod, node)
            for pod, node in zip(attempt.members, attempt.plan.nodes, strict=True)
            if pod and not pod.node and not pod.is_deleting
        ]
        return Place(attempt=attempt, placements=unplaced) if unplaced else None
    if any(pod is None for pod in attempt.members):
        return CreatePods(attempt=attempt) if attempt.owner.kind == CREATED_BY_ACME else None
    return _admission(attempt, free)


def _admission(attempt: OwnAttempt, free: FreeCapacity) -> Step | None:
    if obstacle(attempt, free):
        return None
    placements = [(pod, node) for pod, node in zip(attempt.members, attempt.plan.nodes, strict=True) if pod]
    for pod, node in placements:
        free.take(node, PodRequests.of(pod))
    return Admit(attempt=attempt, placements=placements)


def step_after_end(attempt: OwnAttempt, end: PodEnd, now: datetime) -> Step | None:
    """The next step of an attempt that has ended."""
    owner, recorded = attempt.owner, attempt.plan.ended
    if recorded is None and owner.end is None and owner.kind != SINGLE_POD:
        return RecordEnd(attempt=attempt, end=end)
    if recorded and end.state == State.COMPLETED != recorded.state:
        return RecordEnd(attempt=attempt, end=end)
    if recorded and (running := [pod for pod in attempt.live_pods if not pod.is_deleting]):
        return DeletePods(attempt=attempt, pods=running)
    if end.at and now - end.at > KEEP_ENDED:
        return DeleteOwner(attempt=attempt)
    return None


def obstacle(attempt: OwnAttempt, free: FreeCapacity) -> str:
    """Why an attempt that was not admitted waits; empty if it need not."""
    members = list(zip(attempt.members, attempt.plan.nodes, strict=True))
    if missing := sum(pod is None for pod, _ in members):
        return f"{missing} of {len(members)} pods do not exist yet"
    obstacles = (free.obstacle(node, PodRequests.of(pod)) for pod, node in members if pod)
    return next(filter(None, obstacles), "")


def obstacles(attempts: Iterable[OwnAttempt], free: FreeCapacity) -> Iterator[tuple[str, str]]:
    """The uids of owners that wait, and why. The attempts are not admitted."""
    for attempt in attempts:
        if text := obstacle(attempt, free):
            yield attempt.owner.uid, text
