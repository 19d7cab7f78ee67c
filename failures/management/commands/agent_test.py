"""Ask the configured model about one small invented failure: does it answer, in the form that is asked for?"""

from __future__ import annotations

import time
from typing import Any

import httpx
from django.core.management.base import BaseCommand, CommandError

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
        where = endpoint_from_settings()
        if not where.configured:
            raise CommandError("No model is configured: set ACME_AGENT_URL and ACME_AGENT_MODEL.")
        began = time.monotonic()
        with httpx.Client() as client:
            outcome = Agent(where, client).failure(EXAMPLE_BUNDLE)
        took = time.monotonic() - began
        for trouble in outcome.troubles:
            self.stdout.write(f"  {trouble}")
        if not outcome.root_cause:
            raise CommandError(f"{where.model} at {where.url} gave no usable answer in {took:.1f} s.")
        self.stdout.write(
            f"{where.model} answers: {outcome.root_cause}, {outcome.votes} of {outcome.asked} votes, lines "
            f"{', '.join(map(str, outcome.lines))}, in {took:.1f} s."
        )
        if outcome.root_cause != "ECCError":
            self.stdout.write("The right answer is ECCError: this model is weak at the task.")
