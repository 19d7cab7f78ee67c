"""Responses to uncaught exceptions, in place of Django's.

An exhausted connection pool or an unavailable database is not a defect of Acme: the response is 503 with Retry-After.
The API handles its own errors (`jobs.rest.errors`); this covers pages, and errors before or outside of a view.
"""

from __future__ import annotations

import sys

from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template import loader

from jobs.logs.storage import StorageUnresponsive
from jobs.rest.errors import DATABASE_UNAVAILABLE, UNAVAILABLE_RETRY_S, RequestFailed, to_api_exception

SERVER_ERROR_MESSAGE = "Internal server error. Nothing was changed. The server log has details under the X-Request-ID."


def server_error(request: HttpRequest) -> HttpResponse:
    """Django's `handler500`: called while the exception is being handled. It does not use the database."""
    error = sys.exc_info()[1]
    unavailable = isinstance(error, OperationalError | InterfaceError | StorageUnresponsive)
    status, detail = (503, _unavailable_message(error)) if unavailable else (500, SERVER_ERROR_MESSAGE)
    headers = {"Retry-After": str(UNAVAILABLE_RETRY_S)} if unavailable else {}
    if request.path.startswith("/api/"):
        return JsonResponse({"detail": detail}, status=status, headers=headers)
    page = loader.get_template(f"{status}.html").render({"detail": detail})
    return HttpResponse(page, status=status, headers=headers)


def _unavailable_message(error: object) -> str:
    """Return the message. A cancelled statement and unresponsive log storage differ from an unavailable database."""
    if isinstance(error, StorageUnresponsive):
        return str(error)
    refusal = to_api_exception(error) if isinstance(error, Exception) else None
    if isinstance(refusal, RequestFailed) and refusal.status_code == 503:
        return str(refusal.detail)
    return DATABASE_UNAVAILABLE
