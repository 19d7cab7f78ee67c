"""Matches all patterns in one linear pass over a block of bytes, with Vectorscan (the `hyperscan` wheels).

Vectorscan is used instead of RE2. Both are linear, so no pattern can hang a worker, but RE2's sets report only which
patterns matched and not where, so Python would have to handle every line. Vectorscan reports the positions from one
scan of a megabyte, and Python handles only the lines that matched.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, lru_cache
from pathlib import Path

import hyperscan

from . import compiled_patterns
from .signatures import Signature
from .table import SIGNATURES


class InvalidPattern(ValueError):
    """A signature cannot be compiled; the message names it. It stands here because the client brings this package."""


class PatternDatabase:
    """Compiled patterns. Threads scan one after the other, because they share its scratch space."""

    def __init__(self, database: hyperscan.Database) -> None:
        self.compiled = database
        self._turn = threading.Lock()

    def scan(self, block: bytes, on_match: Callable[[int, int, int, int, object], None]) -> None:
        with self._turn:
            self.compiled.scan(block, match_event_handler=on_match)


class Scanner:
    """A compiled table of signatures."""

    def __init__(self, signatures: Sequence[Signature], databases: Sequence[PatternDatabase] = ()) -> None:
        """`databases` hold the same signatures, compiled earlier."""
        self.signatures = tuple(signatures)
        self.version = signatures_version(self.signatures)
        self._databases = tuple(databases) or (PatternDatabase(_compile_database(self.signatures)),)

    def with_rules(self, rules: Iterable[Signature]) -> Scanner:
        """A scanner with further signatures; only these are compiled. Raises InvalidPattern, which names one."""
        if not (added := tuple(rules)):
            return self
        compiled = PatternDatabase(_compile_database(added, first_id=len(self.signatures)))
        return Scanner((*self.signatures, *added), (*self._databases, compiled))

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

        for database in self._databases:
            database.scan(block, on_match)
        matches.sort()
        return matches


def _compile_database(signatures: tuple[Signature, ...], first_id: int = 0) -> hyperscan.Database:
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    try:
        database.compile(
            expressions=[signature.pattern.encode() for signature in signatures],
            ids=list(range(first_id, first_id + len(signatures))), elements=len(signatures),
            flags=[hyperscan.HS_FLAG_MULTILINE] * len(signatures),
        )  # fmt: skip
    except hyperscan.error as error:
        raise InvalidPattern(_compile_error_message(signatures, str(error))) from error
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


def stored_scanner(signatures: Sequence[Signature], places: Sequence[Path] | None = None) -> Scanner:
    """A scanner of these signatures from a file, or compiled and saved for the next process."""
    table = signatures_version(signatures)
    database = compiled_patterns.load(table, places)
    if database is None:
        database = _compile_database(tuple(signatures))
        compiled_patterns.save(table, database, places)
    return Scanner(signatures, (PatternDatabase(database),))


@lru_cache(maxsize=1)
def shipped_scanner() -> Scanner:
    return stored_scanner(SIGNATURES)
