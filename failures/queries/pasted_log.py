"""Limits for logs that users paste into the page or send to the API."""

from __future__ import annotations

from django.http import HttpRequest

from jobs.rest.throttle import PerUserThrottle

MAX_PASTED_BYTES = 8 * 1024 * 1024
MAX_PASTES_PER_MINUTE = 30


class PasteThrottle(PerUserThrottle):
    """The rate limit, shared by the page and the API."""

    name = "diagnose:"
    most = MAX_PASTES_PER_MINUTE


def may_paste(request: HttpRequest) -> bool:
    return bool(PasteThrottle().allow_request(request, None))
