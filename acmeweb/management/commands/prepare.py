from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from acmeweb.common import env
from acmeweb.services.prepare import collect_static, prepare_instance


class Command(BaseCommand):
    help = "Bring the schema and the static files up to date; fill a new database. Safe to run twice and at once."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--static-only", action="store_true", help="no database: for building an image")

    def handle(self, *args: Any, static_only: bool, **options: Any) -> None:
        if static_only:
            return collect_static()
        asked = env.load()
        self.stdout.write(
            prepare_instance(asked.text("ACME_ADMIN_PASSWORD"), asked.flag("DEMO", True), self.stdout.write)
        )
