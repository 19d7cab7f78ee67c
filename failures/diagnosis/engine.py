"""The door to the diagnosis: text in pieces, and how it ended, in; a Diagnosis out. Pure, and free of Django.

The client package carries this directory as it is, under a name of its own: so imports inside it are relative, and it
needs the standard library and the scanner, nothing else (zstd where it is installed).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from . import classify, reader, unpacking
from .scan import Scanner
from .values import ExitStatus, LogDiagnosis


def diagnose(chunks: Iterable[bytes], ending: ExitStatus | None = None, scanner: Scanner | None = None) -> LogDiagnosis:
    """The same text and ending give the same answer, however the text is cut, and packed or not.

    `scanner` holds other rules than the shipped ones: those and what was learned.
    """
    text = unpacking.DecompressedLog(chunks)
    reading = reader.read_log(text, scanner)
    if text.sentence:
        reading = replace(reading, sentence=text.sentence)
    return classify.diagnose_reading(reading, ending)


def diagnose_text(text: str | bytes, ending: ExitStatus | None = None, scanner: Scanner | None = None) -> LogDiagnosis:
    return diagnose([text.encode("utf-8", "replace") if isinstance(text, str) else text], ending, scanner)
