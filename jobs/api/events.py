"""Export of all Events in the API."""

from __future__ import annotations

from typing import Any

from django.http.response import HttpResponseBase, StreamingHttpResponse

from acmeweb.common.errors import InvalidField
from jobs.core import parsing
from jobs.models import TokenScope
from jobs.queries.event_export import exported_lines
from jobs.rest.endpoint import ApiEndpoint, reject_unknown_params
from jobs.rest.permissions import EndpointRule
from jobs.rest.streaming import is_asgi, read_in_threads

JSON_LINES = "application/x-ndjson"


class EventExport(ApiEndpoint):
    """Stream all Events as lines of JSON, oldest first."""

    tag = "About"
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.ADMIN,
            permissions=("jobs.view_event",),
            says="Export all events as lines of JSON, oldest first",
            media=JSON_LINES,
            query={
                "after": ({"type": "integer", "minimum": 0}, "Only events after this id, the last one that you have."),
                "since": ({"type": "string", "format": "date-time"}, "Only events at this time or later."),
                "limit": ({"type": "integer", "minimum": 1}, "Maximum number of events."),
            },
        )
    }

    def get(self, request: Any) -> HttpResponseBase:
        reject_unknown_params(request, "after", "since", "limit")
        after, limit = self._number("after", 0) or 0, self._number("limit", 1)
        since = request.query_params.get("since")
        lines = exported_lines(after, None if since is None else parsing.read_timestamp("since", since), limit)
        chunks = read_in_threads(lines) if is_asgi(request._request) else lines
        response = StreamingHttpResponse(chunks, content_type=JSON_LINES)
        response["Content-Disposition"] = 'attachment; filename="events.jsonl"'
        return response

    def _number(self, name: str, low: int) -> int | None:
        text = self.request.query_params.get(name)
        if text is None:
            return None
        if not (text.isascii() and text.isdigit() and len(text) <= 18 and int(text) >= low):
            raise InvalidField(name, f"{parsing.short_repr(text)} is not a number from {low}")
        return int(text)
