"""Job logs in the API: the raw bytes, byte ranges, the last lines, and a live stream."""

from __future__ import annotations

import re
from typing import Any

from django.http import StreamingHttpResponse
from django.http.response import HttpResponseBase
from rest_framework.exceptions import NotFound
from rest_framework.response import Response

from acmeweb.common.errors import InvalidField
from jobs.api import log_stream
from jobs.core import parsing
from jobs.logs.job_log import LogReadError, LogStream, StorageUnresponsive
from jobs.models import Attempt, TokenScope
from jobs.rest.endpoint import ApiEndpoint, find_job_or_404, reject_unknown_params
from jobs.rest.errors import RequestFailed
from jobs.rest.permissions import EndpointRule
from jobs.rest.streaming import is_asgi

MAX_TAIL_LINES = 100_000
RANGE_PATTERN = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)
TAIL_PATTERN = re.compile(r"(\d{1,18})(lines)?", re.ASCII)

ATTEMPT_PARAM = {
    "attempt": ({"type": "integer", "minimum": 1, "maximum": 32767}, "Attempt number. Default: the newest.")
}


STORAGE_RETRY_S = 10


class AttemptLogEndpoint(ApiEndpoint):
    def attempt(self, id: str) -> Attempt:
        """The attempt with the number in `?attempt=`, or the newest; 404 if there is none."""
        job = find_job_or_404(self.caller.jobs().only("id", "public_id"), id)
        rows = job.attempts.select_related("job__cluster").order_by("-number")
        text = single_query_value(self.request, "attempt")
        attempt = (
            rows.first() if text is None else rows.filter(number=_parse_integer("attempt", text, 1, 32767)).first()
        )
        if attempt is None:
            raise NotFound("The job has not started yet." if text is None else f"{id} has no attempt {int(text)}.")
        return attempt


class JobLog(AttemptLogEndpoint):
    """Get the log of a job."""

    tag = "Logs"
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ,
            says="Get the log of a job, or a part of it, as raw bytes",
            team=True,
            media="text/plain",
            query={
                **ATTEMPT_PARAM,
                "tail": (
                    {"type": "string", "pattern": "^[0-9]{1,18}(lines)?$"},
                    "Number of bytes or lines (`100lines`) from the end. X-Log-Offset says where they begin.",
                ),
            },
            headers={"Range": "bytes=FIRST-LAST, bytes=FIRST- or bytes=-COUNT."},
            also={
                206: "The requested range.",
                416: "The range is outside of the log. Content-Range has the size of the log.",
            },
        )
    }

    def get(self, request: Any, id: str) -> HttpResponseBase:
        reject_unknown_params(request, "attempt", "tail")
        attempt = self.attempt(id)
        tail = single_query_value(request, "tail")
        range_header = request.headers.get("Range")
        if tail is not None and range_header is not None:
            raise InvalidField("tail", "cannot be combined with the header Range")
        try:
            stream = LogStream(attempt.log_source)
            return self._log_response(stream, attempt, tail, range_header)
        except StorageUnresponsive as error:
            raise RequestFailed(503, str(error), STORAGE_RETRY_S) from None
        except LogReadError as error:
            raise NotFound(str(error)) from None

    def _log_response(
        self, stream: LogStream, attempt: Attempt, tail: str | None, range_header: str | None
    ) -> HttpResponseBase:
        if tail is not None:
            stream.cut(_tail_offset(stream, tail), stream.size)
        # Logs have no ETag, so If-Range never matches and the whole log is the correct response
        ignored = range_header is None or "If-Range" in self.request.headers
        part = None if ignored else _parse_byte_range(str(range_header), stream.size)
        if part is not None:
            if part[0] >= part[1]:
                return _range_not_satisfiable(range_header, stream.size)
            stream.cut(*part)
        return _streaming_response(self.request, stream, attempt, 206 if part else 200)


