"""All changes to the scheduling policy of a cluster."""

from __future__ import annotations

from django.db import transaction

from acmeweb.common import live
from acmeweb.common.errors import StateConflict
from jobs.actions import journal
from jobs.actions.journal import Author
from jobs.actions.wake import request_turn
from jobs.models import Cluster
from scheduling.core.policy_choice import PolicyChoice, PolicyDifference, differences
from scheduling.queries.policy_choices import check_for_cluster


@transaction.atomic
def set_policy_choice(
    cluster: Cluster, after: PolicyChoice, *, before: PolicyChoice, author: Author, why: str
) -> list[PolicyDifference]:
    """Change the policy. It takes effect in the next turn; running jobs are not affected. Raises
    InvalidField."""
    changed = differences(before, check_for_cluster(cluster, after))
    if not changed:
        raise StateConflict(f"{cluster} already has this policy. Nothing was changed.")
    expected = {"policy": before.policy, "placement": before.placement, "policy_settings": before.settings}
    columns = {"policy": after.policy, "placement": after.placement, "policy_settings": dict(after.settings)}
    if not Cluster.objects.filter(pk=cluster.pk, **expected).update(**columns):
        raise StateConflict(f"The policy of {cluster} was changed in the meantime. Nothing was changed.")
    detail = {"changes": [[difference.name, difference.before, difference.after] for difference in changed]}
    states = {"from_state": before.policy, "to_state": after.policy}
    journal.cluster_event("policy.changed", author, cluster, why=why, detail=detail, **states).save()
    request_turn(cluster.pk)
    live.publish_on_commit("queue")
    return changed
