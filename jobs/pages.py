"""A page and its fragments: one view, one context, two sizes of answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest
from django.shortcuts import render
from django.utils.cache import patch_cache_control, patch_vary_headers

from jobs.display_text import cleaned
from jobs.models import Cluster
from jobs.readers import BadSpec, Reader, bad, moment, one_of, short

MOST_WORDS = 1000
LONGEST_WORD = 200  # of an address
MOST_EVENTS = 100  # of a job or a node, the newest; a page shows no more


def answer(
    request: HttpRequest,
    page: str,
    context: Mapping[str, Any],
    fragments: Mapping[str, str] | None = None,
    wrong: Sequence[BadSpec] = (),
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


class Address:
    """What the address of a page asks for, word by word.

    A word that cannot be is left out and kept in `wrong`: the page says so above what the rest of the address finds. An
    answer that has no room for a sentence is refused with it (`refused`).
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        self.given = given
        self.wrong: list[BadSpec] = []

    def text(self, name: str, most: int = LONGEST_WORD) -> str:
        """PostgreSQL takes no NUL."""
        return self.given.get(name, "").replace("\0", "").strip()[:most]

    def read(self, name: str, reader: Reader, usual: Any = None) -> Any:
        if not (written := self.text(name)):
            return usual
        try:
            return reader(name, written)
        except BadSpec as wrong:
            self.wrong.append(wrong)
            return usual

    def one_of(self, name: str, choices: Sequence[str], usual: str = "") -> str:
        found: str = self.read(name, one_of(choices), usual)
        return found


def refused(wrong: Sequence[BadSpec]) -> HttpResponse:
    """For answers that are no page."""
    words = "\n".join(map(str, wrong))
    return HttpResponseBadRequest(words, content_type="text/plain; charset=utf-8")


def digits(most: int) -> Reader:
    """Of up to so many digits, from 0 on: the place of a row in its list, of a byte in its file."""

    def read(name: str, written: str) -> int:
        if not (written.isascii() and written.isdecimal() and len(written) <= most):
            bad(name, f"{short(written)} is no whole number of up to {most} digits")
        return int(written)

    return read


PLACE = digits(18)  # a key of the database


def said(request: HttpRequest, field: str = "why") -> str:
    """Free words of a person, without control characters (PostgreSQL stores no NUL, terminals obey the others)."""
    return cleaned(request.POST.get(field, "")[: 2 * MOST_WORDS]).strip()[:MOST_WORDS]


def cluster_name(name: str, written: str) -> str:
    if not Cluster.objects.filter(name=written).exists():
        bad(name, f"{short(written)} is no cluster that is known here")
    return written


def cluster_asked(address: Address) -> tuple[list[Cluster], Cluster | None]:
    """All there are, and the one in the address, or the first."""
    clusters, wanted = list(Cluster.objects.all()), address.read("cluster", cluster_name)
    found = next((one for one in clusters if one.name == wanted), None)
    return clusters, found or (clusters[0] if clusters else None)


def moment_since(since: datetime, now: datetime) -> Reader:
    """That has come already, and of which there is still something known."""

    def read(name: str, written: str) -> datetime:
        at = moment(name, written)
        if at > now:
            bad(name, f"{written[:40]!r} has not come yet")
        if at < since:
            bad(name, f"{written[:40]!r} is before {since:%Y-%m-%d %H:%M:%S} UTC, where what is known begins")
        return at

    return read
