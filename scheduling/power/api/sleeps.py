"""Sleeping nodes in the API: list the sleeps of a cluster, approve or decline proposals, wake nodes up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from django.db.models import Q, QuerySet
from django.urls import path
from rest_framework.response import Response

from acmeweb.common.errors import StateConflict
from jobs.actions.submissions import request_turn_after_commit
from jobs.api.clusters import find_cluster
from jobs.models import TokenScope, clock
from jobs.rest import query_params
from jobs.rest.endpoint import ActionEndpoint, ListEndpoint, find_or_404, lock_unchanged_row
from jobs.rest.permissions import EndpointRule, operator_rule
from jobs.rest.shapes import ResourceShape, attribute_path, datetime_field, integer_field, text_field
from scheduling.models import NodeSleep, NodeSleepState
from scheduling.power.actions import sleeps as sleep_actions

NODE_SLEEP = ResourceShape(
    "NodeSleep",
    {
        "id": integer_field(),
        "node": text_field(get=attribute_path("node.name"), needs=("node__name",)),
        "state": text_field(
            "observed and proposed: it would sleep; requested: it falls asleep; awake: it has woken up; failed: it did"
            " not wake up; withdrawn: it was needed before it slept.",
            choices=NodeSleepState.values,
        ),
        "why": text_field(),
        "created_at": datetime_field(),
        "requested_at": datetime_field(nullable=True),
        "requested_by": text_field(),
        "asleep_at": datetime_field(nullable=True),
        "wake_requested_at": datetime_field(nullable=True),
        "wake_why": text_field(),
        "closed_at": datetime_field("When it had booted, or the sleep ended otherwise.", nullable=True),
        "last_error": text_field("Why the cluster or the webhook did not accept the last change."),
    },
)
NOTHING_MORE = ResourceShape("SleepVerb", {})


def _find_sleep(cluster: str, number: int) -> NodeSleep:
    rows = NODE_SLEEP.load(NodeSleep.objects.all(), NODE_SLEEP.fields)
    row: NodeSleep = find_or_404(rows.filter(cluster__name=cluster), "sleep", pk=number)
    return row


class NodeSleepList(ListEndpoint):
    """List the sleeps of nodes."""

    tag = "Nodes"
    what = "sleeps"
    shape = NODE_SLEEP
    filters = {
        "state": query_params.choice_filter("state", NodeSleepState.values),
        "node": query_params.text_filter("node__name"),
        "open": query_params.boolean_filter("is_open"),
    }
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ,
            says="List the sleeps and the proposed sleeps of a cluster's nodes, newest first",
            answer=NODE_SLEEP,
            many=True,
            team=True,
        )
    }

    def rows(self, name: str) -> QuerySet[NodeSleep]:
        return NodeSleep.objects.filter(cluster=find_cluster(name)).alias(is_open=Q(closed_at=None))


def _verb_rule(says: str) -> EndpointRule:
    return operator_rule(says=says, body=NOTHING_MORE, answer=NODE_SLEEP)


class _SleepVerb(ActionEndpoint):
    tag = "Nodes"
    verb: ClassVar[str]
    act: ClassVar[Callable[..., None]]

    def work(self, name: str, number: int) -> Response:
        self.body({}, f"the verb {self.verb}")
        lock_unchanged_row(self.request, NODE_SLEEP, lambda: _find_sleep(name, number))
        sleep: Any = NodeSleep.objects.select_related("node", "cluster").get(pk=number)
        try:
            self.act(sleep, author=self.author, now=clock.now())
        except StateConflict as error:
            raise StateConflict(f"{error}.") from None
        request_turn_after_commit(sleep.cluster_id)
        return Response(NODE_SLEEP.show(_find_sleep(name, number)))


class ApproveSleep(_SleepVerb):
    """Approve a proposed sleep."""

    rules = {"POST": _verb_rule("Approve a proposed sleep: the node falls asleep, unless it is needed by now")}
    verb, act = "approve", staticmethod(sleep_actions.approve)


class DeclineSleep(_SleepVerb):
    """Decline a proposed sleep."""

    rules = {"POST": _verb_rule("Decline a proposed sleep. The node is not proposed again for 12 hours")}
    verb, act = "decline", staticmethod(sleep_actions.decline)


class WakeNode(_SleepVerb):
    """Wake a node up."""

    rules = {"POST": _verb_rule("Wake up a node that sleeps or falls asleep")}
    verb, act = "wake", staticmethod(sleep_actions.wake_by_user)


urlpatterns = [
    path("clusters/<slug:name>/sleeps/", NodeSleepList.as_view()),
    path("clusters/<slug:name>/sleeps/<int:number>/approve/", ApproveSleep.as_view()),
    path("clusters/<slug:name>/sleeps/<int:number>/decline/", DeclineSleep.as_view()),
    path("clusters/<slug:name>/sleeps/<int:number>/wake/", WakeNode.as_view()),
]
