"""What every endpoint is: closed by default, strict about what it reads, one transaction for what it writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from django.db.models import QuerySet
from rest_framework.exceptions import NotFound
from rest_framework.response import Response
from rest_framework.views import APIView

from jobs.actions.journal import Author
from jobs.core import parsing
from jobs.models.permissions import Caller
from jobs.rest import etags, pagination
from jobs.rest import query_params as query
from jobs.rest.errors import InvalidRequestField
from jobs.rest.idempotency import run_once
from jobs.rest.permissions import EndpointRule, caller_of
from jobs.rest.shapes import ResourceShape


class ApiEndpoint(APIView):
    http_method_names = ["get", "head", "post", "patch"]
    rules: ClassVar[dict[str, EndpointRule]] = {}
    tag: ClassVar[str] = ""
    own_credentials: ClassVar[bool] = False  # neither a person's token nor a session opens it
    takes_file: ClassVar[bool] = False  # POST is a form with a file, which is never whole in memory
    request: Any

    def initial(self, request: Any, *args: Any, **kwargs: Any) -> None:
        if request.method == "POST" and not self.takes_file:
            # Before anybody takes the stream: an Idempotency-Key is bound to these bytes
            request.raw_body = request._request.body
        super().initial(request, *args, **kwargs)
        for name, values in request.query_params.lists():
            for text in (name, *values):
                if "\x00" in text or "\ufffd" in text or any(0xD800 <= ord(char) <= 0xDFFF for char in text):
                    field = name.encode("ascii", "backslashreplace").decode().replace("\x00", "\\x00")[:40]
                    raise InvalidRequestField(field, "contains a NUL byte, or bytes that are no UTF-8")

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
        return parsing.read_fields(self.object(), table, what)

    def object(self) -> dict[str, Any]:
        asked = self.request.data
        if not isinstance(asked, dict) or hasattr(asked, "lists"):
            raise InvalidRequestField("detail", "The body is no JSON object.")
        return asked


class ActionEndpoint(ApiEndpoint):
    """POST: `work()` runs in one transaction, and once for each Idempotency-Key."""

    def post(self, request: Any, **where: Any) -> Response:
        reject_unknown_params(request)  # whoever writes ?dry_run=true does not mean the deed
        return self.kept(lambda: self.work(**where))

    def kept(self, work: Callable[[], Response]) -> Response:
        return run_once(self.request, work)

    def work(self, **where: Any) -> Response:
        raise NotImplementedError


class ListEndpoint(ApiEndpoint):
    shape: ClassVar[ResourceShape]
    filters: ClassVar[dict[str, query.QueryFilter]] = {}
    orderings: ClassVar[dict[str, pagination.SortColumn]] = {"id": pagination.SORT_BY_ID}
    ordering: ClassVar[str] = "-id"
    what: ClassVar[str]

    def get(self, request: Any, **where: Any) -> Response:
        asked = self.query
        wanted = query.parse(self.filters, asked, self.what)
        names = query.requested_fields(self.shape, self._fields_param(asked)) or self.shape.list_fields
        placed = [sort.column for sort in self.orderings.values()]
        rows = self.shape.load(self.rows(**where).filter(wanted), names, placed)
        page = pagination.paginate(rows, self.orderings, self.ordering, asked)
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
        """Hang on each row what takes a query of its own for the whole page."""

    def _fields_param(self, asked: Mapping[str, list[str]]) -> str | None:
        values = asked.get("fields", [])
        if len(values) > 1:
            raise InvalidRequestField("fields", "is given more than once")
        return values[0] if values else None

    def _page_url(self, rest: str | None) -> str | None:
        return self.request.build_absolute_uri(f"{self.request.path}?{rest}") if rest else None


class DetailEndpoint(ApiEndpoint):
    shape: ClassVar[ResourceShape]

    def get(self, request: Any, **where: Any) -> Response:
        reject_unknown_params(request, "fields")
        names = query.requested_fields(self.shape, request.query_params.get("fields"))
        whole = self.shape.show(self.row(**where))
        tag = etags.etag(whole, self.shape.observed)
        if (held := request.headers.get("If-None-Match")) and etags.matches(held.replace("W/", ""), tag):
            return Response(status=304, headers={"ETag": tag})
        shown = whole if names is None else {name: whole[name] for name in names}
        return Response(shown, headers={"ETag": tag})

    def row(self, **where: Any) -> Any:
        raise NotImplementedError


def reject_unknown_params(request: Any, *known: str) -> None:
    for name in request.query_params:
        if name not in known:
            raise InvalidRequestField(parsing.short_repr(name)[1:-1], "is no parameter of this address")


def find_or_404(rows: QuerySet, what: str, **key: Any) -> Any:
    """The one row, or 404: whether it does not exist or is not yours is the same answer."""
    row = rows.filter(**key).first()
    if row is None:
        raise NotFound(f"You have no {what} {' '.join(str(value) for value in key.values())}.")
    return row


def lock_unchanged_row(request: Any, shape: ResourceShape, look: Callable[[], Any]) -> Any:
    """The row as it stays until the commit; If-Match is held against it. Who may not see it locks nothing."""
    there = look()
    list(type(there).objects.select_for_update().filter(pk=there.pk).values("pk"))
    row = look()
    etags.check_if_match(request, shape.show(row), shape.observed)
    return row


def current_row_response(shape: ResourceShape, row: Any) -> Response:
    """After a change, under the tag that a look at it would have."""
    shown = shape.show(row)
    return Response(shown, headers={"ETag": etags.etag(shown, shape.observed)})


class UnknownPathEndpoint(ApiEndpoint):
    """The rest of the addresses, so that even a wrong one answers in JSON, and to nobody without credentials."""

    http_method_names = ["get", "head", "post", "put", "patch", "delete", "options"]

    def check_permissions(self, request: Any) -> None:
        if request.user is None or not request.user.is_authenticated:
            self.permission_denied(request)
        raise NotFound(f"There is nothing at {request.path[:200]}; addresses end in a slash.")
