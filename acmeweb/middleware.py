"""What every request and answer carries: an id, which the Events of the request keep too, and a content policy.
And what the log says of an answer.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Awaitable, Callable
from copy import copy

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.core.exceptions import BadRequest
from django.http import HttpRequest, HttpResponse

CONTENT_SECURITY_POLICY = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)
# A caller may bring an id of its own; anything that could break a header or a log line is replaced by ours.
REQUEST_ID_PATTERN = re.compile(r"[A-Za-z0-9._:-]{1,64}")


def request_id(request: HttpRequest) -> str:
    given = request.headers.get("X-Request-ID", "")
    return given if REQUEST_ID_PATTERN.fullmatch(given) else uuid.uuid4().hex


class RequestLogFormatter(logging.Formatter):
    """Of an answer, a line says under which id it went out. One below 500 was meant, and brings no traceback."""

    def format(self, record: logging.LogRecord) -> str:
        told = copy(record)
        if getattr(record, "status_code", 500) < 500:
            told.exc_info = told.exc_text = None
        if id := getattr(getattr(record, "request", None), "acme_id", ""):
            told.msg, told.args = f"{record.getMessage()} [{id}]", None
        return super().format(told)


class RequestMiddleware:
    """The id in every answer, and the policy that lets nothing injected into a page run: all it loads is our own."""

    async_capable = sync_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse | Awaitable[HttpResponse]]) -> None:
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponse | Awaitable[HttpResponse]:
        request.acme_id = request_id(request)  # type: ignore[attr-defined]
        # No text in the database holds a NUL; API and pages deal with it themselves, Django's admin would fail
        if request.path.startswith("/admin/") and "%00" in request.META.get("QUERY_STRING", ""):
            raise BadRequest("A NUL byte in the address")
        if iscoroutinefunction(self):
            return self._later(request)  # type: ignore[attr-defined]
        return self._add_headers(request, self.get_response(request))  # type: ignore[arg-type]

    async def _call_async(self, request: HttpRequest) -> HttpResponse:
        return self._add_headers(request, await self.get_response(request))  # type: ignore[misc]

    def _add_headers(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        response["X-Request-ID"] = request.acme_id  # type: ignore[attr-defined]
        response.setdefault("Content-Security-Policy", CONTENT_SECURITY_POLICY)
        return response
