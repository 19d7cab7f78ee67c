"""WhiteNoise for an ASGI server."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from whitenoise.middleware import WhiteNoiseMiddleware


class StaticFilesMiddleware(WhiteNoiseMiddleware):
    """Sends files whole. They are small, and a synchronous stream would be read in the event loop's thread, chunk by
    chunk, with a Django warning each time."""

    @staticmethod
    def serve(static_file: Any, request: HttpRequest) -> HttpResponse:
        response_parts = static_file.get_response(request.method, request.META)
        body = response_parts.file.read() if response_parts.file else b""
        if response_parts.file:
            response_parts.file.close()
        response = HttpResponse(body, status=int(response_parts.status))
        del response["Content-Type"]
        for name, value in response_parts.headers:
            response[name] = value
        return response
