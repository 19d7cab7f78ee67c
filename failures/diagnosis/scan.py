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

from . import kept
from .signatures import Signature
from .table import SIGNATURES


class BadPattern(ValueError):
    """A pattern the scanner cannot take; the message is a sentence that names the signature."""


class Scanner:
    """The compiled table. Threads take turns, for its scratch space serves one scan at a time."""

    def __init__(self, signatures: Sequence[Signature], database: hyperscan.Database | None = None) -> None:
        """`database` is these signatures, compiled before."""
        self.signatures = tuple(signatures)
        self.version = version(self.signatures)
        self._database = database or _compiled(self.signatures)
        self._turn = threading.Lock()

    def hits(self, block: bytes) -> list[tuple[int, int]]:
        """(end of match, index of signature), in the order of the text."""
        found: list[tuple[int, int]] = []
        add = found.append

        def seen(index: int, _start: int, end: int, _flags: int, _context: object) -> None:
            add((end, index))

        with self._turn:
            self._database.scan(block, match_event_handler=seen)
        found.sort()
        return found


def _compiled(signatures: tuple[Signature, ...]) -> hyperscan.Database:
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    try:
        database.compile(
            expressions=[signature.pattern.encode() for signature in signatures],
            ids=list(range(len(signatures))), elements=len(signatures),
            flags=[hyperscan.HS_FLAG_MULTILINE] * len(signatures),
        )  # fmt: skip
    except hyperscan.error as trouble:
        raise BadPattern(_blamed(signatures, str(trouble))) from trouble
    return database


def _blamed(signatures: tuple[Signature, ...], trouble: str) -> str:
    """The compiler names no row when many go in, so each is tried alone."""
    for signature in signatures:
        try:
            hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK).compile(
                expressions=[signature.pattern.encode()], ids=[0], elements=1, flags=hyperscan.HS_FLAG_MULTILINE
            )
        except hyperscan.error as own:
            return f"pattern of {signature.name}: {own}"
    return f"the table of signatures does not compile: {trouble}"


def version(signatures: Sequence[Signature]) -> str:
    """A name for exactly these rules, so that a stored verdict can say what it was made with."""
    text = "\n".join(repr(signature) for signature in signatures)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@lru_cache(maxsize=1)
def shipped() -> Scanner:
    """The scanner of the shipped table. Compiling takes two or three seconds, so it is done once for each table."""
    table = version(SIGNATURES)
    if known := kept.load(table):
        return Scanner(SIGNATURES, known)
    database = _compiled(SIGNATURES)
    kept.save(table, database)
    return Scanner(SIGNATURES, database)
