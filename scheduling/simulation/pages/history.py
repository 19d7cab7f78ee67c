"""The progress of the simulated history on the home page of a demo."""

from __future__ import annotations

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.template.loader import render_to_string
from django.utils.cache import patch_cache_control
from django.views.decorators.http import require_safe

from scheduling.simulation.demo.history import progress, write

TEMPLATE = "simulation/_history_progress.html"


@require_safe
def history_progress(request: HttpRequest) -> HttpResponse:
    """A fragment that replaces itself until the history is written."""
    response = render(request, TEMPLATE, {"history": _history_state()})
    patch_cache_control(response, private=True, no_cache=True)
    return response


def demo_progress(request: HttpRequest, _: None) -> str:
    """The fragment for the home page; empty unless this is a demo."""
    return render_to_string(TEMPLATE, {"history": _history_state()}, request) if settings.IS_DEMO else ""


def _history_state() -> dict[str, int | bool]:
    """Return whether the history is being written or was finished minutes ago, and how far it is."""
    share = progress.stored_share()
    awaits = share is None and settings.IS_DEMO and bool(settings.DEMO_HISTORY_DAYS) and write.can_have_history()
    return {
        "days": settings.DEMO_HISTORY_DAYS,
        "percent": round(100 * (share or 0)),
        "is_running": awaits or (share is not None and share < 1),
        "is_new": share == 1,
    }
