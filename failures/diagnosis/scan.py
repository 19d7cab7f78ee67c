"""Matches all patterns in one linear pass over a block of bytes, with Vectorscan (the `hyperscan` wheels).

Vectorscan is used instead of RE2. Both are linear, so no pattern can hang a worker, but RE2's sets report only which
patterns matched and not where, so Python would have to handle every line. Vectorscan reports the positions from one
scan of a megabyte, and Python handles only the lines that matched.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Sequence
from functools import cached_property, lru_cache

import hyperscan

from . import compiled_patterns
from .signatures import Signature
from .table import SIGNATURES


class InvalidPatternError(ValueError):
    """The scanner cannot compile a pattern. The message names the signature."""


class Scanner:
    """A compiled table of signatures. Threads scan one after the other, because they share its scratch space."""

    def __init__(self, signatures: Sequence[Signature], database: hyperscan.Database | None = None) -> None:
        """`database` holds the same signatures, compiled earlier."""
        self.signatures = tuple(signatures)
        self.version = signatures_version(self.signatures)
        self._database = database or _compile_database(self.signatures)
        self._turn = threading.Lock()

    @cached_property
    def unless(self) -> tuple[re.Pattern[str] | None, ...]:
        """The pattern that excludes a match, by signature."""
        return tuple(re.compile(row.unless) if row.unless else None for row in self.signatures)

    def hits(self, block: bytes) -> list[tuple[int, int]]:
        """(end of match, index of signature), in the order of the text."""
        matches: list[tuple[int, int]] = []
        add = matches.append

        def on_match(index: int, _start: int, end: int, _flags: int, _context: object) -> None:
            add((end, index))

        with self._turn:
            self._database.scan(block, match_event_handler=on_match)
        matches.sort()
        return matches


def _compile_database(signatures: tuple[Signature, ...]) -> hyperscan.Database:
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    try:
        database.compile(
            expressions=[signature.pattern.encode() for signature in signatures],
            ids=list(range(len(signatures))), elements=len(signatures),
            flags=[hyperscan.HS_FLAG_MULTILINE] * len(signatures),
        )  # fmt: skip
    except hyperscan.error as error:
        raise InvalidPatternError(_compile_error_message(signatures, str(error))) from error
    return database


def _compile_error_message(signatures: tuple[Signature, ...], error: str) -> str:
    """A sentence that names the faulty signature. The compiler does not name it, so each one is compiled alone."""
    for signature in signatures:
        try:
            hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK).compile(
                expressions=[signature.pattern.encode()], ids=[0], elements=1, flags=hyperscan.HS_FLAG_MULTILINE
            )
        except hyperscan.error as own:
            return f"pattern of {signature.name}: {own}"
    return f"the table of signatures does not compile: {error}"


def signatures_version(signatures: Sequence[Signature]) -> str:
    """A hash of these signatures, stored with each verdict to show which rules it was made with."""
    text = "\n".join(repr(signature) for signature in signatures)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@lru_cache(maxsize=1)
def shipped_scanner() -> Scanner:
    """The scanner of the shipped table. Compiling takes two or three seconds, so the result is cached on disk."""
    table = signatures_version(SIGNATURES)
    if known := compiled_patterns.load(table):
        return Scanner(SIGNATURES, known)
    database = _compile_database(SIGNATURES)
    compiled_patterns.save(table, database)
    return Scanner(SIGNATURES, database)
