"""Clusters, teams and the caller: read-only. How clusters are added and changed is in `scheduling.api.clusters`."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

from django.db.models import F, QuerySet, Sum
from rest_framework.response import Response

from jobs import clock, minutes
from jobs.api import shapes
from jobs.door import pages, query
from jobs.door.endpoint import Detail, Endpoint, Listing, found, refuse_unknown
from jobs.door.rights import Rule
from jobs.door.shapes import Field, Shape, moment, number, plain
from jobs.models import Cluster, Job, Mode, Quota, Scope, Team
from jobs.rights import Caller

BY_NAME = {"name": pages.Sort(column="name"), "id": pages.ID}


SEES_CONNECTION = ("jobs.operate_cluster", "jobs.add_cluster", "jobs.change_cluster")


def cluster_row(name: str, caller: Caller) -> Cluster:
    """As CLUSTER_DETAIL shows it to this caller."""
    row: Cluster = found(Cluster.objects.all(), "cluster", name=name)
    row.shows_connection = caller.may(*SEES_CONNECTION)  # type: ignore[attr-defined]
    return row


class ReadClusters(Listing):
    """List clusters."""

    tag = "Clusters and teams"
    what = "clusters"
    shape = shapes.CLUSTER
    filters = {"name": query.text("name"), "mode": query.choice("mode", Mode.values)}
    orderings = BY_NAME
    ordering = "name"
    rules = {"GET": Rule(scope=Scope.READ, says="List clusters", answer=shapes.CLUSTER, many=True)}

    def rows(self) -> QuerySet[Cluster]:
        return Cluster.objects.all()


class ReadCluster(Detail):
    """One cluster."""

    tag = "Clusters and teams"
    shape = shapes.CLUSTER_DETAIL
    rules = {"GET": Rule(scope=Scope.READ, says="One cluster", answer=shapes.CLUSTER_DETAIL, team=True)}

    def row(self, name: str) -> Cluster:
        return cluster_row(name, self.caller)


def _series(says: str) -> Field:
    return Field(schema={"type": "array", "items": {"type": ["number", "null"]}, "description": says})


MOST_HOURS, MOST_STEPS = 744, 400
COURSE = Shape(
    "Course",
    {
        "begin": moment("Of the first step."),
        "step_s": number("How long a step is; the series have one mean for each, null where nothing is known.", low=60),
        "gpus": _series("GPUs there were."),
        "held": _series("GPUs that jobs held."),
        "closed": _series("GPUs that nobody held, on nodes that took no work or did not answer."),
        "busy": _series("Percent of the GPUs' time; of those that were measured."),
        "running": _series("Jobs that ran."),
        "waiting": _series("Jobs that waited."),
        "wanted": _series("GPUs that those asked for."),
    },
)


class ClusterCourse(Endpoint):
    """What a cluster did lately."""

    tag = "Clusters and teams"
    rules = {
        "GET": Rule(
            scope=Scope.READ,
            says="What was held, busy and waiting over the last hours, as series of even steps",
            answer=COURSE,
            query={"hours": ({"type": "integer", "minimum": 1, "maximum": MOST_HOURS}, "Until now; else 24.")},
        )
    }

    def get(self, request: Any, name: str) -> Response:
        refuse_unknown(request, "hours")
        hours = query.whole(self.query, "hours", 1, MOST_HOURS) or 24
        cluster = found(Cluster.objects.all(), "cluster", name=name)
        course = minutes.course(cluster, timedelta(hours=hours), MOST_STEPS, clock.now())
        return Response({"begin": plain(course.begin), "step_s": course.step_s, **course.values})


class Teams(Listing):
    """List your teams."""

    tag = "Clusters and teams"
    what = "teams"
    shape = shapes.TEAM
    filters = {"name": query.text("name")}
    orderings = BY_NAME
    ordering = "name"
    rules = {
        "GET": Rule(scope=Scope.READ, says="List your teams with members and quotas", answer=shapes.TEAM, many=True)
    }

    def rows(self) -> QuerySet[Team]:
        return self.caller.teams()


class OneTeam(Detail):
    """One of your teams."""

    tag = "Clusters and teams"
    shape = shapes.TEAM
    rules = {"GET": Rule(scope=Scope.READ, says="One of your teams", answer=shapes.TEAM, team=True)}

    def row(self, name: str) -> Team:
        return found(shapes.TEAM.load(self.caller.teams(), shapes.TEAM.fields), "team", name=name)


class Quotas(Listing):
    """Quotas of your teams."""

    tag = "Clusters and teams"
    what = "quotas"
    shape = shapes.QUOTA_USED
    filters = {
        "team": query.text("team__name"),
        "cluster": query.text("cluster__name"),
        "kind": query.text("kind"),
        "gpus": query.number("gpus"),
    }
    orderings = {
        "id": pages.ID,
        "team": pages.Sort(column="team__name"),
        "cluster": pages.Sort(column="cluster__name"),
        "gpus": pages.Sort(column="gpus", kind=int),
    }
    ordering = "cluster,team"
    rules = {
        "GET": Rule(
            scope=Scope.READ, says="The quotas of your teams, and what is left", answer=shapes.QUOTA_USED, many=True
        )
    }

    def rows(self) -> QuerySet[Quota]:
        return Quota.objects.filter(team__in=self.caller.teams())

    def complete(self, rows: list[Any], names: list[str]) -> None:
        if {"held", "left"}.intersection(names):
            with_held(rows)


def with_held(quotas: list[Any]) -> None:
    """One query: the GPUs of jobs that may not be preempted, by team, cluster and kind."""
    held: Counter[tuple[int, int, str]] = Counter()
    live = Job.objects.live().filter(preemptible=False, team__in=[one.team_id for one in quotas]).order_by()
    for team, cluster, kind, gpus in live.values_list("team", "cluster", "kind").annotate(
        gpus=Sum(F("nodes") * F("gpus_per_node"))
    ):
        held[team, cluster, kind] += gpus
        held[team, cluster, ""] += gpus
    for one in quotas:
        one.held = held[one.team_id, one.cluster_id, one.kind]
        one.left = one.gpus - one.held


class Me(Endpoint):
    """Who the credentials stand for."""

    tag = "Clusters and teams"
    rules = {"GET": Rule(scope=Scope.READ, says="Who you are here, and what you may do", answer=shapes.ME)}

    def get(self, request: Any) -> Response:
        refuse_unknown(request)
        caller = self.caller
        names = dict(Team.objects.filter(pk__in=caller.roles).values_list("pk", "name"))
        return Response(
            {
                "user": caller.user.get_username(),
                "scope": caller.scope.value,
                "token": caller.token.prefix if caller.token else None,
                "expires_at": plain(caller.token.expires_at) if caller.token else None,
                "superuser": caller.everywhere,
                "operates_clusters": caller.operates,
                "teams": [{"team": names[team], "role": role.value} for team, role in sorted(caller.roles.items())],
            }
        )
