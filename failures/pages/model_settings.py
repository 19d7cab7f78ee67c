"""Settings of the language model for failures: the configured endpoint, and a test of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from django.contrib.auth.decorators import permission_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_http_methods

from acmeweb.common import http_client
from failures.agent import endpoint_settings
from failures.agent.answers import VoteResult
from failures.agent.model_client import Agent, ModelEndpoint
from jobs.models import clock

MAX_CALL_S = 30  # the user waits for the page
# An invented failure in the format of a bundle
EXAMPLE_BUNDLE = (
    "@1 | node-1: step 120 loss 2.31\n"
    "@7 | node-1: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 12.00 GiB\n"
    "@9 x8 | node-1: exit code 1\n"
)


@dataclass(frozen=True, kw_only=True)
class ModelTestResult:
    outcome: VoteResult
    seconds: float


@require_http_methods(["GET", "HEAD", "POST"])
@permission_required("jobs.operate_cluster", raise_exception=True)
def model_settings_page(request: HttpRequest) -> HttpResponse:
    endpoint = endpoint_settings.endpoint_from_settings()
    tried = _test_model(endpoint) if request.method == "POST" and endpoint.configured else None
    context = {"now": clock.now(), "endpoint": endpoint, "test_result": tried}
    return render(request, "settings/model.html", context)


def _test_model(endpoint: ModelEndpoint) -> ModelTestResult:
    """The answer of the model to the example. Requests a single vote to keep the cost low."""
    single_vote = replace(
        endpoint, votes=1, call_s=min(endpoint.call_s, MAX_CALL_S), budget_s=min(endpoint.budget_s, MAX_CALL_S)
    )
    began = time.monotonic()
    with http_client.new_client() as client:
        outcome = Agent(single_vote, client).failure(EXAMPLE_BUNDLE)
    return ModelTestResult(outcome=outcome, seconds=time.monotonic() - began)
