"""Job traces of one's own through the programs' door: the same files, limits and sentences as on the page What if."""

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

from jobs.actions.submissions import CallerTargets
from jobs.core import parsing
from jobs.models import TokenScope
from jobs.models.permissions import Caller
from jobs.rest import etags, pagination, query_params
from jobs.rest.endpoint import ActionEndpoint, DetailEndpoint, ListEndpoint, find_or_404, reject_unknown_params
from jobs.rest.errors import Conflict, InvalidRequestField
from jobs.rest.idempotency import compute_then_run_once
from jobs.rest.permissions import EndpointRule
from jobs.rest.shapes import (
    ResourceShape,
    ShapeField,
    attribute_path,
    datetime_field,
    fraction_field,
    integer_field,
    text_field,
    text_list_field,
)
from scheduling.actions import traces as trace_actions
from scheduling.actions.traces import ParsedTrace, TraceInUse
from scheduling.models import UploadedTrace
from scheduling.queries.replays import (
    MAX_FILE_BYTES,
    TraceUploadThrottle,
    read_uploaded_trace,
    refuse_large_file,
    traces,
)

TRACE_FIELDS: dict[str, ShapeField] = {
    "id": integer_field(),
    "trace": text_field("How a simulation names it.", get=attribute_path("called"), needs=()),
    "name": text_field("Of the file."),
    "team": text_field(get=attribute_path("team.name"), needs=("team__name",)),
    "user": text_field(get=attribute_path("user.username"), needs=("user__username",)),
    "jobs": integer_field(),
    "span_s": fraction_field("From the first submission to the last."),
    "bad": integer_field("Rows that could not be read."),
    "quoted": text_list_field("The first of those, with their lines."),
    "created_at": datetime_field(),
    "used_at": datetime_field("When a replay of it was last asked for."),
}
TRACE_SHAPE = ResourceShape("Trace", TRACE_FIELDS)
FILE_SCHEMA = {
    "type": "string",
    "format": "binary",
    "description": "CSV of AcmeTrace, Helios, openb or our own export, Philly, SWF, sacct --parsable2; also gz or zst;"
    f" at most {MAX_FILE_BYTES >> 20} MiB.",
}
TRACE_UPLOAD_SHAPE = ResourceShape(
    "TraceUpload",
    {
        "trace_file": ShapeField(schema=FILE_SCHEMA),
        "team": text_field("Whose trace it is; needed by those who submit for several.", required=False),
    },
)
NOTHING_SHAPE = ResourceShape("Nothing", {})


def _get_trace(caller: Caller, trace: int) -> UploadedTrace:
    row: UploadedTrace = find_or_404(traces(caller), "trace", pk=trace)
    return row


class TraceListEndpoint(ActionEndpoint, ListEndpoint):
    """List the traces of your teams, bring one."""

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
    orderings = {"id": pagination.SORT_BY_ID, "created_at": pagination.SortColumn(column="created_at", kind=datetime)}
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ, says="Job traces that people of your teams brought", answer=TRACE_SHAPE, many=True
        ),
        "POST": EndpointRule(
            scope=TokenScope.SUBMIT,
            says="Bring a file of jobs, to replay it as upload:NUMBER",
            body=TRACE_UPLOAD_SHAPE,
            answer=TRACE_SHAPE,
            status=201,
        ),
    }

    def rows(self) -> QuerySet[UploadedTrace]:
        return traces(self.caller)

    def post(self, request: Any) -> Response:
        """A long file is read for seconds, so no transaction is open meanwhile."""
        reject_unknown_params(request)
        file = self._uploaded_file()
        team = CallerTargets(self.caller).resolve_team(request.data.get("team"))
        request.raw_body = _digest(file) + str(team.pk).encode()  # what an Idempotency-Key is bound to
        return compute_then_run_once(
            request, lambda: self._parse_file(file), lambda brought: self._save_and_respond(brought, team)
        )

    def _uploaded_file(self) -> UploadedFile:
        for name in self.request.data:
            if name not in TRACE_UPLOAD_SHAPE.fields:
                raise InvalidRequestField(parsing.short_repr(name)[1:-1], "is no field of a trace")
        if (file := self.request.FILES.get("trace_file")) is None:
            raise InvalidRequestField("trace_file", "is needed: a file, in a form (multipart/form-data)")
        refuse_large_file(file)
        return file

    def _parse_file(self, file: UploadedFile) -> ParsedTrace:
        counter = TraceUploadThrottle()
        if not counter.allow_request(self.request, self):
            raise Throttled(wait=counter.wait())
        return read_uploaded_trace(file)

    def _save_and_respond(self, brought: ParsedTrace, team: Any) -> Response:
        made = trace_actions.save_trace(brought, team=team, author=self.author)
        shown = TRACE_SHAPE.show(_get_trace(self.caller, made.pk))
        where = self.request.build_absolute_uri(f"{self.request.path}{made.pk}/")
        return Response(shown, status=201, headers={"Location": where})


def _digest(file: UploadedFile) -> bytes:
    digest = hashlib.sha256((file.name or "").encode())
    for chunk in file.chunks():
        digest.update(chunk)
    return digest.digest()


class TraceDetailEndpoint(DetailEndpoint):
    """One trace, without what it holds."""

    tag = "Simulations"
    shape = TRACE_SHAPE
    rules = {"GET": EndpointRule(scope=TokenScope.READ, says="One trace of your teams", answer=TRACE_SHAPE, team=True)}

    def row(self, trace: int) -> UploadedTrace:
        return _get_trace(self.caller, trace)


class RemoveTraceEndpoint(ActionEndpoint):
    """Remove a trace; results of past replays stay."""

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
        try:
            trace_actions.remove(row, author=self.author)
        except TraceInUse as used:
            raise Conflict(str(used)) from None
        return Response(shown)


urlpatterns = [
    path("traces/", TraceListEndpoint.as_view()),
    path("traces/<int:trace>/", TraceDetailEndpoint.as_view()),
    path("traces/<int:trace>/remove/", RemoveTraceEndpoint.as_view()),
]
