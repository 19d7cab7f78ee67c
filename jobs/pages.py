"""A page and its fragments: one view, one context, two sizes of answer."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.cache import patch_cache_control, patch_vary_headers

from jobs.models import Cluster
from jobs.readers import BadSpec, moment

MOST_WORDS = 1000
MOST_EVENTS = 100  # of a job or a node, the newest; a page shows no more


def answer(
    request: HttpRequest, page: str, context: Mapping[str, Any], fragments: Mapping[str, str] | None = None
) -> HttpResponse:
    """The page, or the one fragment that htmx wants to replace (`HX-Target: section#queue`).

    Values of the context may be functions: a template calls what it shows, so a fragment costs only its own queries.
    """
    wanted = request.headers.get("HX-Target", "").partition("#")[2] if "HX-Request" in request.headers else ""
    response = render(request, (fragments or {}).get(wanted, page), dict(context))
    # The same address has two answers; without this the Back button could show a fragment as a page
    patch_vary_headers(response, ["HX-Request", "HX-Target"])
    patch_cache_control(response, private=True, no_cache=True)
    return response


def said(request: HttpRequest, field: str = "why") -> str:
    """Free words of a person, as the database can keep them: a browser sends no NUL, but whoever is not one may."""
    return request.POST.get(field, "").replace("\0", "\ufffd").strip()[:MOST_WORDS]


def cluster_asked(request: HttpRequest) -> tuple[list[Cluster], Cluster | None]:
    """All there are, and the one in the address, or the first."""
    clusters, wanted = list(Cluster.objects.all()), request.GET.get("cluster", "")
    found = next((one for one in clusters if one.name == wanted), None)
    if wanted and found is None:
        raise Http404("no such cluster")
    return clusters, found or (clusters[0] if clusters else None)


def moment_asked(request: HttpRequest, since: datetime, now: datetime) -> datetime | None:
    """`at` of the address, which has come already and of which there is still something known; None: now."""
    if not (written := request.GET.get("at", "")):
        return None
    at = moment("at", written)
    if at > now:
        raise BadSpec("at", f"{written[:40]!r} has not come yet")
    if at < since:
        raise BadSpec("at", f"{written[:40]!r} is before {since:%Y-%m-%d %H:%M:%S} UTC, where what is known begins")
    return at
