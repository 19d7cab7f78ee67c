"""The ledger through the programs' door."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.urls import path
from rest_framework.response import Response

from failures import rights
from jobs import clock, readers
from jobs.api.logs import single
from jobs.door import query
from jobs.door.endpoint import Endpoint, refuse_unknown
from jobs.door.errors import BadField
from jobs.door.rights import Rule
from jobs.door.shapes import Shape, fraction, many, measure, moment, number, one, text
from jobs.models import Scope
from scheduling import ledger_table
from scheduling.ledger import Bucket

USUAL = timedelta(days=1)
LONGEST = timedelta(days=31)
MOMENT = {"type": "string", "format": "date-time"}

HOURS = Shape("LedgerHours", {bucket.value: measure() for bucket in Bucket})
ROW = Shape(
    "LedgerRow",
    {
        "name": text("Empty: held by nobody, or by teams that are not yours."),
        "gpu_hours": one(HOURS),
        "goodput": fraction("Productive, of all hours (day, cluster) or of those held (team, kind).", nullable=True),
        "cost": measure("Of the clusters that have a price.", nullable=True),
    },
)
LOST = Shape("LedgerLoss", {"cause": text("Empty: not known yet."), "gpu_hours": measure()})
MEANS = {
    "failures": number(low=0),
    "gpu_hours_held": measure(),
    "mean": measure("GPU-hours held for each failure.", nullable=True),
    "low": measure("Of the exact 90 % interval."),
    "high": measure("None after no failure at all.", nullable=True),
}
MTTF = Shape("Mttf", {"cause": text("Empty: any."), **MEANS})
MTTF_OF_MODEL = Shape("MttfOfModel", {"model": text("Empty: not known."), **MEANS})
MTTF_OF_NODE = Shape("MttfOfNode", {"node": text("Its cluster and its name."), **MEANS})
LEDGER = Shape(
    "Ledger",
    {
        "from": moment(),
        "to": moment(),
        "by": text(choices=ledger_table.BY),
        "version": text("Of the rules that divided the time."),
        "capacity_gpu_hours": measure("What the buckets sum to."),
        "gpu_hours": one(HOURS),
        "goodput": fraction(
            "Productive, of all there was; an upper bound: stalls and slow spells are not seen yet.", nullable=True
        ),
        "ettr": fraction(
            "Productive, of the wall clock of all runs, waits between attempts included; an upper bound too.",
            nullable=True,
        ),
        "cost": measure("Of the clusters that have a price, in the currency that the server is set to.", nullable=True),
        "rows": many(ROW),
        "lost": many(LOST, "To failures, the most first."),
        "mttf": one(MTTF),
        "mttf_by_cause": many(MTTF),
        "mttf_by_model": many(MTTF_OF_MODEL, "By failures that were a machine's fault."),
        "mttf_by_node": many(
            MTTF_OF_NODE,
            f"Of those that failed, at most {ledger_table.MOST_NODES}, the worst first.",
        ),
    },
)


class Ledger(Endpoint):
    """Where the GPU-hours went."""

    tag = "Clusters and teams"
    rules = {
        "GET": Rule(
            scope=Scope.READ,
            says="Every GPU-hour of a period in exactly one bucket",
            answer=LEDGER,
            query={
                "from": (MOMENT, "Else a day before `to`; at most 31 days."),
                "to": (MOMENT, "Else now."),
                "by": ({"type": "string", "enum": list(ledger_table.BY)}, "One row for each; else day."),
            },
        )
    }

    def get(self, request: Any) -> Response:
        refuse_unknown(request, "from", "to", "by")
        asked = single(request, "by")
        by = ledger_table.BY[0] if asked is None else readers.one_of(ledger_table.BY)("by", asked)
        until = min(self._moment("to") or clock.now(), clock.now())
        since = self._moment("from") or until - USUAL
        if since >= until:
            raise BadField("from", "is not before to")
        if until - since > LONGEST:
            raise BadField("from", "is more than 31 days before to; ask for one month after the other")
        found = ledger_table.table(by, since, until, rights.teams_counted(self.caller))
        return Response(ledger_table.told(found, by, since, until))

    def _moment(self, name: str) -> datetime | None:
        asked = single(self.request, name)
        found: datetime | None = None if asked is None else query.read_moment(name, asked)
        return found


urlpatterns = [path("ledger/", Ledger.as_view())]
