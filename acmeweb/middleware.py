"""Adds to every request and response an id (also stored in the Events of the request) and a content policy.

Also formats the log lines of responses.
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
from django.http.response import HttpResponseBase
from django.middleware.gzip import GZipMiddleware

CONTENT_SECURITY_POLICY = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)
# Callers may send an id of their own; an id that could break a header or a log line is replaced by ours.
REQUEST_ID_PATTERN = re.compile(r"[A-Za-z0-9._:-]{1,64}")


def request_id(request: HttpRequest) -> str:
    """Return the caller's request id if it is well-formed, otherwise a new one."""
    caller_id = request.headers.get("X-Request-ID", "")
    return caller_id if REQUEST_ID_PATTERN.fullmatch(caller_id) else uuid.uuid4().hex


class RequestLogFormatter(logging.Formatter):
    """Adds the request id to log lines of responses. Responses below 500 are intended and get no traceback."""

    def format(self, record: logging.LogRecord) -> str:
        shown = copy(record)
        if getattr(record, "status_code", 500) < 500:
            shown.exc_info = shown.exc_text = None
        if id := getattr(getattr(record, "request", None), "acme_id", ""):
            shown.msg, shown.args = f"{record.getMessage()} [{id}]", None
        return super().format(shown)


class RequestMiddleware:
    """Adds the request id, and a policy that lets pages load and run only our own files."""

    async_capable = sync_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse | Awaitable[HttpResponse]]) -> None:
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponse | Awaitable[HttpResponse]:
        request.acme_id = request_id(request)  # type: ignore[attr-defined]
        # PostgreSQL text cannot contain NUL. API and pages check for it themselves, Django's admin would fail
        if request.path.startswith("/admin/") and "%00" in request.META.get("QUERY_STRING", ""):
            raise BadRequest("The query string contains a NUL byte.")
        if iscoroutinefunction(self):
            return self._call_async(request)  # type: ignore[attr-defined]
        return self._add_headers(request, self.get_response(request))  # type: ignore[arg-type]

    async def _call_async(self, request: HttpRequest) -> HttpResponse:
        return self._add_headers(request, await self.get_response(request))  # type: ignore[misc]

    def _add_headers(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        response["X-Request-ID"] = request.acme_id  # type: ignore[attr-defined]
        response.setdefault("Content-Security-Policy", CONTENT_SECURITY_POLICY)
        return response


class CompressionMiddleware(GZipMiddleware):
    """Compresses whole responses with gzip. Streams are sent as they are: a compressor would hold back lines of a log.

    Pages contain secrets and text of users, so the compressed size could reveal the secret (BREACH). Django encodes the
    CSRF token differently in each response and varies the compressed size at random; a new API token is shown once. A
    view whose response has both a secret and text from the URL says `may_compress = False`.
    """

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        may_compress = not response.streaming and getattr(response, "may_compress", True)
        return super().process_response(request, response) if may_compress else response
