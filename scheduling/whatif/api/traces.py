"""API of uploaded job traces, with the same formats, limits and messages as the page What if."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Any

from django.core.files.uploadedfile import UploadedFile
from django.db.models import QuerySet
from django.urls import path
from rest_framework.exceptions import PermissionDenied, Throttled
from rest_framework.parsers import MultiPartParser
from rest_framework.response import Response

from acmeweb.common.errors import InvalidField
from jobs.actions.submissions import CallerTargets
from jobs.core import parsing
from jobs.models import TokenScope
from jobs.models.permissions import Caller
from jobs.queries import keyset
from jobs.rest import etags, query_params
from jobs.rest.endpoint import ActionEndpoint, DetailEndpoint, ListEndpoint, find_or_404, reject_unknown_params
from jobs.rest.idempotency import compute_then_run_once
from jobs.rest.permissions import EndpointRule
from jobs.rest.shapes import (
    NOTHING_SHAPE,
    ResourceShape,
    ShapeField,
    attribute_path,
    datetime_field,
    fraction_field,
    integer_field,
    text_field,
    text_list_field,
)
from scheduling.models import UploadedTrace
from scheduling.whatif.actions import traces as trace_actions
from scheduling.whatif.reads.simulations import traces
from scheduling.whatif.reads.traces import MAX_FILE_BYTES, TraceUploadThrottle, read_uploaded_trace, refuse_large_file

TRACE_FIELDS: dict[str, ShapeField] = {
    "id": integer_field(),
    "trace": text_field("Name of the trace in a simulation.", get=attribute_path("trace_name"), needs=()),
    "name": text_field("Name of the file."),
    "team": text_field(get=attribute_path("team.name"), needs=("team__name",)),
    "user": text_field(get=attribute_path("user.username"), needs=("user__username",)),
    "jobs": integer_field(),
    "span_s": fraction_field("Seconds from the first submission to the last."),
    "skipped_rows": integer_field("Number of unreadable rows, which were skipped."),
    "skipped_examples": text_list_field("The first unreadable rows, with their line numbers."),
    "created_at": datetime_field(),
    "used_at": datetime_field("When a replay of it was last requested."),
}
TRACE_SHAPE = ResourceShape("Trace", TRACE_FIELDS)
FILE_SCHEMA = {
    "type": "string",
    "format": "binary",
    "description": "CSV (AcmeTrace, Helios, openb, Acme export), Philly, SWF, sacct --parsable2; optionally gz or"
    f" zst. At most {MAX_FILE_BYTES >> 20} MiB.",
}
TRACE_UPLOAD_SHAPE = ResourceShape(
    "TraceUpload",
    {
        "trace_file": ShapeField(schema=FILE_SCHEMA),
        "team": text_field("Team that owns the trace. Required if you can submit for several teams.", required=False),
    },
    example={"trace_file": "@january.csv", "team": "pretraining"},
)


def _get_trace(caller: Caller, trace: int) -> UploadedTrace:
    row: UploadedTrace = find_or_404(traces(caller), "trace", pk=trace)
    return row


class TraceListEndpoint(ActionEndpoint, ListEndpoint):
    """List the uploaded traces of your teams; upload a trace."""

    tag = "Simulations"
    what = "traces"
    shape = TRACE_SHAPE
    takes_file = True
    parser_classes = [MultiPartParser]
    filters = {
        "name": query_params.text_filter("name"),
        "team": query_params.text_filter("team__name"),
        "user": query_params.text_filter("user__username"),
        "created_at": query_params.datetime_filter("created_at"),
    }
    orderings = {"id": keyset.SORT_BY_ID, "created_at": keyset.SortColumn(column="created_at", kind=datetime)}
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ, says="List the uploaded traces of your teams", answer=TRACE_SHAPE, many=True
        ),
        "POST": EndpointRule(
            scope=TokenScope.SUBMIT,
            says="Upload a trace file, to replay it as upload:NUMBER",
            body=TRACE_UPLOAD_SHAPE,
            answer=TRACE_SHAPE,
            status=201,
        ),
    }

    def rows(self) -> QuerySet[UploadedTrace]:
        return traces(self.caller)

    def post(self, request: Any) -> Response:
        """Parse and save the file. Parsing takes seconds for a long file, so it runs outside the transaction."""
        reject_unknown_params(request)
        file = self._uploaded_file()
        team = CallerTargets(self.caller).resolve_team(request.data.get("team"))
        request.raw_body = _digest(file) + str(team.pk).encode()  # an Idempotency-Key is bound to this
        return compute_then_run_once(
            request, lambda: self._parse_file(file), lambda upload: self._save_and_respond(upload, team)
        )

    def _uploaded_file(self) -> UploadedFile:
        for name in self.request.data:
            if name not in TRACE_UPLOAD_SHAPE.fields:
                raise InvalidField(parsing.short_repr(name)[1:-1], "is not a field of a trace")
        if (file := self.request.FILES.get("trace_file")) is None:
            raise InvalidField("trace_file", "is required: upload a file as multipart/form-data")
        refuse_large_file(file)
        return file

    def _parse_file(self, file: UploadedFile) -> UploadedTrace:
        counter = TraceUploadThrottle()
        if not counter.allow_request(self.request, self):
            raise Throttled(wait=counter.wait())
        return read_uploaded_trace(file)

    def _save_and_respond(self, upload: UploadedTrace, team: Any) -> Response:
        trace_actions.save_trace(upload, team=team, author=self.author)
        document = TRACE_SHAPE.show(_get_trace(self.caller, upload.pk))
        address = self.request.build_absolute_uri(f"{self.request.path}{upload.pk}/")
        return Response(document, status=201, headers={"Location": address})


def _digest(file: UploadedFile) -> bytes:
    digest = hashlib.sha256((file.name or "").encode())
    for chunk in file.chunks():
        digest.update(chunk)
    return digest.digest()


class TraceDetailEndpoint(DetailEndpoint):
    """One uploaded trace, without its rows."""

    tag = "Simulations"
    shape = TRACE_SHAPE
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ, says="One uploaded trace of your teams", answer=TRACE_SHAPE, team=True
        )
    }

    def row(self, trace: int) -> UploadedTrace:
        return _get_trace(self.caller, trace)


class RemoveTraceEndpoint(ActionEndpoint):
    """Remove a trace. Results of past replays are kept."""

    tag = "Simulations"
    rules = {
        "POST": EndpointRule(
            scope=TokenScope.SUBMIT,
            says="Remove a trace",
            body=NOTHING_SHAPE,
            answer=TRACE_SHAPE,
            team=True,
            conflicts=True,
        )
    }

    def work(self, trace: int) -> Response:
        self.body({}, "the verb remove")
        row = _get_trace(self.caller, trace)
        if not self.caller.may_change(row):
            raise PermissionDenied(self.caller.denial_reason(row, str(row)))
        shown = TRACE_SHAPE.show(row)
        etags.check_if_match(self.request, shown)
        trace_actions.remove(row, author=self.author)
        return Response(shown)


urlpatterns = [
    path("traces/", TraceListEndpoint.as_view()),
    path("traces/<int:trace>/", TraceDetailEndpoint.as_view()),
    path("traces/<int:trace>/remove/", RemoveTraceEndpoint.as_view()),
]
