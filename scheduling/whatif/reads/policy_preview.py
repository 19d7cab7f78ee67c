"""How the queue of a cluster would change under another policy, placement or settings. Reads only.

Both policies are asked about the same cached snapshot, with the same random numbers, so that only the change itself
makes a difference. The work is bounded: one turn each, and start estimates only up to `MAX_ESTIMATED_JOBS` jobs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from jobs.models import Cluster, ClusterMode, clock
from scheduling.core.policy_choice import PolicyChoice, PolicyDifference
from scheduling.engine.cluster import ClusterSnapshot
from scheduling.engine.policies import rules_factory
from scheduling.queries.policy_choices import checked_differences, current_policy_choice
from scheduling.queries.predictions import with_predictions
from scheduling.queries.queue_order import QueueOrder, queue_order
from scheduling.queries.submission_preview import MAX_ESTIMATED_JOBS, preview_estimates
from scheduling.queries.wait_explanation import snapshot_cache
from scheduling.whatif.comparison.queue_changes import QueueChanges, QueuePlan, compare_plans


@dataclass(frozen=True, kw_only=True)
class PolicyPreview:
    """The queue under the current and the proposed choice. `warning` says why the current order or the proposed one
    is not in effect; `why_no_estimates` why start estimates are missing."""

    at: datetime
    cluster: Cluster
    choice: PolicyChoice
    differences: list[PolicyDifference]
    picture: ClusterSnapshot
    queue: QueueChanges
    apart: int  # jobs that are held, not yet due, or waiting for other jobs
    warning: str
    why_no_estimates: str


def preview_policy(cluster: Cluster, choice: PolicyChoice) -> PolicyPreview:
    """Compare the choice with the current one. Raises InvalidField if the cluster cannot use the choice."""
    current = current_policy_choice(cluster)
    changed = checked_differences(cluster, choice)
    picture = with_predictions(cluster, snapshot_cache.of(cluster, clock.now()))
    before, after = _order(picture, current), _order(picture, choice)
    jobs = len(picture.waiting) + len(picture.running)
    plan_before, plan_after = _plan(cluster, picture, before, current), _plan(cluster, picture, after, choice)
    return PolicyPreview(
        at=picture.now,
        cluster=cluster,
        choice=choice,
        differences=changed,
        picture=picture,
        queue=compare_plans(plan_before, plan_after, picture.now),
        apart=len(after.apart),
        warning=before.warning or _not_in_effect(cluster),
        why_no_estimates=_why_no_estimates(jobs, before),
    )


def _order(picture: ClusterSnapshot, choice: PolicyChoice) -> QueueOrder:
    return queue_order(replace(picture, placement=choice.placement), choice.policy, dict(choice.settings))


def _plan(cluster: Cluster, picture: ClusterSnapshot, order: QueueOrder, choice: PolicyChoice) -> QueuePlan:
    if order.warning:  # the policy of the cluster cannot be used
        return QueuePlan(line=order.line, starts=0)
    rules = rules_factory(choice.policy, choice.settings)
    found = preview_estimates(cluster, replace(picture, placement=choice.placement), rules)
    likely = None if found is None else {job: estimate.p50 for job, estimate in found.items()}
    return QueuePlan(line=order.line, starts=order.starts, likely=likely)


def _not_in_effect(cluster: Cluster) -> str:
    if cluster.mode == ClusterMode.OBSERVE:
        return f"Acme only observes {cluster} and starts no jobs there, so neither order is in effect."
    return ""


def _why_no_estimates(jobs: int, before: QueueOrder) -> str:
    if before.warning:
        return "No start estimates, because the current policy starts no jobs."
    if jobs > MAX_ESTIMATED_JOBS:
        return (
            f"No start estimates: {jobs:,} jobs wait or run, and a preview simulates at most {MAX_ESTIMATED_JOBS:,}."
            " The order is complete."
        )
    return ""
