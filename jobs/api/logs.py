"""What a job printed: the bytes as they are, any part of them, and a stream of what is added."""

from __future__ import annotations

import re
from typing import Any

from django.core.handlers.asgi import ASGIRequest
from django.http import StreamingHttpResponse
from django.http.response import HttpResponseBase
from rest_framework.exceptions import APIException, NotFound
from rest_framework.response import Response

from jobs.api import log_stream
from jobs.core import parsing
from jobs.logs.job_log import LogReadError, LogStream, StorageUnresponsive
from jobs.models import Attempt, TokenScope
from jobs.rest.endpoint import ApiEndpoint, find_or_404, reject_unknown_params
from jobs.rest.errors import InvalidRequestField
from jobs.rest.permissions import EndpointRule

MAX_TAIL_LINES = 100_000
RANGE_PATTERN = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)
TAIL_PATTERN = re.compile(r"(\d{1,18})(lines)?", re.ASCII)

ATTEMPT_PARAM = {"attempt": ({"type": "integer", "minimum": 1, "maximum": 32767}, "Its number; else the newest.")}


class LogUnavailable(APIException):
    """The file system of the logs does not answer."""

    status_code = 503
    wait = 10


class AttemptLogEndpoint(ApiEndpoint):
    def attempt(self, id: str) -> Attempt:
        """The one asked for by its number, or the newest."""
        job = find_or_404(self.caller.jobs().only("id", "public_id"), "job", public_id=id)
        rows = job.attempts.select_related("job__cluster").order_by("-number")
        asked = single_query_value(self.request, "attempt")
        attempt = (
            rows.first() if asked is None else rows.filter(number=_parse_integer("attempt", asked, 1, 32767)).first()
        )
        if attempt is None:
            raise NotFound("It has not started yet." if asked is None else f"{id} has no attempt {int(asked)}.")
        return attempt


class JobLog(AttemptLogEndpoint):
    """What it printed."""

    tag = "Logs"
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ,
            says="What a job printed, as it is; or a part of it",
            team=True,
            media="text/plain",
            query={
                **ATTEMPT_PARAM,
                "tail": (
                    {"type": "string", "pattern": "^[0-9]{1,18}(lines)?$"},
                    "The last so many bytes, or `100lines`; X-Log-Offset says where they begin.",
                ),
            },
            headers={"Range": "bytes=FIRST-LAST, bytes=FIRST- or bytes=-COUNT."},
            also={206: "The part that Range asked for.", 416: "The log has no such bytes; Content-Range has its size."},
        )
    }

    def get(self, request: Any, id: str) -> HttpResponseBase:
        reject_unknown_params(request, "attempt", "tail")
        attempt = self.attempt(id)
        tail = single_query_value(request, "tail")
        wanted = request.headers.get("Range")
        if tail is not None and wanted is not None:
            raise InvalidRequestField("tail", "cannot be together with the header Range")
        try:
            stream = LogStream(attempt.job.cluster.log_root, attempt.log_path)
            return self._log_response(stream, attempt, tail, wanted)
        except StorageUnresponsive as silent:
            raise LogUnavailable(str(silent)) from None
        except LogReadError as nothing:
            raise NotFound(str(nothing)) from None

    def _log_response(
        self, stream: LogStream, attempt: Attempt, tail: str | None, wanted: str | None
    ) -> HttpResponseBase:
        if tail is not None:
            stream.cut(_tail_offset(stream, tail), stream.size)
        # Without a validator of ours, If-Range can never match: the whole is the right answer then
        part = None if wanted is None or "If-Range" in self.request.headers else _parse_byte_range(wanted, stream.size)
        if part is not None:
            if part[0] >= part[1]:
                return _range_not_satisfiable(wanted, stream.size)
            stream.cut(*part)
        return _streaming_response(self.request, stream, attempt, 206 if part else 200)


