"""All changes to the scheduling policy of a cluster.

PolicyError
├── PolicyChangedConcurrently   the policy was changed since it was shown
└── PolicyUnchanged             the policy already has these settings
"""

from __future__ import annotations

from django.db import transaction

from acmeweb.common import live
from jobs.actions import journal
from jobs.actions.journal import Author
from jobs.actions.wake import request_turn
from jobs.models import Cluster
from scheduling.core.policy_choice import (
    PolicyChoice,
    PolicyDifference,
    check_choice,
    differences,
    missing_speeds,
    refuse_missing_run_times,
    weighs_service,
)
from scheduling.engine.placements import PLACEMENTS_WITHOUT_POWER
from scheduling.engine.settings import InvalidPolicySettings
from scheduling.models import PowerBudget, RunTimeModel
from scheduling.models.measured_speeds import has_known_speeds


class PolicyError(Exception):
    pass


class PolicyChangedConcurrently(PolicyError):
    pass


class PolicyUnchanged(PolicyError):
    pass


def current_policy_choice(cluster: Cluster) -> PolicyChoice:
    return PolicyChoice(policy=cluster.policy, placement=cluster.placement, settings=cluster.policy_settings)


def check_for_cluster(cluster: Cluster, choice: PolicyChoice) -> PolicyChoice:
    """Return the choice if this cluster can use it and has the history it needs. Raises InvalidPolicySettings."""
    check_choice(choice)
    if choice.placement in PLACEMENTS_WITHOUT_POWER and PowerBudget.objects.filter(cluster=cluster).exists():
        raise InvalidPolicySettings(
            f"placement: {choice.placement} does not support power budgets, and {cluster} has one. Remove it first."
        )
    if not RunTimeModel.objects.usable(cluster).exists():
        refuse_missing_run_times(choice, str(cluster))
    if weighs_service(choice) and not has_known_speeds(cluster):
        raise missing_speeds(choice, str(cluster))
    return choice


def checked_differences(cluster: Cluster, after: PolicyChoice) -> list[PolicyDifference]:
    """Return what the choice would change on the cluster. Raises InvalidPolicySettings if it cannot be chosen."""
    return differences(current_policy_choice(cluster), check_for_cluster(cluster, after))


@transaction.atomic
def set_policy_choice(
    cluster: Cluster, after: PolicyChoice, *, before: PolicyChoice, author: Author, why: str
) -> list[PolicyDifference]:
    """Change the policy. It takes effect in the next turn; running jobs are not affected. Raises
    InvalidPolicySettings."""
    changed = differences(before, check_for_cluster(cluster, after))
    if not changed:
        raise PolicyUnchanged(f"{cluster} already has this policy. Nothing was changed.")
    expected = {"policy": before.policy, "placement": before.placement, "policy_settings": before.settings}
    columns = {"policy": after.policy, "placement": after.placement, "policy_settings": dict(after.settings)}
    if not Cluster.objects.filter(pk=cluster.pk, **expected).update(**columns):
        raise PolicyChangedConcurrently(f"The policy of {cluster} was changed in the meantime. Nothing was changed.")
    detail = {"changes": [[difference.name, difference.before, difference.after] for difference in changed]}
    states = {"from_state": before.policy, "to_state": after.policy}
    journal.cluster_event("policy.changed", author, cluster, why=why, detail=detail, **states).save()
    request_turn(cluster.pk)
    live.publish_on_commit("queue")
    return changed