def _range_not_satisfiable(range_header: Any, size: int) -> Response:
    why = {"Range": [f"{parsing.short_repr(range_header)} is outside of the log, which has {size} bytes"]}
    return Response(why, status=416, headers={"Content-Range": f"bytes */{size}"})


def _streaming_response(request: Any, stream: LogStream, attempt: Attempt, status: int) -> StreamingHttpResponse:
    chunks = stream if is_asgi(request._request) else stream.sync_chunks()
    response = StreamingHttpResponse(chunks, status=status, content_type="text/plain; charset=utf-8")
    response["Content-Length"] = str(stream.stop - stream.start)
    response["Accept-Ranges"] = "bytes"
    response["X-Content-Type-Options"] = "nosniff"
    response["Content-Disposition"] = f'attachment; filename="{attempt.key}.log"'
    response["Cache-Control"] = "no-store, no-transform"
    response["X-Log-Offset"] = str(stream.start)
    response["X-Log-Attempt"] = str(attempt.number)
    if status == 206:
        response["Content-Range"] = f"bytes {stream.start}-{stream.stop - 1}/{stream.size}"
    return response


def _tail_offset(stream: LogStream, text: str) -> int:
    """The byte at which the requested tail begins."""
    match = TAIL_PATTERN.fullmatch(text)
    if match is None:
        raise InvalidField("tail", f"{parsing.short_repr(text)} is not a number of bytes, or of lines as in 100lines")
    count = int(match[1])
    if not match[2]:
        return max(0, stream.size - count)
    if not 0 <= count <= MAX_TAIL_LINES:
        raise InvalidField("tail", f"requests {count} lines; at most {MAX_TAIL_LINES} are allowed")
    return stream.last_lines_start(count) if count else stream.size


def _parse_byte_range(range_header: str, size: int) -> tuple[int, int] | None:
    """Start and stop of the range, empty if it is outside of the log; None for a header to ignore (RFC 9110)."""
    match = RANGE_PATTERN.fullmatch(range_header.replace(" ", ""))
    if match is None or match[1] == match[2] == "":
        return None
    if not match[1]:
        return max(0, size - int(match[2])), size
    first = int(match[1])
    if match[2] and int(match[2]) < first:
        return None
    return first, min(size, int(match[2]) + 1) if match[2] else size


class FollowJobLog(AttemptLogEndpoint):
    """Stream the log of a job."""

    tag = "Logs"
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ,
            says="Stream the log of a job as server-sent events that resume with Last-Event-ID",
            team=True,
            media="text/event-stream",
            media_schema=log_stream.EVENT_SCHEMA,
            query={
                **ATTEMPT_PARAM,
                "offset": (
                    {"type": "integer", "minimum": 0, "maximum": 2**62},
                    "Byte to start at. Default: 0.",
                ),
            },
            headers={"Last-Event-ID": "Id of the last received event, a byte offset. Overrides `offset`."},
        )
    }

    def get(self, request: Any, id: str) -> HttpResponseBase:
        reject_unknown_params(request, "attempt", "offset")
        attempt = self.attempt(id)
        offset = single_query_value(request, "offset")
        at = _parse_integer("offset", offset, 0, 2**62) if offset is not None else 0
        if last := request.headers.get("Last-Event-ID"):
            at = _parse_integer("Last-Event-ID", last, 0, 2**62)
        stream = log_stream.LogStreamRequest(
            source=attempt.log_source,
            attempt_id=attempt.pk,
            number=attempt.number,
            offset=at,
        )
        return log_stream.stream_response(request._request, stream)


def single_query_value(request: Any, name: str) -> str | None:
    values = request.query_params.getlist(name)
    if len(values) > 1:
        raise InvalidField(name, "is given more than once")
    return values[0] if values else None


def _parse_integer(name: str, text: str, low: int, high: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise InvalidField(name, f"{parsing.short_repr(text)} is not a whole number")
    return parsing.integer_reader(low, high)(name, int(text))
