"""API of the usage of a team: GPU-hours, quota and decayed usage per day, as on the page Team usage."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.urls import path
from rest_framework.response import Response

from jobs.api.logs import single_query_value
from jobs.models import Cluster, Team, TokenScope, clock
from jobs.rest.endpoint import find_or_404, reject_unknown_params
from jobs.rest.errors import InvalidRequestField
from jobs.rest.permissions import EndpointRule
from jobs.rest.shapes import (
    ResourceShape,
    datetime_field,
    integer_field,
    json_value,
    nested_list_field,
    number_field,
    object_field,
    text_field,
)
from scheduling.api.ledger import DATE_TIME_SCHEMA, PeriodEndpoint
from scheduling.queries.team_usage import TeamUsage, UsageDay, team_quota, team_usage

DEFAULT_USAGE_PERIOD = timedelta(days=7)

USAGE_DAY_SHAPE = ResourceShape(
    "TeamUsageDay",
    {
        "start": datetime_field("Start of the day (UTC), or of the period."),
        "end": datetime_field("End of the day, or of the period."),
        "gpu_hours": object_field("Allocated GPU-hours by kind of job, as in the ledger."),
        "total_gpu_hours": number_field("Sum over all kinds."),
        "quota_gpu_hours": number_field("Today's quota times the hours of this day; null without one.", nullable=True),
        "decayed_usage_gpu_hours": number_field("Usage at the end, halved every half-life, for the policy fair."),
        "fair_share_gpu_hours": number_field("Mean decayed usage of the teams that have used the cluster, at the end."),
    },
)
TEAM_USAGE_SHAPE = ResourceShape(
    "TeamUsage",
    {
        "team": text_field(),
        "cluster": text_field(),
        "from": datetime_field(),
        "to": datetime_field(),
        "quota_gpus": integer_field("Today's quota of the team; null if it has none.", nullable=True, low=0),
        "half_life_hours": number_field("After this time, usage counts half."),
        "gpu_hours": number_field("Allocated GPU-hours of the period."),
        "days": nested_list_field(USAGE_DAY_SHAPE, "Oldest first. The first and the last day may be partial."),
    },
)


class TeamUsageEndpoint(PeriodEndpoint):
    """The usage of a team on a cluster, by day."""

    tag = "Clusters and teams"
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ,
            says="The GPU-hours, quota and decayed usage of one of your teams by day",
            answer=TEAM_USAGE_SHAPE,
            team=True,
            query={
                "cluster": ({"type": "string"}, "Name of the cluster. May be omitted if there is only one."),
                "from": (DATE_TIME_SCHEMA, "Default: seven days before `to`. At most 31 days before `to`."),
                "to": (DATE_TIME_SCHEMA, "Default: now."),
            },
        )
    }

    def get(self, request: Any, name: str) -> Response:
        reject_unknown_params(request, "cluster", "from", "to")
        team: Team = find_or_404(self.caller.teams(), "team", name=name)
        cluster = self._cluster()
        since, until = self.period(DEFAULT_USAGE_PERIOD)
        usage = team_usage(cluster, team, since, until, clock.now())
        return Response(
            {
                "team": team.name,
                "cluster": cluster.name,
                "from": json_value(since),
                "to": json_value(until),
                "quota_gpus": team_quota(cluster, team.name),
                "half_life_hours": cluster.usage_half_life_hours,
                **_usage_document(usage),
            }
        )

    def _cluster(self) -> Cluster:
        name = single_query_value(self.request, "cluster")
        if name is not None:
            cluster = Cluster.objects.filter(name=name).first()
            if cluster is None:
                raise InvalidRequestField("cluster", f"there is no cluster {name[:40]!r}")
            return cluster
        clusters = list(Cluster.objects.order_by("name")[:2])
        if len(clusters) != 1:
            raise InvalidRequestField("cluster", "is required, because there is not exactly one cluster")
        return clusters[0]


def _usage_document(usage: TeamUsage) -> dict[str, Any]:
    return {"gpu_hours": usage.total, "days": [_day_document(day) for day in usage.days]}


def _day_document(day: UsageDay) -> dict[str, Any]:
    return {
        "start": json_value(day.start),
        "end": json_value(day.end),
        "gpu_hours": dict(day.gpu_hours),
        "total_gpu_hours": day.total,
        "quota_gpu_hours": day.quota_gpu_hours,
        "decayed_usage_gpu_hours": day.usage,
        "fair_share_gpu_hours": day.fair_share,
    }


urlpatterns = [path("teams/<slug:name>/usage/", TeamUsageEndpoint.as_view())]
