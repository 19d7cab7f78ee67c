"""The model endpoint from the Django settings."""

from __future__ import annotations

from django.conf import settings

from failures.agent.model_client import ModelEndpoint


def endpoint_from_settings() -> ModelEndpoint:
    return ModelEndpoint(
        url=settings.ACME_AGENT_URL,
        model=settings.ACME_AGENT_MODEL,
        key=settings.ACME_AGENT_KEY,
        votes=settings.ACME_AGENT_VOTES,
        call_s=settings.ACME_AGENT_TIMEOUT_S,
        budget_s=settings.ACME_AGENT_BUDGET_S,
        budget_cost=settings.ACME_AGENT_BUDGET_CENTS / 100,
        price_in=settings.ACME_AGENT_CENTS_IN / 100,
        price_out=settings.ACME_AGENT_CENTS_OUT / 100,
    )
