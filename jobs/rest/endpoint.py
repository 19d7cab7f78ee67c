"""Base classes of all API endpoints.

Endpoints are closed by default, reject unknown input, and perform each write in one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from django.db import transaction
from django.db.models import QuerySet
from rest_framework.exceptions import NotFound
from rest_framework.response import Response
from rest_framework.views import APIView

from acmeweb.common.errors import InvalidField
from jobs.actions.journal import Author
from jobs.core import parsing
from jobs.models.permissions import Caller
from jobs.queries import keyset
from jobs.rest import etags, pagination, query_params
from jobs.rest.idempotency import run_once
from jobs.rest.permissions import EndpointRule, caller_of
from jobs.rest.shapes import ResourceShape


class ApiEndpoint(APIView):
    http_method_names = ["get", "head", "post", "patch"]
    rules: ClassVar[dict[str, EndpointRule]] = {}
    tag: ClassVar[str] = ""
    own_credentials: ClassVar[bool] = False  # has its own authentication; user tokens and sessions are not accepted
    takes_file: ClassVar[bool] = False  # POST is a form with a file, which is streamed and never held in memory
    request: Any

    def initial(self, request: Any, *args: Any, **kwargs: Any) -> None:
        if request.method == "POST" and not self.takes_file:
            # Read before a parser consumes the stream: an Idempotency-Key is bound to these bytes
            request.raw_body = request._request.body
        super().initial(request, *args, **kwargs)
        for name, values in request.query_params.lists():
            for text in (name, *values):
                if "\x00" in text or "\ufffd" in text or any(0xD800 <= ord(char) <= 0xDFFF for char in text):
                    field = name.encode("ascii", "backslashreplace").decode().replace("\x00", "\\x00")[:40]
                    raise InvalidField(field, "contains a NUL byte or invalid UTF-8")

    @property
    def caller(self) -> Caller:
        return caller_of(self.request)

    @property
    def author(self) -> Author:
        return Author.of(self.request)

    @property
    def query(self) -> Mapping[str, list[str]]:
        return dict(self.request.query_params.lists())

    def body(self, table: Mapping[str, parsing.FieldReader], what: str) -> dict[str, Any]:
        """The parsed fields of the body; `what` names the body in error messages."""
        return parsing.read_fields(self.object(), table, what)

    def object(self) -> dict[str, Any]:
        """The body as a JSON object; anything else is refused."""
        payload = self.request.data
        if not isinstance(payload, dict) or hasattr(payload, "lists"):
            raise InvalidField("detail", "The body is not a JSON object.")
        return payload


class ActionEndpoint(ApiEndpoint):
    """An endpoint with POST: `work()` runs in one transaction, and once for each Idempotency-Key."""

    def post(self, request: Any, **where: Any) -> Response:
        reject_unknown_params(request)  # a caller who writes ?dry_run=true must not trigger the real action
        return self.run_idempotent(lambda: self.work(**where))

    def run_idempotent(self, work: Callable[[], Response]) -> Response:
        """Run `work`, or return the stored response to the request's Idempotency-Key."""
        return run_once(self.request, work)

    def work(self, **where: Any) -> Response:
        raise NotImplementedError


class ListEndpoint(ApiEndpoint):
    shape: ClassVar[ResourceShape]
    filters: ClassVar[dict[str, query_params.QueryFilter]] = {}
    orderings: ClassVar[dict[str, keyset.SortColumn]] = {"id": keyset.SORT_BY_ID}
    ordering: ClassVar[str] = "-id"
    what: ClassVar[str]

    def get(self, request: Any, **where: Any) -> Response:
        params = self.query
        condition = query_params.parse(self.filters, params, self.what)
        names = query_params.requested_fields(self.shape, self._fields_param(params)) or self.shape.list_fields
        sort_columns = [sort.column for sort in self.orderings.values()]
        rows = self.shape.load(self.rows(**where).filter(condition), names, sort_columns)
        page = pagination.paginate(rows, self.orderings, self.ordering, params)
        self.attach_computed_values(page.rows, names)
        return Response(
            {
                "next": self._page_url(page.next),
                "previous": self._page_url(page.previous),
                "results": [self.shape.show(row, names) for row in page.rows],
            }
        )

    def rows(self, **where: Any) -> QuerySet:
        raise NotImplementedError

    def attach_computed_values(self, rows: list[Any], names: list[str]) -> None:
        """Set values on the rows that need an extra query for the whole page."""

    def _fields_param(self, params: Mapping[str, list[str]]) -> str | None:
        values = params.get("fields", [])
        if len(values) > 1:
            raise InvalidField("fields", "is given more than once")
        return values[0] if values else None

    def _page_url(self, params: str | None) -> str | None:
        return self.request.build_absolute_uri(f"{self.request.path}?{params}") if params else None


