"""Entry point of the diagnosis: log chunks and an exit status in, a LogDiagnosis out. Pure, and without Django.

The client package contains a copy of this directory under another name. Imports inside it are therefore relative, and
it depends only on the standard library and the scanner (and zstd if it is installed).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from . import classify, reader, unpacking
from .scan import Scanner
from .values import ExitStatus, LogDiagnosis


def diagnose(chunks: Iterable[bytes], ending: ExitStatus | None = None, scanner: Scanner | None = None) -> LogDiagnosis:
    """The diagnosis of a log. It does not depend on how the text is cut into chunks or whether it is compressed.

    `scanner` replaces the shipped rules, for example by the shipped and the learned ones.
    """
    text = unpacking.DecompressedLog(chunks)
    reading = reader.read_log(text, scanner)
    if text.sentence:
        reading = replace(reading, sentence=text.sentence)
    return classify.diagnose_reading(reading, ending)


def diagnose_text(text: str | bytes, ending: ExitStatus | None = None, scanner: Scanner | None = None) -> LogDiagnosis:
    return diagnose([text.encode("utf-8", "replace") if isinstance(text, str) else text], ending, scanner)
