"""The only code that changes how a cluster decides.

PolicyError
├── Moved     somebody changed it since it was looked at
└── Nothing   it is so already
"""

from __future__ import annotations

from django.db import transaction

from acmeweb import live
from jobs import journal
from jobs.journal import Author
from jobs.models import Cluster
from jobs.wishes import want_turn
from scheduling.choosing import Choice, Difference, checked, differences


class PolicyError(Exception):
    pass


class Moved(PolicyError):
    pass


class Nothing(PolicyError):
    pass


def of(cluster: Cluster) -> Choice:
    return Choice(policy=cluster.policy, placement=cluster.placement, settings=cluster.policy_settings)


@transaction.atomic
def choose(cluster: Cluster, after: Choice, *, before: Choice, author: Author, why: str) -> list[Difference]:
    """Its loop decides by the new choice from the next turn on; what runs stays. Raises BadSettings."""
    changed = differences(before, checked(after))
    if not changed:
        raise Nothing(f"{cluster} decides so already; nothing was changed.")
    expected = {"policy": before.policy, "placement": before.placement, "policy_settings": before.settings}
    columns = {"policy": after.policy, "placement": after.placement, "policy_settings": dict(after.settings)}
    if not Cluster.objects.filter(pk=cluster.pk, **expected).update(**columns):
        raise Moved(f"Somebody changed how {cluster} decides in the meantime; nothing was changed.")
    detail = {"changes": [[one.name, one.before, one.after] for one in changed]}
    states = {"from_state": before.policy, "to_state": after.policy}
    journal.of_cluster("policy.changed", author, cluster, why=why, detail=detail, **states).save()
    want_turn(cluster.pk)
    live.changed("queue")
    return changed
