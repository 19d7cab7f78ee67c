"""What a job printed: the bytes as they are, any part of them, and a stream of what is added."""

from __future__ import annotations

import re
from typing import Any

from django.core.handlers.asgi import ASGIRequest
from django.http import StreamingHttpResponse
from django.http.response import HttpResponseBase
from rest_framework.exceptions import APIException, NotFound
from rest_framework.response import Response

from jobs import readers
from jobs.api import following
from jobs.door.endpoint import Endpoint, found, refuse_unknown
from jobs.door.errors import BadField
from jobs.door.rights import Rule
from jobs.logs import NoLog, StorageSilent, Stream
from jobs.models import Attempt, Scope

MOST_TAIL_LINES = 100_000
RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)
TAIL = re.compile(r"(\d{1,18})(lines)?", re.ASCII)

ATTEMPT = {"attempt": ({"type": "integer", "minimum": 1, "maximum": 32767}, "Its number; else the newest.")}


class LogUnavailable(APIException):
    """The file system of the logs does not answer."""

    status_code = 503
    wait = 10


class OfLog(Endpoint):
    def attempt(self, id: str) -> Attempt:
        """The one asked for by its number, or the newest."""
        job = found(self.caller.jobs().only("id", "public_id"), "job", public_id=id)
        rows = job.attempts.select_related("job__cluster").order_by("-number")
        asked = single(self.request, "attempt")
        attempt = rows.first() if asked is None else rows.filter(number=_whole("attempt", asked, 1, 32767)).first()
        if attempt is None:
            raise NotFound("It has not started yet." if asked is None else f"{id} has no attempt {int(asked)}.")
        return attempt


class JobLog(OfLog):
    """What it printed."""

    tag = "Logs"
    rules = {
        "GET": Rule(
            scope=Scope.READ,
            says="What a job printed, as it is; or a part of it",
            team=True,
            media="text/plain",
            query={
                **ATTEMPT,
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
        refuse_unknown(request, "attempt", "tail")
        attempt = self.attempt(id)
        tail = single(request, "tail")
        wanted = request.headers.get("Range")
        if tail is not None and wanted is not None:
            raise BadField("tail", "cannot be together with the header Range")
        try:
            stream = Stream(attempt.job.cluster.log_root, attempt.log_path)
            return self._answer(stream, attempt, tail, wanted)
        except StorageSilent as silent:
            raise LogUnavailable(str(silent)) from None
        except NoLog as nothing:
            raise NotFound(str(nothing)) from None

    def _answer(self, stream: Stream, attempt: Attempt, tail: str | None, wanted: str | None) -> HttpResponseBase:
        if tail is not None:
            stream.cut(_tail(stream, tail), stream.size)
        # Without a validator of ours, If-Range can never match: the whole is the right answer then
        part = None if wanted is None or "If-Range" in self.request.headers else _part(wanted, stream.size)
        if part is not None:
            if part[0] >= part[1]:
                return _no_such_part(wanted, stream.size)
            stream.cut(*part)
        return _streamed(self.request, stream, attempt, 206 if part else 200)


def _no_such_part(wanted: Any, size: int) -> Response:
    why = {"Range": [f"{readers.short(wanted)} is not in the log, which has {size} bytes"]}
    return Response(why, status=416, headers={"Content-Range": f"bytes */{size}"})


def _streamed(request: Any, stream: Stream, attempt: Attempt, status: int) -> StreamingHttpResponse:
    chunks = stream if isinstance(request._request, ASGIRequest) else stream.in_turn()
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


def _tail(stream: Stream, asked: str) -> int:
    match = TAIL.fullmatch(asked)
    if match is None:
        raise BadField("tail", f"{readers.short(asked)} is neither a number of bytes nor of lines, as in 100lines")
    count = int(match[1])
    if not match[2]:
        return max(0, stream.size - count)
    if not 0 <= count <= MOST_TAIL_LINES:
        raise BadField("tail", f"asks for {count} lines; at most {MOST_TAIL_LINES} are allowed")
    return stream.last_lines(count) if count else stream.size


def _part(wanted: str, size: int) -> tuple[int, int] | None:
    """From and up to; empty when the log has no such bytes. None: no range that we know, and the whole is answered."""
    match = RANGE.fullmatch(wanted.replace(" ", ""))
    if match is None or match[1] == match[2] == "":
        return None
    if not match[1]:
        return max(0, size - int(match[2])), size
    first = int(match[1])
    if match[2] and int(match[2]) < first:
        return None
    return first, min(size, int(match[2]) + 1) if match[2] else size


class FollowJobLog(OfLog):
    """What it prints, as it comes."""

    tag = "Logs"
    rules = {
        "GET": Rule(
            scope=Scope.READ,
            says="What a job prints, as it comes: server-sent events that resume with Last-Event-ID",
            team=True,
            media="text/event-stream",
            query={
                **ATTEMPT,
                "offset": (
                    {"type": "integer", "minimum": 0, "maximum": 2**62},
                    "Begin at this byte; else at the first.",
                ),
            },
            headers={"Last-Event-ID": "The id of the last event that arrived: a byte offset. It wins over `offset`."},
        )
    }

    def get(self, request: Any, id: str) -> HttpResponseBase:
        refuse_unknown(request, "attempt", "offset")
        attempt = self.attempt(id)
        offset = single(request, "offset")
        at = _whole("offset", offset, 0, 2**62) if offset is not None else 0
        if last := request.headers.get("Last-Event-ID"):
            at = _whole("Last-Event-ID", last, 0, 2**62)
        wish = following.Wish(
            root=attempt.job.cluster.log_root,
            path=attempt.log_path,
            attempt_id=attempt.pk,
            number=attempt.number,
            offset=at,
        )
        return following.answer(request._request, wish)


def single(request: Any, name: str) -> str | None:
    values = request.query_params.getlist(name)
    if len(values) > 1:
        raise BadField(name, "is given more than once")
    return values[0] if values else None


def _whole(name: str, text: str, low: int, high: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise BadField(name, f"{readers.short(text)} is no whole number")
    return readers.whole(low, high)(name, int(text))
