"""Test the configured language model with a small invented failure: check that it responds in the expected format."""

from __future__ import annotations

import time
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from acmeweb.common import http_client
from failures.agent.endpoint_settings import endpoint_from_settings
from failures.agent.model_client import Agent

EXAMPLE_BUNDLE = (
    "@1 | [rank0]: iteration 120 | lm loss: 2.1\n"
    "@2 | [rank3]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    "@3 | [rank0]: NCCL watchdog: a peer is gone\n"
    "@4 | srun: error: task 3: Exited with exit code 1\n"
)


class Command(BaseCommand):
    help = __doc__
    requires_system_checks: list[str] = []
    requires_migrations_checks = False

    def handle(self, *_: Any, **__: Any) -> None:
        endpoint = endpoint_from_settings()
        if not endpoint.configured:
            raise CommandError("No model is configured. Set ACME_AGENT_URL and ACME_AGENT_MODEL.")
        began = time.monotonic()
        with http_client.new_client() as client:
            outcome = Agent(endpoint, client).failure(EXAMPLE_BUNDLE)
        seconds = time.monotonic() - began
        for error in outcome.errors:
            self.stdout.write(f"  {error}")
        if not outcome.root_cause:
            raise CommandError(f"{endpoint.model} at {endpoint.url} returned no usable answer in {seconds:.1f} s.")
        self.stdout.write(
            f"{endpoint.model} answered {outcome.root_cause}, {outcome.votes} of {outcome.calls} votes, lines "
            f"{', '.join(map(str, outcome.lines))}, in {seconds:.1f} s."
        )
        if outcome.root_cause != "ECCError":
            self.stdout.write("The expected answer is ECCError. This model is weak at the task.")
