"""The REST API of failure statistics, as JSON or CSV."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from django.http import HttpResponse
from django.http.response import HttpResponseBase
from rest_framework.response import Response

from acmeweb.common.errors import InvalidField
from failures.api import shapes
from failures.models import permissions as failure_permissions
from failures.queries import failure_statistics
from jobs.api.logs import single_query_value
from jobs.core import parsing
from jobs.models import TokenScope, clock
from jobs.rest import query_params
from jobs.rest.endpoint import ApiEndpoint, reject_unknown_params
from jobs.rest.permissions import EndpointRule
from jobs.rest.shapes import json_value

DEFAULT_PERIOD = timedelta(days=30)
DATE_TIME_SCHEMA = {"type": "string", "format": "date-time"}


class FailureStatistics(ApiEndpoint):
    """Failure statistics of a period: counts, GPU-hours, times."""

    tag = "Failures"
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ,
            says="Failure statistics of a period: counts, GPU-hours, time to failure and to restart",
            answer=shapes.FAILURE_TABLE_SHAPE,
            media="text/csv",
            query={
                "from": (DATE_TIME_SCHEMA, "Start of the period, inclusive. Default: 30 days before `to`."),
                "to": (DATE_TIME_SCHEMA, "End of the period, exclusive. Default: now."),
                "by": (
                    {"type": "string", "enum": list(failure_statistics.GROUPINGS)},
                    "Grouping of the rows. Default: cause.",
                ),
                "format": ({"type": "string", "enum": ["json", "csv"]}, "csv contains only the rows. Default: json."),
            },
        )
    }

    def get(self, request: Any) -> HttpResponseBase:
        reject_unknown_params(request, "from", "to", "by", "format")
        by = self._choice_parameter("by", failure_statistics.GROUPINGS)
        kind = self._choice_parameter("format", ("json", "csv"))
        until = self._time_parameter("to") or clock.now()
        since = self._time_parameter("from") or _default_since(until)
        if since >= until:
            raise InvalidField("from", "must be before to")
        table = failure_statistics.failure_table(by, since, until, failure_permissions.counted_team_ids(self.caller))
        if kind == "csv":
            return _csv_download(failure_statistics.rows_as_csv(table.rows), by)
        body = {
            "from": json_value(since),
            "to": json_value(until),
            "by": by,
            "num": table.num,
            "gpu_hours": table.gpu_hours,
            "gpu_hours_lost": table.gpu_hours_lost,
            "kwh_lost": table.kwh_lost,
            "rows": [asdict(row) for row in table.rows],
        }
        return Response(body)

    def _choice_parameter(self, name: str, words: tuple[str, ...]) -> str:
        value = single_query_value(self.request, name)
        return words[0] if value is None else parsing.choice_reader(words)(name, value)

    def _time_parameter(self, name: str) -> datetime | None:
        value = single_query_value(self.request, name)
        moment: datetime | None = None if value is None else query_params.read_datetime(name, value)
        return moment


def _default_since(until: datetime) -> datetime:
    try:
        return until - DEFAULT_PERIOD
    except OverflowError:
        return until.min.replace(tzinfo=until.tzinfo)


def _csv_download(text: str, by: str) -> HttpResponse:
    response = HttpResponse(text, content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="failures-by-{by}.csv"'
    response["X-Content-Type-Options"] = "nosniff"
    return response
