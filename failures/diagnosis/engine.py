"""The door to the diagnosis: text in pieces, and how it ended, in; a Diagnosis out. Pure, and free of Django.

A client package can carry this directory as it is; it needs the standard library and the scanner, nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from failures.diagnosis import classify, reader, unpacking
from failures.diagnosis.values import Diagnosis, Ending


def diagnose(chunks: Iterable[bytes], ending: Ending | None = None) -> Diagnosis:
    """The same text and ending give the same answer, however the text is cut, and packed or not."""
    text = unpacking.Unpacked(chunks)
    reading = reader.read(text)
    if text.sentence:
        reading = replace(reading, sentence=text.sentence)
    return classify.diagnose(reading, ending)


def diagnose_text(text: str | bytes, ending: Ending | None = None) -> Diagnosis:
    return diagnose([text.encode("utf-8", "replace") if isinstance(text, str) else text], ending)