def _range_not_satisfiable(wanted: Any, size: int) -> Response:
    why = {"Range": [f"{parsing.short_repr(wanted)} is not in the log, which has {size} bytes"]}
    return Response(why, status=416, headers={"Content-Range": f"bytes */{size}"})


def _streaming_response(request: Any, stream: LogStream, attempt: Attempt, status: int) -> StreamingHttpResponse:
    chunks = stream if isinstance(request._request, ASGIRequest) else stream.sync_chunks()
    answer = StreamingHttpResponse(chunks, status=status, content_type="text/plain; charset=utf-8")
    answer["Content-Length"] = str(stream.stop - stream.start)
    answer["Accept-Ranges"] = "bytes"
    answer["X-Content-Type-Options"] = "nosniff"
    answer["Content-Disposition"] = f'attachment; filename="{attempt.key}.log"'
    answer["Cache-Control"] = "no-store, no-transform"
    answer["X-Log-Offset"] = str(stream.start)
    answer["X-Log-Attempt"] = str(attempt.number)
    if status == 206:
        answer["Content-Range"] = f"bytes {stream.start}-{stream.stop - 1}/{stream.size}"
    return answer


def _tail_offset(stream: LogStream, asked: str) -> int:
    match = TAIL_PATTERN.fullmatch(asked)
    if match is None:
        raise InvalidRequestField(
            "tail", f"{parsing.short_repr(asked)} is neither a number of bytes nor of lines, as in 100lines"
        )
    count = int(match[1])
    if not match[2]:
        return max(0, stream.size - count)
    if not 0 <= count <= MAX_TAIL_LINES:
        raise InvalidRequestField("tail", f"asks for {count} lines; at most {MAX_TAIL_LINES} are allowed")
    return stream.last_lines_start(count) if count else stream.size


def _parse_byte_range(wanted: str, size: int) -> tuple[int, int] | None:
    """From and up to; empty when the log has no such bytes. None: no range that we know, and the whole is answered."""
    match = RANGE_PATTERN.fullmatch(wanted.replace(" ", ""))
    if match is None or match[1] == match[2] == "":
        return None
    if not match[1]:
        return max(0, size - int(match[2])), size
    first = int(match[1])
    if match[2] and int(match[2]) < first:
        return None
    return first, min(size, int(match[2]) + 1) if match[2] else size


class FollowJobLog(AttemptLogEndpoint):
    """What it prints, as it comes."""

    tag = "Logs"
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ,
            says="What a job prints, as it comes: server-sent events that resume with Last-Event-ID",
            team=True,
            media="text/event-stream",
            query={
                **ATTEMPT_PARAM,
                "offset": (
                    {"type": "integer", "minimum": 0, "maximum": 2**62},
                    "Begin at this byte; else at the first.",
                ),
            },
            headers={"Last-Event-ID": "The id of the last event that arrived: a byte offset. It wins over `offset`."},
        )
    }

    def get(self, request: Any, id: str) -> HttpResponseBase:
        reject_unknown_params(request, "attempt", "offset")
        attempt = self.attempt(id)
        offset = single_query_value(request, "offset")
        at = _parse_integer("offset", offset, 0, 2**62) if offset is not None else 0
        if last := request.headers.get("Last-Event-ID"):
            at = _parse_integer("Last-Event-ID", last, 0, 2**62)
        wish = log_stream.LogStreamRequest(
            root=attempt.job.cluster.log_root,
            path=attempt.log_path,
            attempt_id=attempt.pk,
            number=attempt.number,
            offset=at,
        )
        return log_stream.stream_response(request._request, wish)


def single_query_value(request: Any, name: str) -> str | None:
    values = request.query_params.getlist(name)
    if len(values) > 1:
        raise InvalidRequestField(name, "is given more than once")
    return values[0] if values else None


def _parse_integer(name: str, text: str, low: int, high: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise InvalidRequestField(name, f"{parsing.short_repr(text)} is no whole number")
    return parsing.integer_reader(low, high)(name, int(text))
