"""Settings of the model that is asked about failures: what is configured, and whether it answers."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import httpx
from django.contrib.auth.decorators import permission_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_http_methods

from failures.agent import configured
from failures.agent.answers import Outcome
from failures.agent.asking import Agent, Endpoint
from jobs import clock

MOST_S = 30  # somebody waits for the page
# An invented failure, in the shape of a bundle
EXAMPLE = (
    "@1 | node-1: step 120 loss 2.31\n"
    "@7 | node-1: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 12.00 GiB\n"
    "@9 x8 | node-1: exit code 1\n"
)


@dataclass(frozen=True, kw_only=True)
class Tried:
    outcome: Outcome
    seconds: float


@require_http_methods(["GET", "HEAD", "POST"])
@permission_required("jobs.operate_cluster", raise_exception=True)
def model(request: HttpRequest) -> HttpResponse:
    endpoint = configured.endpoint()
    tried = _tried(endpoint) if request.method == "POST" and endpoint.configured else None
    context = {"now": clock.now(), "endpoint": endpoint, "tried": tried}
    return render(request, "settings/model.html", context)


def _tried(endpoint: Endpoint) -> Tried:
    """One vote, so that it costs as little as a question can."""
    once = replace(endpoint, votes=1, call_s=min(endpoint.call_s, MOST_S), budget_s=min(endpoint.budget_s, MOST_S))
    began = time.monotonic()
    with httpx.Client() as client:
        outcome = Agent(once, client).failure(EXAMPLE)
    return Tried(outcome=outcome, seconds=time.monotonic() - began)
