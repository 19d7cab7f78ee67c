"""Attempts that Acme submitted: their pods by rank, whether they have ended, and how. Pure.

An attempt ends with the first of these:

| what happened | state |
|---|---|
| all admitted pods succeeded, which a stopped pod never does (`pod_script`) | COMPLETED, whatever was recorded |
| Acme recorded an end (`plans`): cancelled, evicted, or one of the rows below | that state |
| its Job has failed or completed | as for all Jobs; the cause is that of its first failed pod |
| an admitted pod failed or was deleted | that of the pod, whatever the others do; TIMEOUT if its Job deleted it |
| an admitted pod is to be deleted, and its node does not respond | NODE_FAIL |
| its owner was deleted | CANCELLED |
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property

from jobs.core.lifecycle import State

from .ends import CAUSES, PodEnd, failure_order
from .plans import AttemptPlan
from .pods import Pod, pod_end, with_cause
from .workloads import Workload

OLDEST = datetime.min.replace(tzinfo=UTC)
PODS = "/api/v1/pods"


@dataclass(frozen=True, kw_only=True)
class OwnAttempt:
    """The owner of an attempt with everything that it owns, directly or not. Vanished pods belong to it too."""

    owner: Workload
    plan: AttemptPlan
    parts: Sequence[Workload] = ()  # the owner, and what is between it and the pods
    pods: Sequence[Pod] = ()

    @cached_property
    def by_uid(self) -> Mapping[str, Pod]:
        return {pod.uid: pod for pod in self.pods}

    @property
    def live_pods(self) -> list[Pod]:
        return [pod for pod in self.pods if pod.is_live]

    @cached_property
    def members(self) -> Sequence[Pod | None]:
        """The pod of each rank: the admitted one, before that the newest one. None: there is none."""
        if self.plan.admitted:
            return [self.by_uid.get(uid) for uid in self.plan.admitted]
        usable = [pod for pod in self.live_pods if not pod.is_deleting]
        newest = {self._rank(pod): pod for pod in sorted(usable, key=_age)}
        return [newest.get(rank) for rank in range(len(self.plan.nodes))]

    def _rank(self, pod: Pod) -> int | None:
        """Jobs write the index of a pod into an annotation, Acme into its name."""
        if pod.index is not None:
            return pod.index
        text = pod.name.removeprefix(f"{self.owner.name}-")
        return 0 if pod.uid == self.owner.uid else int(text) if text.isascii() and text.isdigit() else None

    @property
    def is_over(self) -> bool:
        """Whether its owner says that it has ended, without a look at the pods."""
        return bool(self.plan.ended or self.owner.end or self.owner.gone_at)

    @cached_property
    def unseen_uids(self) -> Sequence[str]:
        """Admitted pods that are not known: they were deleted, or the events about them are late."""
        return [] if self.is_over else [uid for uid in self.plan.admitted if uid not in self.by_uid]


def own_attempt(parts: Sequence[Workload], pods: Sequence[Pod], uid: str) -> OwnAttempt | None:
    """The attempt whose owner has this uid; None if Acme did not submit it, or if the owner is not known."""
    if owner := next((part for part in parts if part.uid == uid), None):
        return OwnAttempt(owner=owner, plan=owner.plan, parts=parts, pods=pods) if owner.plan else None
    if len(pods) == 1 and pods[0].uid == uid and pods[0].plan:
        return _single_pod(pods[0], pods[0].plan)
    return None


def _single_pod(pod: Pod, plan: AttemptPlan) -> OwnAttempt:
    """A pod that is its own owner."""
    owner = Workload(
        uid=pod.uid,
        kind="Pod",
        namespace=pod.namespace,
        name=pod.name,
        controller=None,
        owner=pod.owner,
        gpus_per_pod=pod.gpus,
        suspended=False,
        created_at=pod.created_at,
        started_at=pod.started_at,
        time_limit=None,
        end=None,
        collection=PODS,
        plan=plan,
        gone_at=pod.gone_at,
    )
    admitted = (pod.uid,) if pod.node else ()
    return OwnAttempt(owner=owner, plan=replace(plan, admitted=admitted), pods=[pod])


def _age(pod: Pod) -> tuple[datetime, str]:
    return (pod.created_at or OLDEST, pod.uid)


def attempt_end(attempt: OwnAttempt, lost_nodes: Collection[str], late: Collection[str] = ()) -> PodEnd | None:
    """How the attempt ended; None while it has not. `late` are the uids of pods that exist, but were not seen yet."""
    owner, plan = attempt.owner, attempt.plan
    success = _success(attempt)
    is_recorded = plan.ended is not None and plan.ended.state == State.COMPLETED
    if success and not is_recorded and _succeeded_by_itself(attempt):
        return success
    if plan.ended:
        return plan.ended
    if owner.end:
        return None if _is_job_late(attempt, owner.end) else _job_end(attempt, owner.end, lost_nodes)
    end = success or _first_failure(attempt, lost_nodes, late)
    if owner.gone_at and end is None:
        return PodEnd(state=State.CANCELLED, at=owner.gone_at, reason="deleted")
    return end


def _success(attempt: OwnAttempt) -> PodEnd | None:
    """The end of an attempt whose admitted pods have all succeeded."""
    pods = [attempt.by_uid.get(uid) for uid in attempt.plan.admitted]
    ends = [pod.end for pod in pods if pod and pod.end and pod.end.state == State.COMPLETED]
    if not ends or len(ends) < len(pods):
        return None
    recorded = [attempt.plan.ended, attempt.owner.end]
    at = max((end.at for end in ends if end.at), default=None) or next((one.at for one in recorded if one), None)
    return PodEnd(state=State.COMPLETED, at=at or attempt.owner.gone_at, exit_code=0)


def _succeeded_by_itself(attempt: OwnAttempt) -> bool:
    """Whether the success of its pods says that no stop reached them."""
    return all(pod.fails_if_stopped for pod in attempt.members if pod)


def _is_job_late(attempt: OwnAttempt, end: PodEnd) -> bool:
    """Whether a JobSet has failed and the event that its Job has failed, which says why, is still on its way."""
    jobs = [part for part in attempt.parts if part.uid != attempt.owner.uid]
    return end.state != State.COMPLETED and bool(jobs) and all(job.end is None and job.gone_at is None for job in jobs)


def _job_end(attempt: OwnAttempt, end: PodEnd, lost_nodes: Collection[str]) -> PodEnd:
    """A JobSet does not say why its Job failed, and a Job may not say why its pod did."""
    if end.state == State.COMPLETED:
        return replace(end, exit_code=0)
    causes = [part.end for part in attempt.parts if part.end and part.end.state in CAUSES]
    # Our Jobs fail with their first pod. Then "BackoffLimitExceeded" only repeats that the pod has failed
    has_failed_pod = any(pod.end and pod.end.exit_code for pod in attempt.pods)
    end = replace(causes[0], at=end.at) if causes else replace(end, reason="" if has_failed_pod else end.reason)
    return with_cause(end, attempt.pods, lost_nodes)


def _first_failure(attempt: OwnAttempt, lost_nodes: Collection[str], late: Collection[str]) -> PodEnd | None:
    plan = attempt.plan
    ends = [
        None if uid in late else _member_end(attempt.by_uid.get(uid), node, lost_nodes)
        for uid, node in zip(plan.admitted, plan.nodes, strict=False)
    ]
    failures = sorted((end for end in ends if end and end.state != State.COMPLETED), key=failure_order)
    return failures[0] if failures else None


def _member_end(pod: Pod | None, node: str, lost_nodes: Collection[str]) -> PodEnd | None:
    if pod is None:
        lost = node in lost_nodes
        reason = f"the pod on {node} was deleted{' after the node was lost' if lost else ''}"
        return PodEnd(state=State.NODE_FAIL if lost else State.CANCELLED, at=None, reason=reason)
    if not pod.is_live:
        return pod_end(pod, lost_nodes)
    if pod.is_deleting and node in lost_nodes:
        return PodEnd(state=State.NODE_FAIL, at=None, reason=f"node {node} does not respond")
    return None


def running_pods(pods: Iterable[Pod], lost_nodes: Collection[str]) -> list[Pod]:
    """The pods that may still run. Nobody knows that of a lost node, which takes no other work."""
    return [pod for pod in pods if pod.is_live and pod.node and pod.node not in lost_nodes]
