"""A page and its fragments: one view, one context, two sizes of answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest
from django.shortcuts import render
from django.utils.cache import patch_cache_control, patch_vary_headers

from jobs.core.display_text import strip_control_characters
from jobs.core.parsing import FieldReader, InvalidField, choice_reader, raise_invalid_field, read_timestamp, short_repr
from jobs.models import Cluster

MAX_TEXT_LENGTH = 1000
MAX_PARAM_LENGTH = 200  # of an address
MAX_EVENTS = 100  # of a job or a node, the newest; a page shows no more


def render_page(
    request: HttpRequest,
    page: str,
    context: Mapping[str, Any],
    fragments: Mapping[str, str] | None = None,
    wrong: Sequence[InvalidField] = (),
) -> HttpResponse:
    """The page, or the one fragment that htmx wants to replace (`HX-Target: section#queue`).

    Values of the context may be functions: a template calls what it shows, so a fragment costs only its own queries.
    What is `wrong` with the address stands above the page; to its fragments that was said already.
    """
    wanted = request.headers.get("HX-Target", "").partition("#")[2] if "HX-Request" in request.headers else ""
    fragment = (fragments or {}).get(wanted)
    response = render(
        request, fragment or page, {"wrong": wrong, **context}, status=400 if wrong and not fragment else 200
    )
    # The same address has two answers; without this the Back button could show a fragment as a page
    patch_vary_headers(response, ["HX-Request", "HX-Target"])
    patch_cache_control(response, private=True, no_cache=True)
    return response


class PageQuery:
    """What the address of a page asks for, word by word.

    A word that cannot be is left out and kept in `wrong`: the page says so above what the rest of the address finds. An
    answer that has no room for a sentence is refused with it (`refused`).
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        self.given = given
        self.wrong: list[InvalidField] = []

    def text(self, name: str, most: int = MAX_PARAM_LENGTH) -> str:
        """PostgreSQL takes no NUL."""
        return self.given.get(name, "").replace("\0", "").strip()[:most]

    def read(self, name: str, reader: FieldReader, usual: Any = None) -> Any:
        if not (written := self.text(name)):
            return usual
        try:
            return reader(name, written)
        except InvalidField as wrong:
            self.wrong.append(wrong)
            return usual

    def choice_value(self, name: str, choices: Sequence[str], usual: str = "") -> str:
        found: str = self.read(name, choice_reader(choices), usual)
        return found


def bad_request(wrong: Sequence[InvalidField]) -> HttpResponse:
    """For answers that are no page."""
    words = "\n".join(map(str, wrong))
    return HttpResponseBadRequest(words, content_type="text/plain; charset=utf-8")


def digits_reader(most: int) -> FieldReader:
    """Of up to so many digits, from 0 on: the place of a row in its list, of a byte in its file."""

    def read_digits(name: str, written: str) -> int:
        if not (written.isascii() and written.isdecimal() and len(written) <= most):
            raise_invalid_field(name, f"{short_repr(written)} is no whole number of up to {most} digits")
        return int(written)

    return read_digits


POSITION_READER = digits_reader(18)  # a key of the database


def posted_text(request: HttpRequest, field: str = "why") -> str:
    """Free words of a person, without control characters (PostgreSQL stores no NUL, terminals obey the others)."""
    return strip_control_characters(request.POST.get(field, "")[: 2 * MAX_TEXT_LENGTH]).strip()[:MAX_TEXT_LENGTH]


def read_cluster_name(name: str, written: str) -> str:
    if not Cluster.objects.filter(name=written).exists():
        raise_invalid_field(name, f"{short_repr(written)} is no cluster that is known here")
    return written


def requested_cluster(address: PageQuery) -> tuple[list[Cluster], Cluster | None]:
    """All there are, and the one in the address, or the first."""
    clusters, wanted = list(Cluster.objects.all()), address.read("cluster", read_cluster_name)
    found = next((one for one in clusters if one.name == wanted), None)
    return clusters, found or (clusters[0] if clusters else None)


def datetime_reader_since(since: datetime, now: datetime) -> FieldReader:
    """That has come already, and of which there is still something known."""

    def read_past_datetime(name: str, written: str) -> datetime:
        at = read_timestamp(name, written)
        if at > now:
            raise_invalid_field(name, f"{written[:40]!r} has not come yet")
        if at < since:
            raise_invalid_field(
                name, f"{written[:40]!r} is before {since:%Y-%m-%d %H:%M:%S} UTC, where what is known begins"
            )
        return at

    return read_past_datetime
