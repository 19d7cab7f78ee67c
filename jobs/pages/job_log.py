"""The log of a job: the tab with search, the lines that it loads while the user scrolls, and the raw file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import urlencode

from django.http import Http404, HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.utils.cache import patch_cache_control
from django.views.decorators.http import require_safe

from jobs.logs import job_log, log_chunks, log_search
from jobs.logs.log_chunks import LogChunk
from jobs.logs.log_search import LineFilter, LogRow, SearchHits
from jobs.logs.log_source import LogSource
from jobs.models import Attempt, Job
from jobs.pages.job_tabs import LOG
from jobs.pages.jobs import JOB_FRAGMENTS, job_context, visible_job
from jobs.web.page import PageQuery, bad_request, digits_reader, render_page

OFFSET_READER, RANK_READER = digits_reader(15), digits_reader(6)  # an offset is a byte or a line number
LEVEL_LABELS = {"error": "Errors", "warning": "Errors and warnings"}
MISSING_LOG = "The log file does not exist. The job wrote none, or it has been deleted."
CONTEXT_LINES = ["0", "2", "5", "20"]


@dataclass(frozen=True, kw_only=True)
class LogPosition:
    """What the user asked to see: search results, a line, an offset, or (empty) the end of the log."""

    wanted: LineFilter
    context: int
    line: int | None
    at: int | None

    @classmethod
    def of(cls, address: PageQuery) -> LogPosition:
        return cls(
            wanted=LineFilter(
                text=address.text("find"),
                rank=address.read("rank", RANK_READER),
                level=address.choice_value("level", list(LEVEL_LABELS)),
            ),
            context=int(address.choice_value("context", CONTEXT_LINES, CONTEXT_LINES[0])),
            line=address.read("line", OFFSET_READER),
            at=address.read("at", OFFSET_READER),
        )

    @property
    def is_end(self) -> bool:
        return not self.wanted and self.line is None and self.at is None

    @property
    def search_query(self) -> str:
        """The parameters that repeat the search from another offset."""
        wanted = self.wanted
        values = {"find": wanted.text, "rank": wanted.rank, "level": wanted.level, "context": self.context}
        return urlencode({name: value for name, value in values.items() if value not in ("", None)})


class LogPanel:
    """The log tab of an attempt. The log is read when the template uses it."""

    def __init__(self, job: Job, attempt: Attempt | None, position: LogPosition) -> None:
        self.job, self.attempt, self.position = job, attempt, position
        self.grows = bool(attempt and not attempt.ended_at)
        self.opens_at = "end" if position.is_end else "start" if position.line is None else "hit"

    @property
    def url(self) -> str:
        """The end of this log."""
        page = reverse("log", args=[self.job.public_id])
        return f"{page}?attempt={self.attempt.number}" if self.attempt else page

    @cached_property
    def content(self) -> LogChunk | SearchHits | str:
        """What the position shows, or a sentence why the log cannot be shown."""
        if self.attempt is None:
            return "The job has not started yet."
        try:
            return _read_log(self.job.cluster.log_source(self.attempt.log_path), self.position)
        except job_log.LogNotCreated as error:
            return MISSING_LOG if self.attempt.ended_at else str(error)
        except job_log.LogReadError as error:
            return str(error)

    @property
    def chunk(self) -> LogChunk | None:
        return self.content if isinstance(self.content, LogChunk) else None

    @property
    def hits(self) -> SearchHits | None:
        return self.content if isinstance(self.content, SearchHits) else None

    @property
    def no_log(self) -> str:
        return self.content if isinstance(self.content, str) else ""

    @property
    def hit_groups(self) -> list[list[tuple[LogRow, list[tuple[str, bool]]]]]:
        """The rows of the search results, with their text in (part, matches the searched text)."""
        text = self.position.wanted.text
        groups = self.hits.groups if self.hits else []
        return [[(row, _split_at_matches(row.text, text)) for row in group] for group in groups]


def _split_at_matches(line: str, text: str) -> list[tuple[str, bool]]:
    # With a group in the pattern, every second part is a match
    parts = re.split(f"({re.escape(text)})", line, flags=re.IGNORECASE) if text else [line]
    return [(part, bool(index % 2)) for index, part in enumerate(parts)]


def _read_log(source: LogSource, position: LogPosition) -> LogChunk | SearchHits:
    if position.wanted:
        return log_search.search(source, position.wanted, position.at or 0, position.context)
    if position.line is not None:
        return log_chunks.chunk_around_line(source, position.line)
    if position.at is not None:
        return log_chunks.number_lines(source, log_chunks.chunk_at(source, position.at))
    return log_chunks.number_lines(source, log_chunks.chunk_before(source))


@require_safe
def job_log_page(request: HttpRequest, public_id: str) -> HttpResponse:
    row = visible_job(request, public_id)
    address = PageQuery(request.GET)
    panel = LogPanel(row, _requested_attempt(request.GET, row), LogPosition.of(address))
    labels = {"level_labels": LEVEL_LABELS, "context_lines": CONTEXT_LINES}
    context = job_context(request, row, LOG) | {"log": panel} | labels
    return render_page(request, "jobs/job.html", context, JOB_FRAGMENTS | {"log": "jobs/_log.html"}, address.wrong)


def _requested_attempt(params: Mapping[str, str], row: Job) -> Attempt | None:
    """The attempt with the number in `?attempt=`, or the newest; None if there is no attempt yet."""
    number = params.get("attempt", "")
    if not number:
        return row.attempts.order_by("-number").first()
    if not number.isdecimal() or len(number) > 5:
        raise Http404("unknown attempt")
    return get_object_or_404(row.attempts, number=int(number))


@require_safe
def log_lines(request: HttpRequest, public_id: str) -> HttpResponse:
    """A part of the log as JSON: from byte `at`, up to byte `before`, or the end of the log.

    `number`, the number of the first line, is included on request because the lines before it must be counted.
    The response is not compressed (BREACH): text chosen by one person may stand beside text that others must not see.
    """
    row = visible_job(request, public_id)
    attempt = _requested_attempt(request.GET, row)
    if attempt is None:
        raise Http404("the job has not started yet")
    address = PageQuery(request.GET)
    at, before = (address.read(name, OFFSET_READER) for name in ("at", "before"))
    if address.wrong:
        return bad_request(address.wrong)
    source = row.cluster.log_source(attempt.log_path)
    try:
        part = log_chunks.chunk_before(source, before) if at is None else log_chunks.chunk_at(source, at)
        if "numbered" in request.GET:
            part = log_chunks.number_lines(source, part)
    except job_log.StorageUnresponsive:
        raise  # acmeweb.error_pages answers with 503
    except job_log.LogReadError as error:
        raise Http404(str(error)) from None
    payload: dict[str, Any] = {
        name: getattr(part, name) for name in ("lines", "start", "stop", "size", "whole", "number")
    }
    response = JsonResponse(payload, json_dumps_params={"separators": (",", ":"), "ensure_ascii": False})
    patch_cache_control(response, private=True, no_store=True)
    return response


@require_safe
def download_log(request: HttpRequest, public_id: str) -> HttpResponse | StreamingHttpResponse:
    """The raw log file as a download. A browser must never render a job's output as a page of this site."""
    row = visible_job(request, public_id)
    attempt = _requested_attempt(request.GET, row)
    if attempt is None:
        raise Http404("the job has not started yet")
    try:
        stream = job_log.LogStream(row.cluster.log_source(attempt.log_path))
    except job_log.StorageUnresponsive:
        raise  # acmeweb.error_pages answers with 503
    except job_log.LogReadError as error:
        raise Http404(str(error)) from None
    response = StreamingHttpResponse(stream, content_type="text/plain; charset=utf-8")
    response["Content-Length"] = str(stream.size)
    response["Content-Disposition"] = f'attachment; filename="{attempt.key}.log"'
    response["X-Content-Type-Options"] = "nosniff"
    return response
