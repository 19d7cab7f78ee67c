"""Hundreds of megabytes of log → at most 64 KiB of evidence, while the job still writes. Pure; bounded memory.

Three sieves: filter rules drop routine lines without Python looking at them; lines of the same shape collapse to a
template with a count and its first and last sighting; what is left is ranked (causes, their surroundings, the end of
the log, rare shapes) and cut to the size of a bundle. A line with a signature on it passes the first sieve always.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from . import cleaning, filters, lines
from .filters import HOLE, FilterRule
from .scan import Scanner, shipped
from .values import Role

BLOCK = 1 << 20
BUNDLE = 64 << 10
MOST_TEMPLATES = 1024
LONGEST_ROW = 600
AROUND = 40
LAST = 120
KEPT_ENDING = 8 << 10
NUMBERS = re.compile(r"(?:0x)?[0-9a-fA-F]*\d[\w.:,+-]*")
QUIET_ROLES = frozenset({Role.BENIGN, Role.PLACE})
TROUBLE = {Role.INITIATING: 0, Role.CASCADE: 1, Role.TEARDOWN: 2}
STATE = ("templates", "tail", "dropped", "overflow", "_pending", "_line", "_size", "_ending")
RANKS = {0: "cause", 1: "symptom", 2: "teardown", 3: "near", 4: "end", 5: "rare", 6: "common"}


@dataclass
class Template:
    """One shape of line: as it was first seen, and how it came back."""

    text: str
    first: int
    last: int
    last_text: str
    count: int = 1
    trouble: int | None = None


@dataclass(frozen=True, kw_only=True)
class Row:
    """A line of the bundle."""

    number: int
    last: int
    count: int
    first_time: str
    last_time: str
    why: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """What is kept of an attempt's log for good."""

    rows: tuple[Row, ...]
    dropped: tuple[tuple[str, int], ...]
    lines: int
    size: int
    rules_version: str
    filters_version: str

    @property
    def text(self) -> str:
        """Readable, and readable again by the diagnosis: the original line follows the bar."""
        return "\n".join(shown(row) for row in self.rows) + ("\n" if self.rows else "")


def shown(row: Row) -> str:
    times = f" x{row.count}" if row.count > 1 else ""
    return f"@{row.number}{times} | {row.text}"


@lru_cache(maxsize=1)
def shipped_filters() -> Scanner:
    return filters.compiled(filters.SHIPPED)


