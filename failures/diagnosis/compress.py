"""Compresses hundreds of megabytes of log into 64 KiB of evidence, while the job still writes. Pure; bounded memory.

There are three stages. Filter rules drop routine lines in the scanner, without any Python code per line. Lines of the
same shape become one template with a count and its first and last occurrence. The result is ranked (causes, nearby
lines, the end of the log, rare shapes) and cut to the size of a bundle. Filters never drop a line with a signature.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from . import cleaning, filters, lines
from .filters import PLACEHOLDER, FilterRule
from .scan import shipped_scanner
from .values import LineRole

BLOCK_BYTES = 1 << 20
MAX_BUNDLE_BYTES = 64 << 10
MAX_TEMPLATES = 1024
MAX_ROW_CHARS = 600
NEARBY_LINES = 40
TAIL_LINES = 120
TAIL_BYTES = 8 << 10
NUMBER_PATTERN = re.compile(r"(?:0x)?[0-9a-fA-F]*\d[\w.:,+-]*")
IGNORED_ROLES = frozenset({LineRole.BENIGN, LineRole.PLACE})
ROLE_SEVERITY = {LineRole.INITIATING: 0, LineRole.CASCADE: 1, LineRole.TEARDOWN: 2}
STATE_ATTRIBUTES = ("templates", "tail", "dropped", "overflow", "_pending", "_line", "_size", "_ending")
ROW_RANK_NAMES = {0: "cause", 1: "symptom", 2: "teardown", 3: "near", 4: "end", 5: "rare", 6: "common"}


@dataclass
class LineTemplate:
    """One shape of line: its first text, its last text and how often it occurred."""

    text: str
    first: int
    last: int
    last_text: str
    count: int = 1
    severity: int | None = None  # ROLE_SEVERITY of the signature on it, if any


@dataclass(frozen=True, kw_only=True)
class BundleRow:
    """One row of the bundle: a line, or several lines of the same shape."""

    number: int
    last: int
    count: int
    first_time: str
    last_time: str
    why: str
    text: str


@dataclass(frozen=True, kw_only=True)
class LogBundle:
    """The part of an attempt's log that is stored permanently."""

    rows: tuple[BundleRow, ...]
    dropped: tuple[tuple[str, int], ...]
    lines: int
    size: int
    rules_version: str
    filters_version: str

    @property
    def text(self) -> str:
        """The bundle as text, for users and for the diagnosis, which can read it again."""
        return "\n".join(format_row(row) for row in self.rows) + ("\n" if self.rows else "")


def format_row(row: BundleRow) -> str:
    times = f" x{row.count}" if row.count > 1 else ""
    return f"@{row.number}{times} | {row.text}"


