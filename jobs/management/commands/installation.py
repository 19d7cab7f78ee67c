"""Show the identity under which this Acme submits jobs, or give a copy of a database an identity of its own.

manage.py installation                  print the id
manage.py installation --new-identity   for a copy: jobs of the original are then those of another installation
"""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from jobs.models import Attempt, Installation
from jobs.models.installation import new_installation_id


class Command(BaseCommand):
    help = "Show the identity under which this Acme submits jobs, or make a new one for a copy of a database."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--new-identity",
            action="store_true",
            help="Only on a copy of a database, before its workers start.",
        )
        parser.add_argument("--yes", action="store_true", help="Do not ask.")

    def handle(self, **given: Any) -> None:
        if given["new_identity"]:
            self._create_new_identity(given["yes"])
        self.stdout.write(Installation.current_id())

    def _create_new_identity(self, sure: bool) -> None:
        running = Attempt.objects.live().filter(job__foreign_id="").count()
        if not sure:
            raise CommandError(f"{running} running attempts will belong to another installation; confirm with --yes.")
        Installation.objects.update_or_create(only=True, defaults={"id_on_clusters": new_installation_id()})
