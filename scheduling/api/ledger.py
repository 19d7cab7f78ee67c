"""The ledger through the programs' door."""

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
from scheduling.queries import ledger_table

DEFAULT_LEDGER_PERIOD = timedelta(days=1)
MAX_LEDGER_PERIOD = timedelta(days=31)
DATE_TIME_SCHEMA = {"type": "string", "format": "date-time"}

LEDGER_HOURS_SHAPE = ResourceShape("LedgerHours", {bucket.value: number_field() for bucket in Bucket})
LEDGER_ROW_SHAPE = ResourceShape(
    "LedgerRow",
    {
        "name": text_field("Empty: held by nobody, or by teams that are not yours."),
        "gpu_hours": nested_field(LEDGER_HOURS_SHAPE),
        "goodput": fraction_field(
            "Productive, of all hours (day, cluster) or of those held (team, kind).", nullable=True
        ),
        "cost": number_field("Of the clusters that have a price.", nullable=True),
    },
)
LEDGER_LOSS_SHAPE = ResourceShape(
    "LedgerLoss", {"cause": text_field("Empty: not known yet."), "gpu_hours": number_field()}
)
MTTF_FIELDS = {
    "failures": integer_field(low=0),
    "gpu_hours_held": number_field(),
    "mean": number_field("GPU-hours held for each failure.", nullable=True),
    "low": number_field("Of the exact 90 % interval."),
    "high": number_field("None after no failure at all.", nullable=True),
}
MTTF_SHAPE = ResourceShape("Mttf", {"cause": text_field("Empty: any."), **MTTF_FIELDS})
MTTF_OF_MODEL_SHAPE = ResourceShape("MttfOfModel", {"model": text_field("Empty: not known."), **MTTF_FIELDS})
MTTF_OF_NODE_SHAPE = ResourceShape("MttfOfNode", {"node": text_field("Its cluster and its name."), **MTTF_FIELDS})
LEDGER_SHAPE = ResourceShape(
    "Ledger",
    {
        "from": datetime_field(),
        "to": datetime_field(),
        "by": text_field(choices=ledger_table.GROUPINGS),
        "version": text_field("Of the rules that divided the time."),
        "capacity_gpu_hours": number_field("What the buckets sum to."),
        "gpu_hours": nested_field(LEDGER_HOURS_SHAPE),
        "goodput": fraction_field(
            "Productive, of all there was; an upper bound: stalls and slow spells are not seen yet.", nullable=True
        ),
        "ettr": fraction_field(
            "Productive, of the wall clock of all runs, waits between attempts included; an upper bound too.",
            nullable=True,
        ),
        "cost": number_field(
            "Of the clusters that have a price, in the currency that the server is set to.", nullable=True
        ),
        "rows": nested_list_field(LEDGER_ROW_SHAPE),
        "lost": nested_list_field(LEDGER_LOSS_SHAPE, "To failures, the most first."),
        "mttf": nested_field(MTTF_SHAPE),
        "mttf_by_cause": nested_list_field(MTTF_SHAPE),
        "mttf_by_model": nested_list_field(MTTF_OF_MODEL_SHAPE, "By failures that were a machine's fault."),
        "mttf_by_node": nested_list_field(
            MTTF_OF_NODE_SHAPE,
            f"Of those that failed, at most {ledger_table.MAX_NODES_LISTED}, the worst first.",
        ),
    },
)


class LedgerEndpoint(ApiEndpoint):
    """Where the GPU-hours went."""

    tag = "Clusters and teams"
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ,
            says="Every GPU-hour of a period in exactly one bucket",
            answer=LEDGER_SHAPE,
            query={
                "from": (DATE_TIME_SCHEMA, "Else a day before `to`; at most 31 days."),
                "to": (DATE_TIME_SCHEMA, "Else now."),
                "by": ({"type": "string", "enum": list(ledger_table.GROUPINGS)}, "One row for each; else day."),
            },
        )
    }

    def get(self, request: Any) -> Response:
        reject_unknown_params(request, "from", "to", "by")
        asked = single_query_value(request, "by")
        by = ledger_table.GROUPINGS[0] if asked is None else parsing.choice_reader(ledger_table.GROUPINGS)("by", asked)
        until = min(self._time_param("to") or clock.now(), clock.now())
        since = self._time_param("from") or until - DEFAULT_LEDGER_PERIOD
        if since >= until:
            raise InvalidRequestField("from", "is not before to")
        if until - since > MAX_LEDGER_PERIOD:
            raise InvalidRequestField("from", "is more than 31 days before to; ask for one month after the other")
        found = ledger_table.table(by, since, until, failure_permissions.counted_team_ids(self.caller))
        return Response(ledger_table.ledger_document(found, by, since, until))

    def _time_param(self, name: str) -> datetime | None:
        asked = single_query_value(self.request, name)
        found: datetime | None = None if asked is None else query_params.read_datetime(name, asked)
        return found


urlpatterns = [path("ledger/", LedgerEndpoint.as_view())]
