"""What is answered when something was raised that nobody caught: not whatever Django would say.

Every connection to the database busy, or the database away, is no defect of ours: 503, and when to come back. The API
has its own answer to that (`jobs.door.errors`); here are the pages, and what fails before or beside a view.
"""

from __future__ import annotations

import sys

from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template import loader

from jobs.door.errors import AWAY_S, Unavailable

FAILED = "The server failed; nothing was done. Its log says more under the id in X-Request-ID."


def answer(request: HttpRequest) -> HttpResponse:
    """Django's `handler500`: called while the error is being handled. Asks the database nothing."""
    away = isinstance(sys.exc_info()[1], OperationalError | InterfaceError)
    status, said = (503, Unavailable.default_detail) if away else (500, FAILED)
    headers = {"Retry-After": str(AWAY_S)} if away else {}
    if request.path.startswith("/api/"):
        return JsonResponse({"detail": said}, status=status, headers=headers)
    return HttpResponse(loader.get_template(f"{status}.html").render(), status=status, headers=headers)
