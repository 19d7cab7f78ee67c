"""WhiteNoise for an asynchronous server."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from whitenoise.middleware import WhiteNoiseMiddleware


class StaticFilesMiddleware(WhiteNoiseMiddleware):
    """Our files are small, so they are answered whole: a file handed over as a synchronous stream would be read in the
    event loop's thread, chunk by chunk, and Django warns of each."""

    @staticmethod
    def serve(static_file: Any, request: HttpRequest) -> HttpResponse:
        found = static_file.get_response(request.method, request.META)
        body = found.file.read() if found.file else b""
        if found.file:
            found.file.close()
        response = HttpResponse(body, status=int(found.status))
        del response["Content-Type"]
        for name, value in found.headers:
            response[name] = value
        return response
