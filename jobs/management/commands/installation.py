"""Print the id under which this Acme installation submits jobs, or create a new id for a copy of a database.

manage.py installation                  print the id
manage.py installation --new-identity   for a copy: its running jobs then belong to another installation, the original
"""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from jobs.models import Attempt, Installation
from jobs.models.installation import new_installation_id


class Command(BaseCommand):
    help = "Print the id under which this Acme submits jobs, or create a new id for a copy of a database."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--new-identity",
            action="store_true",
            help="Create a new id. Use this only on a copy of a database, before its workers start.",
        )
        parser.add_argument("--yes", action="store_true", help="Confirm --new-identity.")

    def handle(self, **options: Any) -> None:
        if options["new_identity"]:
            self._create_new_identity(options["yes"])
        self.stdout.write(Installation.current_id())

    def _create_new_identity(self, confirmed: bool) -> None:
        running = Attempt.objects.live().filter(job__foreign_id="").count()
        if not confirmed:
            raise CommandError(f"{running} running attempts will belong to another installation. Confirm with --yes.")
        Installation.objects.update_or_create(only=True, defaults={"id_on_clusters": new_installation_id()})
