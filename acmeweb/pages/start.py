"""The panel "Start here": where each role begins. Shown on the home page until the user dismisses it."""

from __future__ import annotations

from dataclasses import dataclass

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_POST

DISMISSED_COOKIE = "acme_start_dismissed"
REMEMBERED_FOR_S = 365 * 24 * 3600


@dataclass(frozen=True)
class StartLink:
    title: str
    detail: str
    route: str
    suffix: str = ""  # query or fragment

    @property
    def url(self) -> str:
        return reverse(self.route) + self.suffix


@dataclass(frozen=True)
class StartRole:
    name: str
    goal: str
    links: tuple[StartLink, ...]


START_ROLES = (
    StartRole(
        "Researcher",
        "Run jobs and find out why they wait or fail.",
        (
            StartLink("Submit a job", "with a form, or acme submit", "submit"),
            StartLink("Your jobs", "state, loss, log and cause of failure", "jobs", "?mine=1"),
            StartLink("Diagnose a log", "paste any log to see its cause", "paste-log"),
        ),
    ),
    StartRole(
        "Operator",
        "Keep the nodes healthy and the queue moving.",
        (
            StartLink("Failures", "open incidents and their cost", "failures"),
            StartLink("Nodes", "drain, test and resume", "nodes"),
            StartLink("Queue", "order, drains, maintenance and policy", "queue"),
        ),
    ),
    StartRole(
        "Capacity lead",
        "See where GPU-hours go, and try changes.",
        (
            StartLink("Reports", "goodput, idle GPUs and cost by team", "reports"),
            StartLink("What if", "replay your jobs under other policies", "replays"),
            StartLink("Quotas", "who owns, uses and borrows GPUs", "queue", "#quotas"),
        ),
    ),
    StartRole(
        "Program author",
        "Submit jobs and read results from programs.",
        (
            StartLink("Create a token", "with a scope and an expiry date", "account", "#new-token"),
            StartLink("API reference", "an example for each request", "api-docs"),
            StartLink("OpenAPI schema", "to generate a client", "api-schema"),
        ),
    ),
)


def start_roles(request: HttpRequest) -> tuple[StartRole, ...]:
    """Return what the home page offers for a start; nothing once the user has dismissed it."""
    return () if DISMISSED_COOKIE in request.COOKIES else START_ROLES


@require_POST
def dismiss_start(request: HttpRequest) -> HttpResponse:
    """Hide the panel in this browser. The glossary still shows it."""
    response = redirect("home")
    response.set_cookie(
        DISMISSED_COOKIE,
        "1",
        max_age=REMEMBERED_FOR_S,
        secure=settings.SESSION_COOKIE_SECURE,
        httponly=True,
        samesite="Lax",
    )
    return response