@dataclass
class LogCompressor:
    """Call feed() with each chunk, and bundle() at any time for the result so far."""

    rules: tuple[FilterRule, ...] = filters.SHIPPED_FILTERS
    templates: dict[str, LineTemplate] = field(default_factory=dict)
    tail: list[tuple[int, str]] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=dict)
    overflow: int = 0
    _pending: bytearray = field(default_factory=bytearray)
    _line: int = 1
    _size: int = 0
    _ending: bytes = b""

    def __post_init__(self) -> None:
        self._signatures = shipped_scanner()
        self._filters = filters.filter_scanner(self.rules)

    @property
    def filters_version(self) -> str:
        return self._filters.version

    def state(self) -> dict[str, Any]:
        """Everything that has been read so far, for `restore_state`."""
        return {name: getattr(self, name) for name in STATE_ATTRIBUTES}

    def restore_state(self, state: dict[str, Any]) -> None:
        """Continue from the state of another compressor with the same rules."""
        for name in STATE_ATTRIBUTES:
            setattr(self, name, state[name])

    def feed(self, chunk: bytes, whole_lines: bool = False) -> None:
        """Add bytes. `whole_lines` processes complete lines at once instead of per megabyte, as a follower needs."""
        self._size += len(chunk)
        for at in range(0, len(chunk), BLOCK_BYTES):
            self._pending += chunk[at : at + BLOCK_BYTES]
            if whole_lines or len(self._pending) >= BLOCK_BYTES:
                self._process_pending()

    def _process_pending(self, everything: bool = False) -> None:
        cut = self._pending.rfind(b"\n") + 1
        if everything or (not cut and len(self._pending) >= BLOCK_BYTES):
            cut = len(self._pending)
        if cut:
            block = bytes(self._pending[:cut])
            del self._pending[:cut]
            self._process_block(cleaning.strip_control_bytes(block))

    def _process_block(self, text: bytes) -> None:
        severity = self._signature_lines(text)
        for number, row in self._unfiltered_lines(text, severity):
            self._add_to_template(number, row, severity.get(number))
        self._line += text.count(b"\n")
        self._ending = (self._ending + text)[-TAIL_BYTES:] if len(text) < TAIL_BYTES else text[-TAIL_BYTES:]

    def _signature_lines(self, text: bytes) -> dict[int, int]:
        """Line number → severity, for the lines with a signature on them."""
        severities: dict[int, int] = {}
        number, counted = self._line, 0
        for at, index in self._signatures.hits(text):
            role = self._signatures.signatures[index].role
            if role in IGNORED_ROLES:
                continue
            number += text.count(b"\n", counted, at - 1)
            counted = max(counted, at - 1)
            severities[number] = min(severities.get(number, 9), ROLE_SEVERITY[role])
        return severities

    def _unfiltered_lines(self, text: bytes, severity: dict[int, int]) -> Iterator[tuple[int, bytes]]:
        """Lines without a filter rule, and lines with a signature. A routine line costs one jump."""
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
            if number in severity:
                yield number, text[start:stop]
            else:
                name = self._filters.signatures[index].name
                self.dropped[name] = self.dropped.get(name, 0) + 1
            number, at = number + 1, stop
        for row in text[at:].split(b"\n"):
            yield number, row
            number += 1

    def _add_to_template(self, number: int, raw: bytes, severity: int | None) -> None:
        # A progress bar rewrites its line: only the text after the last carriage return is visible
        visible = (
            raw[-lines.MAX_LINE_CHARS :].rsplit(b"\r", 1)[-1]
            if b"\r" in raw.rstrip(b"\r\n")
            else raw[: lines.MAX_LINE_CHARS]
        )
        text = visible.decode("utf-8", "replace").rstrip()
        if not text.strip():
            return
        shape = NUMBER_PATTERN.sub(PLACEHOLDER, text[:400])
        known = self.templates.get(shape)
        if known is None:
            self._new_template(shape, number, text, severity)
        else:
            known.count += 1
            known.last, known.last_text = number, text
            known.severity = severity if known.severity is None else known.severity
        self.tail.append((number, text))
        if len(self.tail) > 2 * TAIL_LINES:
            del self.tail[:-TAIL_LINES]

    def _new_template(self, shape: str, number: int, text: str, severity: int | None) -> None:
        if len(self.templates) >= MAX_TEMPLATES and not self._evict_templates(severity):
            self.overflow += 1
            return
        self.templates[shape] = LineTemplate(text=text, first=number, last=number, last_text=text, severity=severity)

    def _evict_templates(self, severity: int | None) -> bool:
        """Make room by evicting old shapes without a signature: half of them at once, so that this is rare."""
        evictable = [shape for shape, template in self.templates.items() if template.severity is None]
        if severity is None and len(evictable) < MAX_TEMPLATES // 4:
            return False
        for shape in evictable[: len(evictable) // 2]:
            self.overflow += self.templates.pop(shape).count
        return len(self.templates) < MAX_TEMPLATES

    def proposals(self) -> tuple[FilterRule, ...]:
        """Filter rules for shapes that occur hundreds of times without a signature."""
        harmless = ((shape, known.count) for shape, known in self.templates.items() if known.severity is None)
        return filters.propose_frequent_filters(harmless)

    def bundle(self) -> LogBundle:
        """The bundle of everything read so far, including an unfinished last line."""
        self._process_pending(everything=True)
        return LogBundle(
            rows=tuple(_fit_into_bundle(self._ranked_rows())), dropped=tuple(sorted(self.dropped.items())),
            lines=self._line - 1, size=self._size, rules_version=self._signatures.version,
            filters_version=self._filters.version,
        )  # fmt: skip

    def _ranked_rows(self) -> list[tuple[int, BundleRow]]:
        """(rank, row), the most important first, and in the order of the log within a rank."""
        near = {template.first for template in self.templates.values() if template.severity in (0, 1)}
        rows = [(self._template_rank(template, near), _template_row(template)) for template in self.templates.values()]
        known = {template.first for template in self.templates.values()}
        ends = {**dict(self.tail[-TAIL_LINES:]), **self._last_lines()}
        rows += [(4, _single_row(number, text)) for number, text in ends.items() if number not in known]
        rows.sort(key=lambda row: (row[0], row[1].number))
        return [(rank, replace(row, why=ROW_RANK_NAMES[rank])) for rank, row in rows]

    def _last_lines(self) -> dict[int, str]:
        """The last lines by number, including routine ones: whether the job still made progress is evidence too."""
        rows = self._ending.decode("utf-8", "replace").split("\n")
        last = self._line if self._ending and not self._ending.endswith(b"\n") else self._line - 1
        rows = [row.rsplit("\r", 1)[-1].rstrip() for row in (rows if rows[-1] else rows[:-1])]
        first = last - len(rows) + 1
        numbered = {first + at: row for at, row in enumerate(rows) if row and first + at > 0}
        return dict(list(numbered.items())[-20:])

    def _template_rank(self, template: LineTemplate, near: set[int]) -> int:
        """The rank of a template, a key of ROW_RANK_NAMES."""
        if template.severity is not None:
            return template.severity
        if any(at in near for at in range(template.first, template.first + NEARBY_LINES)):
            return 3
        if template.last > self._line - TAIL_LINES:
            return 4
        return 5 if template.count < 4 else 6


def _template_row(template: LineTemplate) -> BundleRow:
    return BundleRow(
        number=template.first, last=template.last, count=template.count, why="", text=template.text[:MAX_ROW_CHARS],
        first_time=lines.parse(template.first, template.text).time,
        last_time=lines.parse(template.last, template.last_text).time,
    )  # fmt: skip


def _single_row(number: int, text: str) -> BundleRow:
    return BundleRow(
        number=number, last=number, count=1, first_time="", last_time="", why="", text=text[:MAX_ROW_CHARS]
    )


def _fit_into_bundle(ranked: list[tuple[int, BundleRow]]) -> list[BundleRow]:
    """The most important rows that fit into a bundle, in the order of the log."""
    room, selected = MAX_BUNDLE_BYTES, []
    for _, row in ranked:
        room -= len(format_row(row).encode()) + 1
        if room < 0:
            break
        selected.append(row)
    return sorted(selected, key=lambda row: row.number)