class DetailEndpoint(ApiEndpoint):
    shape: ClassVar[ResourceShape]

    def get(self, request: Any, **where: Any) -> Response:
        reject_unknown_params(request, "fields")
        names = query_params.requested_fields(self.shape, request.query_params.get("fields"))
        whole = self.shape.show(self.row(**where))
        tag = etags.etag(whole, self.shape.observed)
        if (cached := request.headers.get("If-None-Match")) and etags.matches(cached.replace("W/", ""), tag):
            return Response(status=304, headers={"ETag": tag})
        shown = whole if names is None else {name: whole[name] for name in names}
        return Response(shown, headers={"ETag": tag})

    def row(self, **where: Any) -> Any:
        raise NotImplementedError


class ChangeableDetailEndpoint(DetailEndpoint):
    """One row that PATCH changes, unless it has changed since the caller read it."""

    def patch(self, request: Any, **where: Any) -> Response:
        reject_unknown_params(request)
        values = self.changes()
        with transaction.atomic():
            self.change(lock_unchanged_row(request, self.shape, lambda: self.row(**where)), values)
        return current_row_response(self.shape, self.row(**where))

    def changes(self) -> dict[str, Any]:
        """Return the validated values of the body."""
        raise NotImplementedError

    def change(self, row: Any, values: dict[str, Any]) -> None:
        """Apply the values to the locked row."""
        raise NotImplementedError


class RemoveEndpoint(ActionEndpoint):
    """POST that removes one row, unless it has changed since the caller read it. Answers with the row as it was."""

    shape: ClassVar[ResourceShape]
    readers: ClassVar[dict[str, parsing.FieldReader]] = {}

    def work(self, **where: Any) -> Response:
        values = self.body(self.readers, "the verb remove")
        row = lock_unchanged_row(self.request, self.shape, lambda: self.row(**where))
        shown = self.shape.show(row)
        self.remove(row, values)
        return Response(shown)

    def row(self, **where: Any) -> Any:
        raise NotImplementedError

    def remove(self, row: Any, values: dict[str, Any]) -> None:
        """Remove the locked row."""
        raise NotImplementedError


def reject_unknown_params(request: Any, *known: str) -> None:
    for name in request.query_params:
        if name not in known:
            raise InvalidField(parsing.short_repr(name)[1:-1], "is not a parameter of this endpoint")


def find_or_404(rows: QuerySet, what: str, **key: Any) -> Any:
    """The matching row, or 404. The response is the same for rows that do not exist and rows of other teams."""
    row = rows.filter(**key).first()
    if row is None:
        raise NotFound(f"{what.capitalize()} {' '.join(str(value) for value in key.values())} not found.")
    return row


def find_job_or_404(rows: QuerySet, id: str) -> Any:
    """The job, or 404. The id of an array is not that of a job, and the error says what to use instead."""
    if (row := rows.filter(public_id=id).first()) is not None:
        return row
    if tasks := rows.filter(array_id=id).count():
        raise InvalidField(
            "id",
            f"is an array of {tasks} tasks; give {id} in ids to POST /api/v1/jobs/actions/, or the id of one task here",
        )
    raise NotFound(f"Job {id} not found.")


def lock_unchanged_row(request: Any, shape: ResourceShape, look: Callable[[], Any]) -> Any:
    """The row, locked until the commit and checked against If-Match.

    `look` finds the row or raises 404, so callers who may not see a row cannot lock it. It runs again under the lock
    to return current values.
    """
    unlocked = look()
    list(type(unlocked).objects.select_for_update().filter(pk=unlocked.pk).values("pk"))
    row = look()
    etags.check_if_match(request, shape.show(row), shape.observed)
    return row


def current_row_response(shape: ResourceShape, row: Any) -> Response:
    """The row after a change, with the ETag that a GET would return."""
    shown = shape.show(row)
    return Response(shown, headers={"ETag": etags.etag(shown, shape.observed)})


class UnknownPathEndpoint(ApiEndpoint):
    """Answers unknown API paths with a JSON 404, after checking the credentials."""

    http_method_names = ["get", "head", "post", "put", "patch", "delete", "options"]

    def check_permissions(self, request: Any) -> None:
        if request.user is None or not request.user.is_authenticated:
            self.permission_denied(request)
        raise NotFound(f"Not found: {request.path[:200]}. API paths end with a slash.")
