"""What is answered when something was raised that nobody caught: not whatever Django would say.

Every connection to the database busy, or the database away, is no defect of ours: 503, and when to come back. The API
has its own answer to that (`jobs.rest.errors`); here are the pages, and what fails before or beside a view.
"""

from __future__ import annotations

import sys

from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template import loader

from jobs.logs.storage import StorageUnresponsive
from jobs.rest.errors import UNAVAILABLE_RETRY_S, DatabaseUnavailable, to_api_exception

SERVER_ERROR_MESSAGE = "The server failed; nothing was done. Its log says more under the id in X-Request-ID."


def server_error(request: HttpRequest) -> HttpResponse:
    """Django's `handler500`: called while the error is being handled. Asks the database nothing."""
    error = sys.exc_info()[1]
    away = isinstance(error, OperationalError | InterfaceError | StorageUnresponsive)
    status, said = (503, _unavailable_message(error)) if away else (500, SERVER_ERROR_MESSAGE)
    headers = {"Retry-After": str(UNAVAILABLE_RETRY_S)} if away else {}
    if request.path.startswith("/api/"):
        return JsonResponse({"detail": said}, status=status, headers=headers)
    page = loader.get_template(f"{status}.html").render({"said": said})
    return HttpResponse(page, status=status, headers=headers)


def _unavailable_message(error: object) -> str:
    """A statement that was stopped, and log storage that is silent, are other things than a database that is away."""
    if isinstance(error, StorageUnresponsive):
        return str(error)
    refusal = to_api_exception(error) if isinstance(error, Exception) else None
    return refusal.default_detail if isinstance(refusal, DatabaseUnavailable) else DatabaseUnavailable.default_detail
