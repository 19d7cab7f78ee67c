"""manage.py health: which loops are late. Exit codes: 0 none, 2 some, 1 no loop runs at all."""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import BaseCommand

from acmeweb.loops.health import read_health
from jobs.models import clock

EXIT_CODES = {"ok": 0, "late": 2, "down": 1}


class Command(BaseCommand):
    help = "Print which loops are late and what that means. Exit codes: 0 none is late, 2 some are, 1 no loop runs."

    def handle(self, *args: Any, **options: Any) -> None:
        health = read_health(clock.now())
        for sentence in health.sentences() or [f"All {len(health.loops)} loops run in time."]:
            self.stdout.write(sentence)
        if health.status != "ok":
            sys.exit(EXIT_CODES[health.status])
