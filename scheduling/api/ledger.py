"""API of the ledger: the GPU-hours of a period by use."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.urls import path
from rest_framework.response import Response

from failures.models import permissions as failure_permissions
from jobs.api.logs import single_query_value
from jobs.core import parsing
from jobs.models import TokenScope, clock
from jobs.rest import query_params
from jobs.rest.endpoint import ApiEndpoint, reject_unknown_params
from jobs.rest.errors import InvalidRequestField
from jobs.rest.permissions import EndpointRule
from jobs.rest.shapes import (
    ResourceShape,
    datetime_field,
    fraction_field,
    integer_field,
    nested_field,
    nested_list_field,
    number_field,
    text_field,
)
from scheduling.ledger.buckets import Bucket
from scheduling.power.api.energy import ENERGY_FIELDS
from scheduling.queries import ledger_table

DEFAULT_LEDGER_PERIOD = timedelta(days=1)
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


class PeriodEndpoint(ApiEndpoint):
    """An endpoint with the parameters `from` and `to`, which are at most 31 days apart."""

    def period(self, default: timedelta) -> tuple[datetime, datetime]:
        """Return the requested period, which ends now at the latest."""
        until = min(self._time_param("to") or clock.now(), clock.now())
        since = self._time_param("from") or until - default
        if since >= until:
            raise InvalidRequestField("from", "is not before to")
        if until - since > MAX_LEDGER_PERIOD:
            raise InvalidRequestField("from", "is more than 31 days before to; request one month at a time")
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


urlpatterns = [path("ledger/", LedgerEndpoint.as_view())]
