"""API of the ledger: the GPU-hours of a period by use, and the usage of a team by day."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.urls import path
from rest_framework.response import Response

from acmeweb.common.errors import InvalidField
from failures.models import permissions as failure_permissions
from jobs.api.logs import single_query_value
from jobs.core import parsing
from jobs.models import Cluster, Team, TokenScope, clock
from jobs.rest import query_params
from jobs.rest.endpoint import ApiEndpoint, find_or_404, reject_unknown_params
from jobs.rest.permissions import EndpointRule
from jobs.rest.shapes import (
    ResourceShape,
    datetime_field,
    fraction_field,
    integer_field,
    json_value,
    nested_field,
    nested_list_field,
    number_field,
    object_field,
    text_field,
)
from scheduling.ledger.reads import table as ledger_table
from scheduling.ledger.reads.team_usage import TeamUsage, UsageDay, team_quota, team_usage
from scheduling.ledger.rules.buckets import Bucket
from scheduling.power.api.energy import ENERGY_FIELDS

DEFAULT_LEDGER_PERIOD = timedelta(days=1)
DEFAULT_USAGE_PERIOD = timedelta(days=7)
MAX_LEDGER_PERIOD = timedelta(days=31)
DATE_TIME_SCHEMA = {"type": "string", "format": "date-time"}

LEDGER_HOURS_SHAPE = ResourceShape("LedgerHours", {bucket.value: number_field() for bucket in Bucket})
LEDGER_ROW_SHAPE = ResourceShape(
    "LedgerRow",
    {
        "name": text_field("Empty for unallocated GPUs and for teams that are not yours."),
        "gpu_hours": nested_field(LEDGER_HOURS_SHAPE),
        "goodput": fraction_field(
            "Productive share of all hours (day, cluster) or of allocated hours (team, kind).", nullable=True
        ),
        "cost": number_field("Clusters with a price only.", nullable=True),
        **ENERGY_FIELDS,
    },
)
LEDGER_LOSS_SHAPE = ResourceShape(
    "LedgerLoss",
    {
        "cause": text_field("Empty if not diagnosed yet."),
        "gpu_hours": number_field(),
        "kwh": number_field("Energy of this time, as a share of the energy of its team and kind.", nullable=True),
    },
)
LEDGER_CLOSED_SHAPE = ResourceShape(
    "LedgerClosed", {"reason": text_field("Empty if no reason was given."), "gpu_hours": number_field()}
)
MTTF_FIELDS = {
    "failures": integer_field(low=0),
    "gpu_hours_held": number_field(),
    "mean": number_field("Allocated GPU-hours per failure.", nullable=True),
    "low": number_field("Lower limit of the exact 90% confidence interval."),
    "high": number_field("Upper limit; null if there were no failures.", nullable=True),
}
MTTF_SHAPE = ResourceShape("Mttf", {"cause": text_field("Empty for all causes."), **MTTF_FIELDS})
MTTF_OF_MODEL_SHAPE = ResourceShape("MttfOfModel", {"model": text_field("GPU model. Empty if unknown."), **MTTF_FIELDS})
MTTF_OF_NODE_SHAPE = ResourceShape("MttfOfNode", {"node": text_field("Cluster and name of the node."), **MTTF_FIELDS})
LEDGER_SHAPE = ResourceShape(
    "Ledger",
    {
        "from": datetime_field(),
        "to": datetime_field(),
        "by": text_field(choices=ledger_table.GROUPINGS),
        "version": text_field("Version of the rules that assign time to buckets."),
        "capacity_gpu_hours": number_field("Sum of all buckets."),
        "gpu_hours": nested_field(LEDGER_HOURS_SHAPE),
        "goodput": fraction_field(
            "Productive share of all GPU-hours. An upper bound, including unreported stalls.",
            nullable=True,
        ),
        "ettr": fraction_field(
            "Productive share of the wall-clock time of all runs, including waits between attempts. An upper bound.",
            nullable=True,
        ),
        "cost": number_field("Clusters with a price only, in the configured currency.", nullable=True),
        **ENERGY_FIELDS,
        "outdated_s": number_field(
            "Seconds of the period whose figures are about to change, because rows changed. Usually 0."
        ),
        "left_out_s": number_field(
            "Seconds of the period that are not computed yet and not included, as in the minutes after an upgrade of a"
            " large installation. Usually 0."
        ),
        "rows": nested_list_field(LEDGER_ROW_SHAPE),
        "lost": nested_list_field(
            LEDGER_LOSS_SHAPE, "GPU-hours lost to failures and preemption by cause, the largest first."
        ),
        "closed": nested_list_field(
            LEDGER_CLOSED_SHAPE, "GPU-hours of nodes that were drained or down by reason, the largest first."
        ),
        "mttf": nested_field(MTTF_SHAPE),
        "mttf_by_cause": nested_list_field(MTTF_SHAPE),
        "mttf_by_model": nested_list_field(MTTF_OF_MODEL_SHAPE, "Counts hardware failures only."),
        "mttf_by_node": nested_list_field(
            MTTF_OF_NODE_SHAPE,
            f"At most {ledger_table.MAX_NODES_LISTED} nodes with failures, the least reliable first.",
        ),
    },
)
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


class PeriodEndpoint(ApiEndpoint):
    """An endpoint with the parameters `from` and `to`, which are at most 31 days apart."""

    def period(self, default: timedelta) -> tuple[datetime, datetime]:
        """Return the requested period, which ends now at the latest."""
        until = min(self._time_param("to") or clock.now(), clock.now())
        since = self._time_param("from") or until - default
        if since >= until:
            raise InvalidField("from", "is not before to")
        if until - since > MAX_LEDGER_PERIOD:
            raise InvalidField("from", "is more than 31 days before to; request one month at a time")
        return since, until

    def _time_param(self, name: str) -> datetime | None:
        value = single_query_value(self.request, name)
        moment: datetime | None = None if value is None else query_params.read_datetime(name, value)
        return moment


class LedgerEndpoint(PeriodEndpoint):
    """The GPU-hours of a period by use."""

    tag = "Clusters and teams"
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ,
            says="The GPU-hours of a period by use. Each GPU-hour is in exactly one bucket",
            answer=LEDGER_SHAPE,
            query={
                "from": (DATE_TIME_SCHEMA, "Default: one day before `to`. At most 31 days before `to`."),
                "to": (DATE_TIME_SCHEMA, "Default: now."),
                "by": ({"type": "string", "enum": list(ledger_table.GROUPINGS)}, "Grouping of the rows. Default: day."),
            },
        )
    }

    def get(self, request: Any) -> Response:
        reject_unknown_params(request, "from", "to", "by")
        value = single_query_value(request, "by")
        by = ledger_table.GROUPINGS[0] if value is None else parsing.choice_reader(ledger_table.GROUPINGS)("by", value)
        since, until = self.period(DEFAULT_LEDGER_PERIOD)
        table = ledger_table.table(by, since, until, failure_permissions.counted_team_ids(self.caller))
        return Response(ledger_table.ledger_document(table, by, since, until))


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
                raise InvalidField("cluster", f"there is no cluster {name[:40]!r}")
            return cluster
        clusters = list(Cluster.objects.order_by("name")[:2])
        if len(clusters) != 1:
            raise InvalidField("cluster", "is required, because there is not exactly one cluster")
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


urlpatterns = [
    path("ledger/", LedgerEndpoint.as_view()),
    path("teams/<slug:name>/usage/", TeamUsageEndpoint.as_view()),
]
