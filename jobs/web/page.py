"""Rendering pages and their htmx fragments, and reading page parameters."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest, HttpResponseNotModified
from django.shortcuts import render
from django.utils.cache import patch_cache_control, patch_vary_headers

from acmeweb.common.errors import InvalidField, StateConflict
from jobs.core.display_text import strip_control_characters
from jobs.core.parsing import FieldReader, choice_reader, raise_invalid_field, read_timestamp, short_repr
from jobs.models import Cluster

MAX_TEXT_LENGTH = 1000
MAX_PARAM_LENGTH = 200  # characters of a URL parameter
MAX_EVENTS = 100  # newest events that a job's or node's page shows

# What differs in each response and changes nothing: the encoding of the CSRF token, and the texts of times, which
# live.js continues by itself
_CSRF_TOKEN = re.compile(rb'(name="csrfmiddlewaretoken" value=")[^"]*')
_TICKING_TEXT = re.compile(rb"(<time(?: [^>]*)? data-(?:ago|expected|since|started|until)=[^>]*>)[^<]*")


def render_page(
    request: HttpRequest,
    page: str,
    context: Mapping[str, Any],
    fragments: Mapping[str, str] | None = None,
    wrong: Sequence[InvalidField] = (),
) -> HttpResponse:
    """Render the page, or the fragment that htmx replaces (`HX-Target: section#queue`).

    Context values may be functions. A template calls only those it uses, so a fragment runs only its own queries.
    A page shows the errors in `wrong` above its content and is answered with 400. Fragments do not repeat them.
    A fragment that looks the same as the one that the browser shows (`If-None-Match`) is answered with 304.
    """
    target = request.headers.get("HX-Target", "").partition("#")[2] if "HX-Request" in request.headers else ""
    fragment = (fragments or {}).get(target)
    response = render(
        request, fragment or page, {"wrong": wrong, **context}, status=400 if wrong and not fragment else 200
    )
    if fragment:
        response = _unless_shown(request, response)
    # Page and fragment share a URL. Without Vary the Back button could show a cached fragment as a page
    patch_vary_headers(response, ["HX-Request", "HX-Target"])
    patch_cache_control(response, private=True, no_cache=True)
    return response


def _unless_shown(request: HttpRequest, response: HttpResponse) -> HttpResponse:
    """The response with its ETag, or 304 if the browser shows it already."""
    tag = fragment_etag(response.content)
    if request.headers.get("If-None-Match") == tag:
        response = HttpResponseNotModified()
    response["ETag"] = tag
    return response


def fragment_etag(content: bytes) -> str:
    """Return a weak ETag, because responses with the same tag may differ in bytes that nobody sees."""
    visible = _TICKING_TEXT.sub(rb"\1", _CSRF_TOKEN.sub(rb"\1", content))
    return f'W/"{hashlib.sha256(visible).hexdigest()[:24]}"'


class PageQuery:
    """The URL parameters of a page.

    An invalid value is ignored and recorded in `wrong`. A page shows these errors above its content. A response
    without room for them, such as JSON or CSV, is refused with `bad_request`.
    """

    def __init__(self, params: Mapping[str, str]) -> None:
        self.params = params
        self.wrong: list[InvalidField] = []

    def text(self, name: str, most: int = MAX_PARAM_LENGTH) -> str:
        """The stripped value, or "". NUL bytes are removed because PostgreSQL rejects them."""
        return self.params.get(name, "").replace("\0", "").strip()[:most]

    def read(self, name: str, reader: FieldReader, usual: Any = None, most: int = MAX_PARAM_LENGTH) -> Any:
        """The parsed value, or `usual` if the parameter is missing or invalid."""
        if not (text := self.text(name, most)):
            return usual
        try:
            return reader(name, text)
        except InvalidField as wrong:
            self.wrong.append(wrong)
            return usual

    def choice_value(self, name: str, choices: Sequence[str], usual: str = "") -> str:
        value: str = self.read(name, choice_reader(choices), usual)
        return value


def bad_request(wrong: Sequence[InvalidField]) -> HttpResponse:
    """A plain-text 400 with one error per line, for responses that are not pages."""
    lines = "\n".join(map(str, wrong))
    return HttpResponseBadRequest(lines, content_type="text/plain; charset=utf-8")


def digits_reader(most: int) -> FieldReader:
    """A reader of non-negative integers of at most `most` digits, such as row ids and byte offsets."""

    def read_digits(name: str, text: str) -> int:
        if not (text.isascii() and text.isdecimal() and len(text) <= most):
            raise_invalid_field(name, f"{short_repr(text)} is not a whole number of up to {most} digits")
        return int(text)

    return read_digits


POSITION_READER = digits_reader(18)  # a primary key


def posted_text(request: HttpRequest, field: str = "why") -> str:
    """Free text of a form, without control characters: PostgreSQL rejects NUL, terminals interpret the others."""
    return strip_control_characters(request.POST.get(field, "")[: 2 * MAX_TEXT_LENGTH]).strip()[:MAX_TEXT_LENGTH]


def posted_number(request: HttpRequest, field: str, what: str) -> float:
    """A number of a form; `what` names it in the error, with an example."""
    text = request.POST.get(field, "").strip()
    try:
        return float(text)
    except ValueError:
        raise InvalidField(field, f"{text[:40]!r} is not {what}") from None


def show_change(request: HttpRequest, act: Callable[[], str]) -> None:
    """Make a change, which returns its message, and show that or why nothing was changed on the next page."""
    try:
        messages.success(request, act())
    except InvalidField as error:
        messages.error(request, f"Nothing was changed. {error}.")
    except StateConflict as error:
        messages.error(request, f"Nothing was changed. {error}")


def read_cluster_name(name: str, text: str) -> str:
    if not Cluster.objects.filter(name=text).exists():
        raise_invalid_field(name, f"{short_repr(text)} is not a known cluster")
    return text


def requested_cluster(address: PageQuery) -> tuple[list[Cluster], Cluster | None]:
    """All clusters, and the one named in the URL; the first if none is named."""
    clusters, name = list(Cluster.objects.all()), address.read("cluster", read_cluster_name)
    selected = next((cluster for cluster in clusters if cluster.name == name), None)
    return clusters, selected or (clusters[0] if clusters else None)


def datetime_reader_since(since: datetime, now: datetime) -> FieldReader:
    """A reader of times between `since`, where the stored history begins, and `now`."""

    def read_past_datetime(name: str, text: str) -> datetime:
        at = read_timestamp(name, text)
        if at > now:
            raise_invalid_field(name, f"{text[:40]!r} is in the future")
        if at < since:
            raise_invalid_field(name, f"{text[:40]!r} is before the history begins, {since:%Y-%m-%d %H:%M:%S} UTC")
        return at

    return read_past_datetime
