"""Static files: minified, hashed and compressed when they are collected, and served by WhiteNoise under ASGI."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import rcssmin
import rjsmin
from django.http import HttpRequest, HttpResponse
from whitenoise.middleware import WhiteNoiseMiddleware
from whitenoise.storage import CompressedManifestStaticFilesStorage

MINIFIERS: dict[str, Callable[[str], str]] = {".css": rcssmin.cssmin, ".js": rjsmin.jsmin}


def is_minified_here(name: str) -> bool:
    """Return whether we minify the file: a style sheet or script of ours. Packages bring theirs minified or small."""
    return "/" not in name and Path(name).suffix in MINIFIERS


class MinifiedStaticFilesStorage(CompressedManifestStaticFilesStorage):
    """Minifies our style sheets and scripts, then hashes all files and adds a compressed version of each."""

    def post_process(self, paths: dict[str, Any], dry_run: bool = False, **options: Any) -> Iterator[Any]:
        if not dry_run:
            for name in filter(is_minified_here, paths):
                source, path = paths[name]
                with source.open(path) as file:
                    text = file.read().decode()
                Path(self.path(name)).write_text(MINIFIERS[Path(name).suffix](text))
                paths[name] = (self, name)
        yield from super().post_process(paths, dry_run=dry_run, **options)


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
