"""The failure table through the programs' door, as JSON or CSV."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from django.http import HttpResponse
from django.http.response import HttpResponseBase
from rest_framework.response import Response

from failures import rights, statistics
from failures.api import shapes
from jobs import clock, readers
from jobs.api.logs import single
from jobs.door import query
from jobs.door.endpoint import Endpoint, refuse_unknown
from jobs.door.errors import BadField
from jobs.door.rights import Rule
from jobs.door.shapes import plain
from jobs.models import Scope

USUAL = timedelta(days=30)
MOMENT = {"type": "string", "format": "date-time"}


class FailureStatistics(Endpoint):
    """What failed, how often, at what price."""

    tag = "Failures"
    rules = {
        "GET": Rule(
            scope=Scope.READ,
            says="Failures of a period: counts, GPU-hours, time to failure and to restart",
            answer=shapes.FAILURE_TABLE,
            media="text/csv",
            query={
                "from": (MOMENT, "Attempts that ended at or after it; else 30 days before `to`."),
                "to": (MOMENT, "And before it; else now."),
                "by": ({"type": "string", "enum": list(statistics.BY)}, "One row for each; else cause."),
                "format": ({"type": "string", "enum": ["json", "csv"]}, "csv has the rows alone."),
            },
        )
    }

    def get(self, request: Any) -> HttpResponseBase:
        refuse_unknown(request, "from", "to", "by", "format")
        by = self._one_of("by", statistics.BY)
        kind = self._one_of("format", ("json", "csv"))
        until = self._moment("to") or clock.now()
        since = self._moment("from") or _before(until)
        if since >= until:
            raise BadField("from", "is not before to")
        table = statistics.table(by, since, until, rights.teams_counted(self.caller))
        if kind == "csv":
            return _download(statistics.as_csv(table.rows), by)
        answer = {
            "from": plain(since),
            "to": plain(until),
            "by": by,
            "num": table.num,
            "gpu_hours": table.gpu_hours,
            "gpu_hours_lost": table.gpu_hours_lost,
            "rows": [asdict(row) for row in table.rows],
        }
        return Response(answer)

    def _one_of(self, name: str, words: tuple[str, ...]) -> str:
        asked = single(self.request, name)
        return words[0] if asked is None else readers.one_of(words)(name, asked)

    def _moment(self, name: str) -> datetime | None:
        asked = single(self.request, name)
        found: datetime | None = None if asked is None else query.read_moment(name, asked)
        return found


def _before(until: datetime) -> datetime:
    try:
        return until - USUAL
    except OverflowError:
        return until.min.replace(tzinfo=until.tzinfo)


def _download(text: str, by: str) -> HttpResponse:
    answer = HttpResponse(text, content_type="text/csv; charset=utf-8")
    answer["Content-Disposition"] = f'attachment; filename="failures-by-{by}.csv"'
    answer["X-Content-Type-Options"] = "nosniff"
    return answer
