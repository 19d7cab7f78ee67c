"""The page Health: what is late, what failed, and what waits. Every page asks for the sentences about what is late."""

from __future__ import annotations

import time

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from acmeweb.loops.health import Health, backlogs, database_connections, read_health, recent_failures
from acmeweb.updates.web_load import read_web_load
from jobs.models import clock
from jobs.web.page import render_page

SHARED_FOR_S = 2.0  # every open page asks every half minute


class SharedHealth:
    """The health that this process read last, for pages that only need to know what is late."""

    def __init__(self) -> None:
        self.health: Health | None = None
        self.until = 0.0

    def forget(self) -> None:
        self.health = None

    def get(self) -> Health:
        if self.health is None or time.monotonic() >= self.until:
            self.health, self.until = read_health(clock.now()), time.monotonic() + SHARED_FOR_S
        return self.health


shared_health = SharedHealth()


@require_safe
def health_page(request: HttpRequest) -> HttpResponse:
    now = clock.now()
    used, most = database_connections()
    context = {
        "now": now,
        "health": read_health(now),
        "backlogs": backlogs(now),
        "failures": recent_failures(now) if _sees_errors(request) else None,
        "connections": used,
        "max_connections": most,
        "web": read_web_load(),
    }
    return render_page(request, "health.html", context, {"health": "_health.html"})


@require_safe
def late_fragment(request: HttpRequest) -> HttpResponse:
    """What is late on the page whose URL name is `page`."""
    page = request.GET.get("page", "")[:50]
    return render(request, "_late.html", {"page": page, "late": shared_health.get().sentences(page)})


def _sees_errors(request: HttpRequest) -> bool:
    """Errors may name jobs of any team."""
    return request.user.has_perm("jobs.operate_cluster")
