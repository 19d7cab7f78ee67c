from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from acmeweb.common import env
from acmeweb.services.prepare import collect_static, prepare_instance


class Command(BaseCommand):
    help = "Apply migrations, collect static files, and fill a new database. Safe to run repeatedly and in parallel."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--static-only", action="store_true", help="skip the database; used to build an image")

    def handle(self, *args: Any, static_only: bool, **options: Any) -> None:
        if static_only:
            return collect_static()
        environment = env.load()
        self.stdout.write(
            prepare_instance(environment.text("ACME_ADMIN_PASSWORD"), environment.flag("DEMO", True), self.stdout.write)
        )
