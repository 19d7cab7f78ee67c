"""Say why a job failed, from its log alone. Needs no database and no server; `-` reads standard input."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from failures.diagnosis import commandline
from failures.diagnosis.values import ExitStatus


class Command(BaseCommand):
    help = __doc__
    requires_system_checks: list[str] = []  # no database, no server: a log is all it takes
    requires_migrations_checks = False

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("files", nargs="+", metavar="FILE", help="logs to read, packed or not; - is standard input")
        parser.add_argument("--exit-code", type=int, help="exit code of the process, where known")
        parser.add_argument("--signal", type=commandline.signal_number, help="signal that ended it: a number or a name")
        parser.add_argument("--json", action="store_true", help="one JSON object per file and line, in order")

    def handle(self, *, files: list[str], exit_code: int | None, signal: int | None, json: bool, **_: Any) -> None:
        unread = 0
        for text, read in commandline.diagnose_files(files, ExitStatus(exit_code=exit_code, signal=signal), json):
            self.stdout.write(text)
            unread += not read
        if unread:
            raise CommandError(f"{unread} of {len(files)} files could not be read")
