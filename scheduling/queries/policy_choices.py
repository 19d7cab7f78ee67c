"""The policy that a cluster has, and whether it can use another one. Reads only."""

from __future__ import annotations

from acmeweb.common.errors import InvalidField
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
from scheduling.models import PowerBudget, RunTimeModel
from scheduling.queries.measured_speeds import has_known_speeds


def current_policy_choice(cluster: Cluster) -> PolicyChoice:
    return PolicyChoice(policy=cluster.policy, placement=cluster.placement, settings=cluster.policy_settings)


def check_for_cluster(cluster: Cluster, choice: PolicyChoice) -> PolicyChoice:
    """Return the choice if this cluster can use it and has the history it needs. Raises InvalidField."""
    check_choice(choice)
    if choice.placement in PLACEMENTS_WITHOUT_POWER and PowerBudget.objects.filter(cluster=cluster).exists():
        raise InvalidField(
            "placement", f"{choice.placement} does not support power budgets, and {cluster} has one. Remove it first."
        )
    if not RunTimeModel.objects.usable(cluster).exists():
        refuse_missing_run_times(choice, str(cluster))
    if weighs_service(choice) and not has_known_speeds(cluster):
        raise missing_speeds(choice, str(cluster))
    return choice


def checked_differences(cluster: Cluster, after: PolicyChoice) -> list[PolicyDifference]:
    """Return what the choice would change on the cluster. Raises InvalidField if it cannot be chosen."""
    return differences(current_policy_choice(cluster), check_for_cluster(cluster, after))
