"""Write all Events to standard output as lines of JSON, oldest first."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from acmeweb.common.errors import InvalidField
from jobs.core.parsing import read_timestamp
from jobs.queries.event_export import exported_lines


class Command(BaseCommand):
    help = "Write all events as lines of JSON, oldest first. docs/administrator.md describes them."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--after", type=int, default=0, help="Only events after this id.")
        parser.add_argument("--since", help="Only events at this time or later, such as 2026-01-31T00:00:00Z.")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            since = read_timestamp("since", options["since"]) if options["since"] else None
        except InvalidField as error:
            raise CommandError(str(error)) from None
        for lines in exported_lines(options["after"], since):
            self.stdout.write(lines, ending="")
