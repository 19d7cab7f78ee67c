"""Clusters, teams and the caller: read-only. How clusters are added and changed is in `scheduling.api.clusters`."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

from django.db.models import F, QuerySet, Sum
from rest_framework.response import Response

from jobs.api import shapes
from jobs.models import Cluster, ClusterMode, Job, Quota, Team, TokenScope, clock
from jobs.models.permissions import Caller
from jobs.queries import cluster_minutes
from jobs.rest import pagination, query_params
from jobs.rest.endpoint import ApiEndpoint, DetailEndpoint, ListEndpoint, find_or_404, reject_unknown_params
from jobs.rest.permissions import EndpointRule
from jobs.rest.shapes import ResourceShape, ShapeField, datetime_field, integer_field, json_value

NAME_ORDERINGS = {"name": pagination.SortColumn(column="name"), "id": pagination.SORT_BY_ID}


CONNECTION_PERMISSIONS = ("jobs.operate_cluster", "jobs.add_cluster", "jobs.change_cluster")


def visible_cluster(name: str, caller: Caller) -> Cluster:
    """As CLUSTER_DETAIL shows it to this caller."""
    row: Cluster = find_or_404(Cluster.objects.all(), "cluster", name=name)
    row.shows_connection = caller.may(*CONNECTION_PERMISSIONS)  # type: ignore[attr-defined]
    return row


class ReadClusters(ListEndpoint):
    """List clusters."""

    tag = "Clusters and teams"
    what = "clusters"
    shape = shapes.CLUSTER
    filters = {"name": query_params.text_filter("name"), "mode": query_params.choice_filter("mode", ClusterMode.values)}
    orderings = NAME_ORDERINGS
    ordering = "name"
    rules = {"GET": EndpointRule(scope=TokenScope.READ, says="List clusters", answer=shapes.CLUSTER, many=True)}

    def rows(self) -> QuerySet[Cluster]:
        return Cluster.objects.all()


class ReadCluster(DetailEndpoint):
    """One cluster."""

    tag = "Clusters and teams"
    shape = shapes.CLUSTER_DETAIL
    rules = {"GET": EndpointRule(scope=TokenScope.READ, says="One cluster", answer=shapes.CLUSTER_DETAIL, team=True)}

    def row(self, name: str) -> Cluster:
        return visible_cluster(name, self.caller)


def _series_field(says: str) -> ShapeField:
    return ShapeField(schema={"type": "array", "items": {"type": ["number", "null"]}, "description": says})


MAX_HOURS, MAX_STEPS = 744, 400
CLUSTER_SERIES_SHAPE = ResourceShape(
    "Course",
    {
        "begin": datetime_field("Of the first step."),
        "step_s": integer_field(
            "How long a step is; the series have one mean for each, null where nothing is known.", low=60
        ),
        "gpus": _series_field("GPUs there were."),
        "held": _series_field("GPUs that jobs held."),
        "closed": _series_field("GPUs that nobody held, on nodes that took no work or did not answer."),
        "busy": _series_field("Percent of the GPUs' time; of those that were measured."),
        "running": _series_field("Jobs that ran."),
        "waiting": _series_field("Jobs that waited."),
        "wanted": _series_field("GPUs that those asked for."),
    },
)


class ClusterCourse(ApiEndpoint):
    """What a cluster did lately."""

    tag = "Clusters and teams"
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ,
            says="What was held, busy and waiting over the last hours, as series of even steps",
            answer=CLUSTER_SERIES_SHAPE,
            query={"hours": ({"type": "integer", "minimum": 1, "maximum": MAX_HOURS}, "Until now; else 24.")},
        )
    }

    def get(self, request: Any, name: str) -> Response:
        reject_unknown_params(request, "hours")
        hours = query_params.integer_param(self.query, "hours", 1, MAX_HOURS) or 24
        cluster = find_or_404(Cluster.objects.all(), "cluster", name=name)
        course = cluster_minutes.cluster_usage_series(cluster, timedelta(hours=hours), MAX_STEPS, clock.now())
        return Response({"begin": json_value(course.begin), "step_s": course.step_s, **course.values})


class Teams(ListEndpoint):
    """List your teams."""

    tag = "Clusters and teams"
    what = "teams"
    shape = shapes.TEAM
    filters = {"name": query_params.text_filter("name")}
    orderings = NAME_ORDERINGS
    ordering = "name"
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ, says="List your teams with members and quotas", answer=shapes.TEAM, many=True
        )
    }

    def rows(self) -> QuerySet[Team]:
        return self.caller.teams()


class OneTeam(DetailEndpoint):
    """One of your teams."""

    tag = "Clusters and teams"
    shape = shapes.TEAM
    rules = {"GET": EndpointRule(scope=TokenScope.READ, says="One of your teams", answer=shapes.TEAM, team=True)}

    def row(self, name: str) -> Team:
        return find_or_404(shapes.TEAM.load(self.caller.teams(), shapes.TEAM.fields), "team", name=name)


class Quotas(ListEndpoint):
    """Quotas of your teams."""

    tag = "Clusters and teams"
    what = "quotas"
    shape = shapes.QUOTA_USAGE
    filters = {
        "team": query_params.text_filter("team__name"),
        "cluster": query_params.text_filter("cluster__name"),
        "kind": query_params.text_filter("kind"),
        "gpus": query_params.integer_filter("gpus"),
    }
    orderings = {
        "id": pagination.SORT_BY_ID,
        "team": pagination.SortColumn(column="team__name"),
        "cluster": pagination.SortColumn(column="cluster__name"),
        "gpus": pagination.SortColumn(column="gpus", kind=int),
    }
    ordering = "cluster,team"
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ,
            says="The quotas of your teams, and what is left",
            answer=shapes.QUOTA_USAGE,
            many=True,
        )
    }

    def rows(self) -> QuerySet[Quota]:
        return Quota.objects.filter(team__in=self.caller.teams())

    def complete(self, rows: list[Any], names: list[str]) -> None:
        if {"held", "left"}.intersection(names):
            add_used_gpus(rows)


def add_used_gpus(quotas: list[Any]) -> None:
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


class Me(ApiEndpoint):
    """Who the credentials stand for."""

    tag = "Clusters and teams"
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ, says="Who you are here, and what you may do", answer=shapes.CALLER_SHAPE
        )
    }

    def get(self, request: Any) -> Response:
        reject_unknown_params(request)
        caller = self.caller
        names = dict(Team.objects.filter(pk__in=caller.roles).values_list("pk", "name"))
        return Response(
            {
                "user": caller.user.get_username(),
                "scope": caller.scope.value,
                "token": caller.token.prefix if caller.token else None,
                "expires_at": json_value(caller.token.expires_at) if caller.token else None,
                "superuser": caller.is_site_admin,
                "operates_clusters": caller.may_operate_clusters,
                "teams": [{"team": names[team], "role": role.value} for team, role in sorted(caller.roles.items())],
            }
        )
