"""Diagnose why a job failed from its log. Needs neither database nor server; `-` reads standard input."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from failures.diagnosis import commandline
from failures.diagnosis.values import ExitStatus


class Command(BaseCommand):
    help = __doc__
    requires_system_checks: list[str] = []  # runs without a database
    requires_migrations_checks = False

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("files", nargs="+", metavar="FILE", help="log, compressed or not; - for standard input")
        parser.add_argument("--exit-code", type=int, help="exit code of the process, if known")
        parser.add_argument("--signal", type=commandline.signal_number, help="signal number or name, if known")
        parser.add_argument("--json", action="store_true", help="print one JSON object per line and file, in order")

    def handle(self, *, files: list[str], exit_code: int | None, signal: int | None, json: bool, **_: Any) -> None:
        unreadable = 0
        for text, readable in commandline.diagnose_files(files, ExitStatus(exit_code=exit_code, signal=signal), json):
            self.stdout.write(text)
            unreadable += not readable
        if unreadable:
            raise CommandError(f"{unreadable} of {len(files)} files could not be read.")
