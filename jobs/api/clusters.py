"""Clusters, teams, quotas and the caller, read-only. `scheduling.api.clusters` adds and changes clusters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from datetime import timedelta
from typing import Any

from django.db.models import QuerySet, Sum
from rest_framework.response import Response

from jobs.api import shapes
from jobs.core.gpu_shares import charged_milli, gpu_number
from jobs.models import Allocation, Cluster, ClusterMode, Job, Quota, Team, TokenScope, clock
from jobs.models.job import CHARGED_MILLI, HELD_MILLI
from jobs.models.permissions import Caller
from jobs.queries import cluster_minutes, keyset
from jobs.rest import query_params
from jobs.rest.endpoint import ApiEndpoint, DetailEndpoint, ListEndpoint, find_or_404, reject_unknown_params
from jobs.rest.permissions import EndpointRule
from jobs.rest.shapes import ResourceShape, ShapeField, datetime_field, integer_field, json_value

NAME_ORDERINGS = {"name": keyset.SortColumn(column="name"), "id": keyset.SORT_BY_ID}


CONNECTION_PERMISSIONS = ("jobs.operate_cluster", "jobs.add_cluster", "jobs.change_cluster")


def find_cluster(name: str) -> Cluster:
    row: Cluster = find_or_404(Cluster.objects.all(), "cluster", name=name)
    return row


def visible_cluster(name: str, caller: Caller) -> Cluster:
    """The cluster, prepared for CLUSTER_DETAIL: connection settings are shown only with a cluster permission."""
    row = find_cluster(name)
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
    """Get one cluster."""

    tag = "Clusters and teams"
    shape = shapes.CLUSTER_DETAIL
    rules = {
        "GET": EndpointRule(scope=TokenScope.READ, says="Get one cluster", answer=shapes.CLUSTER_DETAIL, team=True)
    }

    def row(self, name: str) -> Cluster:
        return visible_cluster(name, self.caller)


def _series_field(says: str) -> ShapeField:
    return ShapeField(schema={"type": "array", "items": {"type": ["number", "null"]}, "description": says})


MAX_HOURS, MAX_STEPS = 744, 400
CLUSTER_SERIES_SHAPE = ResourceShape(
    "ClusterUsage",
    {
        "begin": datetime_field("Start of the first step."),
        "step_s": integer_field(
            "Length of a step in seconds. Each series has one mean value per step, or null without data.", low=60
        ),
        "gpus": _series_field("GPUs of the cluster."),
        "allocated": _series_field("GPUs allocated to jobs."),
        "closed": _series_field("Free GPUs on nodes that are closed or not responding."),
        "utilization": _series_field("GPU utilization in percent, of GPUs with telemetry."),
        "running": _series_field("Running jobs."),
        "waiting": _series_field("Waiting jobs."),
        "requested": _series_field("GPUs requested by waiting jobs."),
    },
)


class ClusterUsageHistory(ApiEndpoint):
    """Usage of a cluster over time."""

    tag = "Clusters and teams"
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ,
            says="Get allocated, utilized and requested GPUs of the last hours as time series",
            answer=CLUSTER_SERIES_SHAPE,
            query={"hours": ({"type": "integer", "minimum": 1, "maximum": MAX_HOURS}, "Hours until now. Default: 24.")},
        )
    }

    def get(self, request: Any, name: str) -> Response:
        reject_unknown_params(request, "hours")
        hours = query_params.integer_param(self.query, "hours", 1, MAX_HOURS) or 24
        series = cluster_minutes.cluster_usage_series(
            find_cluster(name), timedelta(hours=hours), MAX_STEPS, clock.now()
        )
        return Response({"begin": json_value(series.begin), "step_s": series.step_s, **series.values})


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
    """Get one of your teams."""

    tag = "Clusters and teams"
    shape = shapes.TEAM
    rules = {"GET": EndpointRule(scope=TokenScope.READ, says="Get one of your teams", answer=shapes.TEAM, team=True)}

    def row(self, name: str) -> Team:
        return find_or_404(shapes.TEAM.load(self.caller.teams(), shapes.TEAM.fields), "team", name=name)


class Quotas(ListEndpoint):
    """List quotas of your teams."""

    tag = "Clusters and teams"
    what = "quotas"
    shape = shapes.QUOTA_USAGE
    filters = {
        "team": query_params.text_filter("team__name"),
        "cluster": query_params.text_filter("cluster__name"),
        "kind": query_params.text_filter("kind"),
        "gpu_model": query_params.text_filter("gpu_model"),
        "gpus": query_params.integer_filter("gpus"),
    }
    orderings = {
        "id": keyset.SORT_BY_ID,
        "team": keyset.SortColumn(column="team__name"),
        "cluster": keyset.SortColumn(column="cluster__name"),
        "gpus": keyset.SortColumn(column="gpus", kind=int),
    }
    ordering = "cluster,team"
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ,
            says="List quotas of your teams with their use",
            answer=shapes.QUOTA_USAGE,
            many=True,
        )
    }

    def rows(self) -> QuerySet[Quota]:
        return Quota.objects.filter(team__in=self.caller.teams())

    def attach_computed_values(self, rows: list[Any], names: list[str]) -> None:
        if {"used", "remaining"}.intersection(names):
            add_used_gpus(rows)


def add_used_gpus(quotas: list[Any]) -> None:
    """Set `used` and `remaining` on the quotas with one query, and a second one if any is for a GPU model. Only jobs
    that are not preemptible count."""
    held: Counter[tuple[int, int, str, str]] = Counter()
    live = Job.objects.live().filter(preemptible=False, team__in=[quota.team_id for quota in quotas]).order_by()
    columns = live.values_list("team", "cluster", "kind").annotate(milli=Sum(CHARGED_MILLI))
    rows = [(team, cluster, kind, "", milli) for team, cluster, kind, milli in columns]
    if models := {quota.gpu_model for quota in quotas} - {""}:
        rows += _held_of_models(live, models)
    for team, cluster, kind, model, milli in rows:
        held[team, cluster, kind, model] += milli
        held[team, cluster, "", model] += milli  # quotas without a kind cover all kinds
    for quota in quotas:
        milli = held[quota.team_id, quota.cluster_id, quota.kind, quota.gpu_model]
        quota.used, quota.remaining = gpu_number(milli), gpu_number(charged_milli(quota.gpus, -milli))


def _held_of_models(jobs: QuerySet[Job], models: Collection[str]) -> list[tuple[int, int, str, str, int]]:
    """Return team, cluster, kind, GPU model and thousandths of GPUs that these jobs hold."""
    rows = Allocation.objects.live().filter(gpu__isnull=False, node__gpu_model__in=models, attempt__job__in=jobs)
    owner = ("attempt__job__team", "attempt__job__cluster", "attempt__job__kind", "node__gpu_model")
    return list(rows.order_by().values_list(*owner).annotate(milli=Sum(HELD_MILLI)))


class Me(ApiEndpoint):
    """The authenticated user."""

    tag = "Clusters and teams"
    rules = {
        "GET": EndpointRule(scope=TokenScope.READ, says="Get your user, scope and roles", answer=shapes.CALLER_SHAPE)
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
