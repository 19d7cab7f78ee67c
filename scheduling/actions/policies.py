"""The only code that changes how a cluster decides.

PolicyError
├── Moved     somebody changed it since it was looked at
└── Nothing   it is so already
"""

from __future__ import annotations

from django.db import transaction

from acmeweb.common import live
from jobs.actions import journal
from jobs.actions.journal import Author
from jobs.actions.wake import request_turn
from jobs.models import Cluster
from scheduling.core.policy_choice import PolicyChoice, PolicyDifference, check_choice, differences


class PolicyError(Exception):
    pass


class PolicyChangedConcurrently(PolicyError):
    pass


class PolicyUnchanged(PolicyError):
    pass


def current_policy_choice(cluster: Cluster) -> PolicyChoice:
    return PolicyChoice(policy=cluster.policy, placement=cluster.placement, settings=cluster.policy_settings)


@transaction.atomic
def set_policy_choice(
    cluster: Cluster, after: PolicyChoice, *, before: PolicyChoice, author: Author, why: str
) -> list[PolicyDifference]:
    """Its loop decides by the new choice from the next turn on; what runs stays. Raises BadSettings."""
    changed = differences(before, check_choice(after))
    if not changed:
        raise PolicyUnchanged(f"{cluster} decides so already; nothing was changed.")
    expected = {"policy": before.policy, "placement": before.placement, "policy_settings": before.settings}
    columns = {"policy": after.policy, "placement": after.placement, "policy_settings": dict(after.settings)}
    if not Cluster.objects.filter(pk=cluster.pk, **expected).update(**columns):
        raise PolicyChangedConcurrently(f"Somebody changed how {cluster} decides in the meantime; nothing was changed.")
    detail = {"changes": [[one.name, one.before, one.after] for one in changed]}
    states = {"from_state": before.policy, "to_state": after.policy}
    journal.cluster_event("policy.changed", author, cluster, why=why, detail=detail, **states).save()
    request_turn(cluster.pk)
    live.publish_on_commit("queue")
    return changed
