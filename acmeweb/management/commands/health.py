"""manage.py health: which loops are late. The exit code is 1 if any is, for health checks of containers."""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import BaseCommand

from acmeweb.loops.health import read_health
from jobs.models import clock


class Command(BaseCommand):
    help = "Print which loops are late and what that means. The exit code is 1 if any is late."

    def handle(self, *args: Any, **options: Any) -> None:
        health = read_health(clock.now())
        for row in health.late:
            self.stdout.write(row.sentence)
        if not health.loops:
            self.stdout.write("No loop has run yet. Are the workers running?")
        if health.late or not health.loops:
            sys.exit(1)
        self.stdout.write(f"All {len(health.loops)} loops run in time.")