@dataclass
class Compressor:
    """feed() as the bytes come; bundle() whenever one is wanted."""

    rules: tuple[FilterRule, ...] = filters.SHIPPED
    templates: dict[str, Template] = field(default_factory=dict)
    tail: list[tuple[int, str]] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=dict)
    overflow: int = 0
    _pending: bytearray = field(default_factory=bytearray)
    _line: int = 1
    _size: int = 0
    _ending: bytes = b""

    def __post_init__(self) -> None:
        self._signatures = shipped()
        self._filters = shipped_filters() if self.rules is filters.SHIPPED else filters.compiled(self.rules)

    @property
    def filters_version(self) -> str:
        return self._filters.version

    def state(self) -> dict[str, Any]:
        """All that it knows of the text so far."""
        return {name: getattr(self, name) for name in STATE}

    def take_up(self, state: dict[str, Any]) -> None:
        """Go on where another with the same rules left off."""
        for name in STATE:
            setattr(self, name, state[name])

    def feed(self, chunk: bytes, whole_lines: bool = False) -> None:
        """`whole_lines` looks at what has come at once, as a follower wants, and not a megabyte later."""
        self._size += len(chunk)
        for at in range(0, len(chunk), BLOCK):
            self._pending += chunk[at : at + BLOCK]
            if whole_lines or len(self._pending) >= BLOCK:
                self._take()

    def _take(self, everything: bool = False) -> None:
        cut = self._pending.rfind(b"\n") + 1
        if everything or (not cut and len(self._pending) >= BLOCK):
            cut = len(self._pending)
        if cut:
            block = bytes(self._pending[:cut])
            del self._pending[:cut]
            self._sift(cleaning.folded(block))

    def _sift(self, text: bytes) -> None:
        trouble = self._troubled(text)
        for number, row in self._not_routine(text, trouble):
            self._collapse(number, row, trouble.get(number))
        self._line += text.count(b"\n")
        self._ending = (self._ending + text)[-KEPT_ENDING:] if len(text) < KEPT_ENDING else text[-KEPT_ENDING:]

    def _troubled(self, text: bytes) -> dict[int, int]:
        """Line number → how bad, for the lines with a signature on them."""
        rows: dict[int, int] = {}
        number, counted = self._line, 0
        for at, index in self._signatures.hits(text):
            role = self._signatures.signatures[index].role
            if role in QUIET_ROLES:
                continue
            number += text.count(b"\n", counted, at - 1)
            counted = max(counted, at - 1)
            rows[number] = min(rows.get(number, 9), TROUBLE[role])
        return rows

    def _not_routine(self, text: bytes, trouble: dict[int, int]) -> Iterator[tuple[int, bytes]]:
        """Lines that no filter rule covers, and troubled ones. Routine lines cost one jump each."""
        number, at = self._line, 0
        for hit, index in self._filters.hits(text):
            if hit <= at:
                continue
            start = text.rfind(b"\n", at, hit - 1) + 1 or at
            for row in text[at:start].splitlines():
                yield number, row
                number += 1
            stop = text.find(b"\n", hit - 1)
            stop = len(text) if stop < 0 else stop + 1
            if number in trouble:
                yield number, text[start:stop]
            else:
                name = self._filters.signatures[index].name
                self.dropped[name] = self.dropped.get(name, 0) + 1
            number, at = number + 1, stop
        for row in text[at:].split(b"\n"):
            yield number, row
            number += 1

    def _collapse(self, number: int, raw: bytes, trouble: int | None) -> None:
        words = raw[-lines.LONGEST :].rsplit(b"\r", 1)[-1] if b"\r" in raw.rstrip(b"\r\n") else raw[: lines.LONGEST]
        text = words.decode("utf-8", "replace").rstrip()
        if not text.strip():
            return
        shape = NUMBERS.sub(HOLE, text[:400])
        known = self.templates.get(shape)
        if known is None:
            self._new(shape, number, text, trouble)
        else:
            known.count += 1
            known.last, known.last_text = number, text
            known.trouble = trouble if known.trouble is None else known.trouble
        self.tail.append((number, text))
        if len(self.tail) > 2 * LAST:
            del self.tail[:-LAST]

    def _new(self, shape: str, number: int, text: str, trouble: int | None) -> None:
        if len(self.templates) >= MOST_TEMPLATES and not self._make_room(trouble):
            self.overflow += 1
            return
        self.templates[shape] = Template(text=text, first=number, last=number, last_text=text, trouble=trouble)

    def _make_room(self, trouble: int | None) -> bool:
        """Old, untroubled shapes give way: half of them at once, so that this is rare."""
        calm = [shape for shape, template in self.templates.items() if template.trouble is None]
        if trouble is None and len(calm) < MOST_TEMPLATES // 4:
            return False
        for shape in calm[: len(calm) // 2]:
            self.overflow += self.templates.pop(shape).count
        return len(self.templates) < MOST_TEMPLATES

    def proposals(self) -> tuple[FilterRule, ...]:
        """Rules that frequency alone suggests: shapes by the hundred without a sign of trouble."""
        calm = ((shape, one.count) for shape, one in self.templates.items() if one.trouble is None)
        return filters.proposed(calm)

    def bundle(self) -> Bundle:
        self._take(everything=True)
        return Bundle(
            rows=tuple(_fitting(self._ranked())), dropped=tuple(sorted(self.dropped.items())), lines=self._line - 1,
            size=self._size, rules_version=self._signatures.version, filters_version=self._filters.version,
        )  # fmt: skip

    def _ranked(self) -> list[tuple[int, Row]]:
        """(rank, row), the most telling first; among equals the earlier one."""
        near = {template.first for template in self.templates.values() if template.trouble in (0, 1)}
        rows = [(self._rank(one, near), _row(one)) for one in self.templates.values()]
        known = {one.first for one in self.templates.values()}
        ends = {**dict(self.tail[-LAST:]), **self._last_lines()}
        rows += [(4, _plain(number, text)) for number, text in ends.items() if number not in known]
        rows.sort(key=lambda row: (row[0], row[1].number))
        return [(rank, replace(row, why=RANKS[rank])) for rank, row in rows]

    def _last_lines(self) -> dict[int, str]:
        """How the log ends, routine or not: whether it still made progress is evidence too."""
        rows = self._ending.decode("utf-8", "replace").split("\n")
        last = self._line if self._ending and not self._ending.endswith(b"\n") else self._line - 1
        rows = [row.rsplit("\r", 1)[-1].rstrip() for row in (rows if rows[-1] else rows[:-1])]
        first = last - len(rows) + 1
        numbered = {first + at: row for at, row in enumerate(rows) if row and first + at > 0}
        return dict(list(numbered.items())[-20:])

    def _rank(self, one: Template, near: set[int]) -> int:
        if one.trouble is not None:
            return one.trouble
        if any(at in near for at in range(one.first, one.first + AROUND)):
            return 3
        if one.last > self._line - LAST:
            return 4
        return 5 if one.count < 4 else 6


def _row(one: Template) -> Row:
    return Row(
        number=one.first, last=one.last, count=one.count, first_time=lines.parse(one.first, one.text).time,
        last_time=lines.parse(one.last, one.last_text).time, why="", text=one.text[:LONGEST_ROW],
    )  # fmt: skip


def _plain(number: int, text: str) -> Row:
    return Row(number=number, last=number, count=1, first_time="", last_time="", why="", text=text[:LONGEST_ROW])


def _fitting(ranked: list[tuple[int, Row]]) -> list[Row]:
    """As many rows as a bundle holds, back in the order of the log."""
    room, kept = BUNDLE, []
    for _, row in ranked:
        room -= len(shown(row).encode()) + 1
        if room < 0:
            break
        kept.append(row)
    return sorted(kept, key=lambda row: row.number)
