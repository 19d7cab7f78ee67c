"""Diagnoses log files given on a command line. The only module of this package that opens files.

`manage.py diagnose` and `acme diagnose` use it. A file that cannot be read gets an error sentence instead of a result.
"""

from __future__ import annotations

import signal as signals
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import BinaryIO

from . import engine, wording
from .labels import UNKNOWN
from .values import ExitStatus, LogDiagnosis

CHUNK_BYTES = 1 << 20


def diagnose_files(files: Iterable[str], ending: ExitStatus, as_json: bool) -> Iterator[tuple[str, bool]]:
    """(text to print, whether the file was read) for each file, in order, as soon as it is known."""
    for name in files:
        diagnosis, error = diagnose_file(name, ending)
        if as_json:
            yield wording.as_json(name, diagnosis), not error
        else:
            yield error or wording.as_text(name, diagnosis) + "\n", not error


def diagnose_file(name: str, ending: ExitStatus) -> tuple[LogDiagnosis, str]:
    """The diagnosis, and an error sentence if the file is missing, unreadable or not a text file."""
    try:
        diagnosis = engine.diagnose(_read_chunks(name), ending)
    except OSError as error:
        sentence = f"{name} cannot be read: {error.strerror or error}."
        return replace(engine.diagnose([], ending), notes=(sentence,)), sentence
    nothing_read = diagnosis.root_cause == UNKNOWN and diagnosis.size and not diagnosis.lines
    return diagnosis, f"{name}: {diagnosis.notes[0]}" if nothing_read else ""


def _read_chunks(name: str) -> Iterator[bytes]:
    if name == "-":
        yield from _iter_chunks(sys.stdin.buffer)
        return
    with open(name, "rb") as file:
        yield from _iter_chunks(file)


def _iter_chunks(file: BinaryIO) -> Iterator[bytes]:
    while piece := file.read(CHUNK_BYTES):
        yield piece


def signal_number(text: str) -> int:
    """The number of a signal given as 9, KILL or SIGKILL."""
    if text.isdigit() and 0 < int(text) < 65:
        return int(text)
    name = text.upper() if text.upper().startswith("SIG") else f"SIG{text.upper()}"
    try:
        return int(signals.Signals[name])
    except KeyError:
        raise ValueError(f"{text!r} is not a signal. Use a number or a name such as 9, KILL or SIGKILL.") from None
