"""One pass of all patterns over a block of bytes, in linear time, by Vectorscan (the `hyperscan` wheels).

Why Vectorscan and not RE2: both are linear, so no pattern can hang a worker; but RE2's set says only which patterns
matched, not where, so every line would have to go through Python by itself, while Vectorscan reports positions from one
scan of a megabyte. Python then touches the lines that matched and no others.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from functools import lru_cache

import hyperscan

from . import compiled_patterns
from .signatures import Signature
from .table import SIGNATURES


class InvalidPatternError(ValueError):
    """A pattern the scanner cannot take; the message is a sentence that names the signature."""


class Scanner:
    """The compiled table. Threads take turns, for its scratch space serves one scan at a time."""

    def __init__(self, signatures: Sequence[Signature], database: hyperscan.Database | None = None) -> None:
        """`database` is these signatures, compiled before."""
        self.signatures = tuple(signatures)
        self.version = signatures_version(self.signatures)
        self._database = database or _compile_database(self.signatures)
        self._turn = threading.Lock()

    def hits(self, block: bytes) -> list[tuple[int, int]]:
        """(end of match, index of signature), in the order of the text."""
        found: list[tuple[int, int]] = []
        add = found.append

        def on_match(index: int, _start: int, end: int, _flags: int, _context: object) -> None:
            add((end, index))

        with self._turn:
            self._database.scan(block, match_event_handler=on_match)
        found.sort()
        return found


def _compile_database(signatures: tuple[Signature, ...]) -> hyperscan.Database:
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    try:
        database.compile(
            expressions=[signature.pattern.encode() for signature in signatures],
            ids=list(range(len(signatures))), elements=len(signatures),
            flags=[hyperscan.HS_FLAG_MULTILINE] * len(signatures),
        )  # fmt: skip
    except hyperscan.error as trouble:
        raise InvalidPatternError(_compile_error_message(signatures, str(trouble))) from trouble
    return database


def _compile_error_message(signatures: tuple[Signature, ...], trouble: str) -> str:
    """The compiler names no row when many go in, so each is tried alone."""
    for signature in signatures:
        try:
            hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK).compile(
                expressions=[signature.pattern.encode()], ids=[0], elements=1, flags=hyperscan.HS_FLAG_MULTILINE
            )
        except hyperscan.error as own:
            return f"pattern of {signature.name}: {own}"
    return f"the table of signatures does not compile: {trouble}"


def signatures_version(signatures: Sequence[Signature]) -> str:
    """A name for exactly these rules, so that a stored verdict can say what it was made with."""
    text = "\n".join(repr(signature) for signature in signatures)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@lru_cache(maxsize=1)
def shipped_scanner() -> Scanner:
    """The scanner of the shipped table. Compiling takes two or three seconds, so it is done once for each table."""
    table = signatures_version(SIGNATURES)
    if known := compiled_patterns.load(table):
        return Scanner(SIGNATURES, known)
    database = _compile_database(SIGNATURES)
    compiled_patterns.save(table, database)
    return Scanner(SIGNATURES, database)
