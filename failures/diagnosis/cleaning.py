"""Bytes as they come → bytes that patterns can read. Pure.

Colours, NULs and carriage returns are folded without touching a newline, so line numbers stay those of the file.
"""

from __future__ import annotations

import re

try:
    import numpy
except ImportError:  # the client goes without
    numpy = None  # type: ignore[assignment]

ANSI_ESCAPE = re.compile(
    rb"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b\n]{0,200}(?:\x07|\x1b\\)|[()][A-Z0-9]|[=>78cDEHMZ])"
)
SAMPLE_BYTES = 65536
MAGIC_NUMBERS: tuple[tuple[bytes, str], ...] = (
    (b"PK\x03\x04", "a zip archive"), (b"PK\x05\x06", "an empty zip archive"), (b"\x1f\x8b", "a gzip file"),
    (b"BZh", "a bzip2 file"), (b"\xfd7zXZ\x00", "an xz file"), (b"\x28\xb5\x2f\xfd", "a zstd file"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive"), (b"\x7fELF", "a program"), (b"\x89PNG", "a picture"),
    (b"%PDF", "a PDF"),
    (b"SQLite format 3\x00", "an SQLite database"), (b"\x93NUMPY", "a numpy array"), (b"PAR1", "a Parquet file"),
    (b"\x80\x02", "a Python pickle"), (b"\x80\x04", "a Python pickle"),
)  # fmt: skip
TEXT_BYTES = bytes(range(32, 127)) + b"\t\n\r\x1b\x08\x0c\x07\x00"


def strip_control_bytes(block: bytes) -> bytes:
    """Escape sequences and NULs taken out; each test is one search, so clean text costs next to nothing."""
    if b"\x00" in block:
        block = block.replace(b"\x00", b"")
    if b"\x1b" in block:
        block = ANSI_ESCAPE.sub(b"", block)
    return block


def count_newlines(block: bytes) -> int:
    """Python looks at one byte after the other, which took a fifth of the whole first pass; NumPy at many at once."""
    if numpy is None:
        return block.count(b"\n")
    return int(numpy.count_nonzero(numpy.frombuffer(block, numpy.uint8) == ord("\n")))


def non_text_message(head: bytes) -> str:
    """A sentence when this is no log at all, else nothing. `head` is how the file begins."""
    for magic, name in MAGIC_NUMBERS:
        if head.startswith(magic):
            return f"This is {name}, not a text; unpack it or give the log itself."
    sample = head[:SAMPLE_BYTES]
    strange = len(sample.translate(None, TEXT_BYTES))
    if sample and strange > 0.3 * len(sample) and not _is_mostly_utf8(sample):
        return "This is binary data, not a text; give the log itself."
    return ""


def _is_mostly_utf8(sample: bytes) -> bool:
    """A log in Chinese is nearly all high bytes, and still a text; a cut character at the end is no fault."""
    words = sample.decode("utf-8", "replace")
    controls = sum(1 for letter in words if letter < " " and letter not in "\t\n\r\x1b\x08\x0c\x07\x00")
    return words.count("\ufffd") + controls <= 0.1 * len(words)
