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

from jobs import readers
from jobs.api.submitting import Places
from jobs.door import pages, query, versions
from jobs.door.endpoint import Detail, Listing, Verb, found, refuse_unknown
from jobs.door.errors import BadField, Conflict
from jobs.door.once import once_after
from jobs.door.rights import Rule
from jobs.door.shapes import Field, Shape, at, fraction, moment, number, text, texts
from jobs.models import Scope
from jobs.rights import Caller
from scheduling import trace_actions
from scheduling.models import UploadedTrace
from scheduling.replays import LARGEST_FILE, Uploads, read_file, refuse_large, traces
from scheduling.trace_actions import Brought, InUse

FIELDS: dict[str, Field] = {
    "id": number(),
    "trace": text("How a simulation names it.", get=at("called"), needs=()),
    "name": text("Of the file."),
    "team": text(get=at("team.name"), needs=("team__name",)),
    "user": text(get=at("user.username"), needs=("user__username",)),
    "jobs": number(),
    "span_s": fraction("From the first submission to the last."),
    "bad": number("Rows that could not be read."),
    "quoted": texts("The first of those, with their lines."),
    "created_at": moment(),
    "used_at": moment("When a replay of it was last asked for."),
}
TRACE = Shape("Trace", FIELDS)
FILE = {
    "type": "string",
    "format": "binary",
    "description": "CSV of AcmeTrace, Helios, openb or our own export, Philly, SWF, sacct --parsable2; also gz or zst;"
    f" at most {LARGEST_FILE >> 20} MiB.",
}
BROUGHT = Shape(
    "TraceUpload",
    {
        "trace_file": Field(schema=FILE),
        "team": text("Whose trace it is; needed by those who submit for several.", required=False),
    },
)
NOTHING = Shape("Nothing", {})


def _one(caller: Caller, trace: int) -> UploadedTrace:
    row: UploadedTrace = found(traces(caller), "trace", pk=trace)
    return row


class Traces(Verb, Listing):
    """List the traces of your teams, bring one."""

    tag = "Simulations"
    what = "traces"
    shape = TRACE
    takes_file = True
    parser_classes = [MultiPartParser]
    filters = {
        "name": query.text("name"),
        "team": query.text("team__name"),
        "user": query.text("user__username"),
        "created_at": query.moment("created_at"),
    }
    orderings = {"id": pages.ID, "created_at": pages.Sort(column="created_at", kind=datetime)}
    rules = {
        "GET": Rule(scope=Scope.READ, says="Job traces that people of your teams brought", answer=TRACE, many=True),
        "POST": Rule(
            scope=Scope.SUBMIT,
            says="Bring a file of jobs, to replay it as upload:NUMBER",
            body=BROUGHT,
            answer=TRACE,
            status=201,
        ),
    }

    def rows(self) -> QuerySet[UploadedTrace]:
        return traces(self.caller)

    def post(self, request: Any) -> Response:
        """A long file is read for seconds, so no transaction is open meanwhile."""
        refuse_unknown(request)
        file = self._file()
        team = Places(self.caller).team_of(request.data.get("team"))
        request.raw_body = _digest(file) + str(team.pk).encode()  # what an Idempotency-Key is bound to
        return once_after(request, lambda: self._read(file), lambda brought: self._kept(brought, team))

    def _file(self) -> UploadedFile:
        for name in self.request.data:
            if name not in BROUGHT.fields:
                raise BadField(readers.short(name)[1:-1], "is no field of a trace")
        if (file := self.request.FILES.get("trace_file")) is None:
            raise BadField("trace_file", "is needed: a file, in a form (multipart/form-data)")
        refuse_large(file)
        return file

    def _read(self, file: UploadedFile) -> Brought:
        counter = Uploads()
        if not counter.allow_request(self.request, self):
            raise Throttled(wait=counter.wait())
        return read_file(file)

    def _kept(self, brought: Brought, team: Any) -> Response:
        made = trace_actions.keep(brought, team=team, author=self.author)
        shown = TRACE.show(_one(self.caller, made.pk))
        where = self.request.build_absolute_uri(f"{self.request.path}{made.pk}/")
        return Response(shown, status=201, headers={"Location": where})


def _digest(file: UploadedFile) -> bytes:
    digest = hashlib.sha256((file.name or "").encode())
    for chunk in file.chunks():
        digest.update(chunk)
    return digest.digest()


class OneTrace(Detail):
    """One trace, without what it holds."""

    tag = "Simulations"
    shape = TRACE
    rules = {"GET": Rule(scope=Scope.READ, says="One trace of your teams", answer=TRACE, team=True)}

    def row(self, trace: int) -> UploadedTrace:
        return _one(self.caller, trace)


class RemoveTrace(Verb):
    """Remove a trace; results of past replays stay."""

    tag = "Simulations"
    rules = {
        "POST": Rule(scope=Scope.SUBMIT, says="Remove a trace", body=NOTHING, answer=TRACE, team=True, conflicts=True)
    }

    def work(self, trace: int) -> Response:
        self.body({}, "the verb remove")
        row = _one(self.caller, trace)
        if not self.caller.may_change(row):
            raise PermissionDenied(self.caller.why_not(row, str(row)))
        shown = TRACE.show(row)
        versions.refuse_stale(self.request, shown)
        try:
            trace_actions.remove(row, author=self.author)
        except InUse as used:
            raise Conflict(str(used)) from None
        return Response(shown)


urlpatterns = [
    path("traces/", Traces.as_view()),
    path("traces/<int:trace>/", OneTrace.as_view()),
    path("traces/<int:trace>/remove/", RemoveTrace.as_view()),
]
