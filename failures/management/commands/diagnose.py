"""Say why a job failed, from its log alone. Needs no database and no server; `-` reads standard input."""

from __future__ import annotations

import signal as signals
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, BinaryIO

from django.core.management.base import BaseCommand, CommandError, CommandParser

from failures.diagnosis import engine, wording
from failures.diagnosis.values import Diagnosis, Ending

CHUNK = 1 << 20


class Command(BaseCommand):
    help = __doc__
    requires_system_checks: list[str] = []  # no database, no server: a log is all it takes
    requires_migrations_checks = False

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("files", nargs="+", metavar="FILE", help="logs to read; - is standard input")
        parser.add_argument("--exit-code", type=int, help="exit code of the process, where known")
        parser.add_argument("--signal", type=signal_number, help="signal that ended it: a number or a name")
        parser.add_argument("--json", action="store_true", help="one JSON object per file and line, in order")

    def handle(self, *, files: list[str], exit_code: int | None, signal: int | None, json: bool, **_: Any) -> None:
        ending = Ending(exit_code=exit_code, signal=signal)
        unread = 0
        for name in files:
            diagnosis, read = diagnosed(name, ending)
            unread += not read
            self.stdout.write(wording.as_json(name, diagnosis) if json else wording.as_text(name, diagnosis) + "\n")
        if unread:
            raise CommandError(f"{unread} of {len(files)} files could not be read")


def diagnosed(name: str, ending: Ending) -> tuple[Diagnosis, bool]:
    """A file that cannot be read gets its sentence in the place of its answer; the others are still read."""
    try:
        return engine.diagnose(_chunks(name), ending), True
    except OSError as trouble:
        sentence = f"{name} cannot be read: {trouble.strerror or trouble}."
        return replace(engine.diagnose([], ending), notes=(sentence,)), False


def _chunks(name: str) -> Iterator[bytes]:
    if name == "-":
        yield from _pieces(sys.stdin.buffer)
        return
    with open(name, "rb") as file:
        yield from _pieces(file)


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    while piece := file.read(CHUNK):
        yield piece


def signal_number(text: str) -> int:
    """9, KILL and SIGKILL are one signal."""
    if text.isdigit() and 0 < int(text) < 65:
        return int(text)
    name = text.upper() if text.upper().startswith("SIG") else f"SIG{text.upper()}"
    try:
        return int(signals.Signals[name])
    except KeyError:
        raise ValueError(f"{text!r} is no signal such as 9, KILL or SIGKILL") from None
