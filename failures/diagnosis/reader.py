"""A log, fed in pieces of any size → what was found in it. Pure; bounded memory whatever comes.

The text is scanned in blocks of about a megabyte that end at a newline; only lines in which a signature matched are
looked at in Python. A line without end is cut into blocks too. What is kept is bounded: one tally per signature and
label, a few thousand GPU events, the last lines of the text. Fed at once or byte by byte, the reading is the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from . import catalogue, cleaning, gpu_events, lines
from .frames import IGNORED, traceback_above
from .scan import Scanner, shipped
from .signatures import DCGM, GENERIC, SXID, XID, Signature
from .table import exceptions
from .values import Finding, Line, Role

BLOCK = 1 << 20
CARRY = 8 << 10
TAIL = 16 << 10
MOST_EVENTS = 4096
MOST_RANKS = 4096
MOST_PLACES = 16384
DETAILED = 300  # sightings of one tally that are read in full; later ones are counted
NEAR = 6  # lines between the two ends of one thought
MOST_MORE = 3
SHAPE = re.compile(r"\d+")
XID_QUOTED = "xid-quoted"
STATE = ("_pending", "_head", "_before", "_line", "_size", "_sentence", "_judged", "_tallies", "_sightings", "_events",
         "_places")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Place:
    rank: int
    host: str
    pci: str = ""


@dataclass(frozen=True, kw_only=True)
class Reading:
    findings: tuple[Finding, ...]
    gpu_events: tuple[gpu_events.GpuEvent, ...]
    places: tuple[Place, ...]
    lines: int
    size: int
    sentence: str
    tail: tuple[Line, ...]
    rules_version: str


@dataclass
class Tally:
    """One signature under one label, as the log goes by."""

    finding: Finding
    weak: bool
    more: list[Line] = field(default_factory=list)
    count: int = 0
    last_number: int = 0
    ranks: set[int] = field(default_factory=set)

    def again(self, number: int) -> None:
        self.count += 1
        self.last_number = number

    def keep(self, line: Line) -> None:
        """A few further lines of other words: a reader wants to see what else was said, not the same from 40 ranks."""
        if len(self.more) < MOST_MORE and line.number != self.finding.line.number:
            words = SHAPE.sub("#", line.message)
            if all(words != SHAPE.sub("#", other.message) for other in (self.finding.line, *self.more)):
                self.more.append(line)

    def closed(self) -> Finding:
        return replace(
            self.finding, count=self.count, last_number=self.last_number, ranks=tuple(sorted(self.ranks)),
            more=tuple(self.more),
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Sighting:
    """A signature on a line, with the label and weight that this very line gives it."""

    signature: Signature
    label: str
    specificity: int
    weak: bool
    raised: bool = False  # an exception as Python prints it: its name begins the message


def sighted(signature: Signature, line: Line) -> Sighting | None:
    if signature.name == GENERIC:
        return _exception(signature, line)
    if signature.name == DCGM:
        return _health_code(signature, line)
    weak = signature.specificity < SURE_AT_ANY_LEVEL and line.level in ("DEBUG", "INFO", "NOTICE")
    return Sighting(signature=signature, label=signature.label, specificity=signature.specificity, weak=weak)


def _health_code(signature: Signature, line: Line) -> Sighting | None:
    code = HEALTH_CODE.search(line.text)
    label, _ = catalogue.dcgm().get(code[0] if code else "", (signature.label, ""))
    if not label:
        return None
    return Sighting(signature=signature, label=label, specificity=signature.specificity, weak=False)


def _exception(signature: Signature, line: Line) -> Sighting | None:
    named = exceptions.named(line.message)
    if named is None:
        return _untold(signature, line)
    label, specificity, column = named
    before = line.message[:column]
    weak = line.level in lines.MUTED or CAUTION.search(before) is not None
    if column and not weak and line.level not in ("ERROR", "FATAL", "CRITICAL") and not REPORTED.search(before):
        weak = True
    return Sighting(
        signature=signature, label=label, specificity=specificity, weak=weak, raised=not column and not weak
    )


def _untold(signature: Signature, line: Line) -> Sighting | None:
    name = exceptions.untold(line.message)
    if name is None:
        return None
    weak = not exceptions.at_home(line.message)
    return Sighting(signature=signature, label=exceptions.by_name(name), specificity=UNNAMED, weak=weak)


class Reader:
    """feed() as the bytes come, reading() whenever an answer is wanted."""

    def __init__(self, scanner: Scanner | None = None) -> None:
        self._scanner = scanner or shipped()
        self._signatures = self._scanner.signatures
        self._unless = [re.compile(row.unless) if row.unless else None for row in self._signatures]
        self._pending = bytearray()
        self._head = b""
        self._before = b""
        self._line = 1
        self._size = 0
        self._sentence = ""
        self._judged = False
        self._tallies: dict[tuple[str, str], Tally] = {}
        self._sightings: dict[int, int] = {}
        self._events: list[gpu_events.GpuEvent] = []
        self._places: dict[int, Place] = {}

    @property
    def rules_version(self) -> str:
        return self._scanner.version

    def state(self) -> dict[str, Any]:
        """All that it knows of the text so far; how the text began matters only until that was judged."""
        known = {name: getattr(self, name) for name in STATE}
        return known | {"_head": b""} if self._judged else known

    def take_up(self, state: dict[str, Any]) -> None:
        """Go on where another with the same rules left off."""
        for name in STATE:
            setattr(self, name, state[name])

    def feed(self, chunk: bytes) -> None:
        self._size += len(chunk)
        if self._sentence:
            return
        if not self._judged and len(self._head) < cleaning.SAMPLE:
            self._head += chunk[: cleaning.SAMPLE - len(self._head)]
        view = memoryview(chunk)
        while view.nbytes:
            part = view[: BLOCK - len(self._pending)] if len(self._pending) < BLOCK else view[:0]
            self._pending += part
            view = view[part.nbytes :]
            if len(self._pending) >= BLOCK:
                self._scan_whole_lines()

    def _scan_whole_lines(self) -> None:
        """Up to the last newline; a line longer than a block is cut at a carriage return, or anywhere."""
        self._judge()
        if self._sentence:
            self._pending.clear()
            return
        cut = self._pending.rfind(b"\n") + 1 or self._pending.rfind(b"\r") + 1 or len(self._pending)
        with memoryview(self._pending) as view:  # sliced by itself it would be copied twice
            block = bytes(view[:cut])
        del self._pending[:cut]
        self._scan(block)

    def _judge(self) -> None:
        """Once, before anything is scanned: is this a log at all?"""
        if not self._judged:
            self._judged, self._sentence = True, cleaning.what_else(self._head)

    def look_now(self) -> None:
        """Scan the whole lines that have come, for a follower that cannot wait for a megabyte."""
        if b"\n" in self._pending:
            self._scan_whole_lines()

    def findings(self) -> tuple[Finding, ...]:
        return tuple(tally.closed() for tally in self._tallies.values() if tally.count)

    def reading(self) -> Reading:
        """What is known so far; an unfinished last line is taken as it stands."""
        self._judge()
        if self._pending and not self._sentence:
            block = bytes(self._pending)
            self._pending.clear()
            self._scan(block)
        sentence = self._sentence or ("The log is empty." if not self._before.strip() else "")
        return Reading(
            findings=self.findings(),
            gpu_events=tuple(self._events), places=tuple(self._places.values()), lines=self._lines_so_far(),
            size=self._size, sentence=sentence, tail=self._tail(), rules_version=self._scanner.version,
        )  # fmt: skip

    def _lines_so_far(self) -> int:
        return self._line - 1 + (1 if self._before and not self._before.endswith(b"\n") else 0)

    def _tail(self) -> tuple[Line, ...]:
        rows = self._before.replace(b"\r", b"\n").decode("utf-8", "replace").splitlines()
        first = self._lines_so_far() - len(rows) + 1
        return tuple(lines.parse(max(1, first + at), row) for at, row in enumerate(rows) if row.strip())

    def _scan(self, block: bytes) -> None:
        text = cleaning.folded(block)
        counted, number = 0, self._line
        for start, end, ids in self._lines_with_hits(text):
            number += text.count(b"\n", counted, start)
            counted = start
            self._look(text, start, end, ids, number)
        self._line += cleaning.newlines(block)
        self._before = (self._before + text)[-TAIL:] if len(text) < TAIL else text[-TAIL:]

    def _lines_with_hits(self, text: bytes) -> list[tuple[int, int, list[int]]]:
        """Hits grouped by the line they are on; a carriage return begins a line of its own, as on a terminal."""
        found: list[tuple[int, int, list[int]]] = []
        edge = meant = -1
        for at, index in self._scanner.hits(text):
            if at <= edge and found:
                if at <= meant and index not in found[-1][2]:
                    found[-1][2].append(index)
                continue
            above = text.rfind(b"\n", 0, at)  # a carriage return further up is of another line: not looked for
            start = max(above, text.rfind(b"\r", above + 1, at - 1), at - lines.LONGEST) + 1
            edge = _end(text, at)
            meant = _advice(text, start, edge)
            found.append((start, edge, [index] if at <= meant else []))
        return [row for row in found if row[2]]

    def _look(self, text: bytes, start: int, end: int, ids: list[int], number: int) -> None:
        if all(self._often(index) for index in ids):
            for index in ids:
                self._count(self._signatures[index], number)
            return
        line = lines.parse(number, text[start:end].decode("utf-8", "replace"))
        for index in ids:
            self._sightings[index] = self._sightings.get(index, 0) + 1
        winner = self._winner(ids, line, text, start)
        if winner is None:
            return
        if winner.signature.role is Role.PLACE:
            self._place(line)
        elif winner.signature.name in (XID, SXID, XID_QUOTED):
            self._gpu(winner.signature, line)
        else:
            self._note(winner, line, text, start)

    def _often(self, index: int) -> bool:
        name = self._signatures[index].name
        most = 20 * DETAILED if name in (GENERIC, XID, SXID) or self._signatures[index].role is Role.PLACE else DETAILED
        return self._sightings.get(index, 0) > most

    def _count(self, signature: Signature, number: int) -> None:
        if tally := self._tallies.get((signature.name, signature.label)):
            tally.again(number)

    def _winner(self, ids: list[int], line: Line, text: bytes, start: int) -> Sighting | None:
        """The most specific sighting of a line, unless something harmless explains it as well."""
        if SOURCE.match(line.message):
            return None
        rows = [self._signatures[index] for index in ids if not self._excused(index, line.text)]
        seen = [sighting for row in rows if row.role is not Role.BENIGN and (sighting := sighted(row, line))]
        if any(row.name in CODES for row in rows):  # a code says more than the words around it
            seen = [sighting for sighting in seen if sighting.signature.name in CODES]
        else:
            seen = _in_own_words(seen)
        best = max(seen, key=lambda sighting: sighting.specificity, default=None)
        if best is None or best.specificity > _hidden(rows):
            return best
        loud = [row for row in rows if row.name not in TURNS_OF_SPEECH]
        raised = any(sighting.raised for sighting in seen) and best.specificity > _hidden(loud)
        return best if raised and self._frames(text, start, line) else None

    def _excused(self, index: int, text: str) -> bool:
        unless = self._unless[index]
        return unless is not None and unless.search(text) is not None

    def _note(self, seen: Sighting, line: Line, text: bytes, start: int) -> None:
        key = (seen.signature.name, seen.label)
        tally = self._tallies.get(key)
        if tally and tally.last_number == line.number:
            return
        if tally is None or (tally.weak and not seen.weak):
            tally = self._replaced(key, tally, self._opened(seen, line, text, start))
        tally.again(line.number)
        tally.keep(line)
        if line.rank is not None and len(tally.ranks) < MOST_RANKS:
            tally.ranks.add(line.rank)

    def _opened(self, seen: Sighting, line: Line, text: bytes, start: int) -> Tally:
        frames = self._frames(text, start, line)
        weak = IGNORED in frames or (seen.weak and not frames)
        finding = Finding(
            signature=seen.signature.name, label=seen.label, role=seen.signature.role,
            specificity=seen.specificity // 2 if weak else seen.specificity, blame=seen.signature.blame,
            restart=seen.signature.restart, line=line, frames=frames, note=MENTIONED if weak else "",
        )  # fmt: skip
        return Tally(finding=finding, weak=weak)

    def _replaced(self, key: tuple[str, str], old: Tally | None, new: Tally) -> Tally:
        """A later sighting that is meant seriously takes the place of one that was only mentioned."""
        if old is not None:
            if new.weak:
                return old
            new.count, new.ranks = old.count, old.ranks
        self._tallies[key] = new
        return new

    def _frames(self, text: bytes, start: int, line: Line) -> tuple[str, ...]:
        """The traceback above a line, of the same rank, as far as the block and what was kept of the last one reach."""
        above = text[max(0, start - CARRY) : start]
        if start < CARRY:
            above = self._before[-CARRY:] + above
        rows = above.decode("utf-8", "replace").splitlines()
        return tuple(traceback_above(rows, line))

    def _gpu(self, signature: Signature, line: Line) -> None:
        event = gpu_events.read(line)
        if event is None:
            return
        if len(self._events) < MOST_EVENTS:
            self._events.append(event)
        key = (f"{event.kind.lower()}-{event.code}", event.label)
        tally = self._tallies.get(key)
        if tally is None:
            finding = Finding(
                signature=key[0], label=event.label, role=event.role, specificity=event.specificity,
                blame=signature.blame, restart=None, line=line, note=event.note,
            )  # fmt: skip
            tally = self._tallies[key] = Tally(finding=finding, weak=False)
        elif event.specificity > tally.finding.specificity:
            tally.finding = replace(tally.finding, specificity=event.specificity, line=line, note=event.note)
        tally.again(line.number)

    def _place(self, line: Line) -> None:
        if (place := place_of(line)) and len(self._places) < MOST_PLACES:
            self._places.setdefault(place.rank, place)


def _hidden(rows: list[Signature]) -> int:
    return max((row.specificity for row in rows if row.role is Role.BENIGN), default=-1)


def _in_own_words(seen: list[Sighting]) -> list[Sighting]:
    """What is wrong with the program's text names other things only as names: `cannot import name 'S3Error'`."""
    told = next((sighting.label for sighting in seen if sighting.raised and sighting.label in OF_THE_TEXT), None)
    return [sighting for sighting in seen if told is None or sighting.label == told]


MENTIONED = "mentioned"
OF_THE_TEXT = frozenset({"ImportError", "NameError", "AttributeError", "ZeroDivisionError"})
# Harmless words that the message of an exception may use too: under a traceback it was raised all the same
TURNS_OF_SPEECH = frozenset({"zero-errors", "advice", "default-config", "launcher-words", "falling-back"})
CODES = frozenset({XID, SXID, DCGM})
HEALTH_CODE = re.compile(r"DCGM_FR_[A-Z0-9_]+")
# lines of source that tracebacks quote: they name errors that were not raised there
SOURCE = re.compile(r"\s*(?:raise \w|except\b.*:$|File \"[^\"]+\", line \d+|warnings\.warn\()")
SURE_AT_ANY_LEVEL = 44
UNNAMED = 38  # an exception whose name says nothing
CAUTION = re.compile(r"(?i)\bwarn|\bnote\b|\bignor|\boptional|\bskip|\bdebug\b")
REPORTED = re.compile(
    r"(?i)^\W*$|^[\w./-]+: *$|(?:message|what\(\)|errors?|exceptions?|caused by|causes?|caught|raised?|fail(?:ed|ure)|"
    r"reason|\"name\"|"
    r"died|with|traceback|<class)\W*$"
)
# From here on a line explains what may be behind it: `this can happen if the node was preempted`
ADVICE = re.compile(
    rb"[Tt]his (?:can|could|may|might) (?:also )?(?:happen|occur|be (?:due|caused))\b|[Tt]his indicates that\b|"
    rb"[Pp]ossible (?:[Cc]auses?|[Rr]easons?)\b|\b[Ss]olution:|\b[Ii]f you (?:see|get|suspect)\b"
)
NCCL_PLACE = re.compile(r"\brank (\d+) nranks \d+ cudaDev \d+ (?:nvmlDev \d+ )?busId ([0-9a-fA-F:]+)")
TEST_PLACE = re.compile(r"Rank +(\d+) .*? on +(\S+) +device +\d+ \[([^\]]*)\]")


def _advice(text: bytes, start: int, edge: int) -> int:
    """How far a line speaks of what happened, before it goes on to what may be behind it at other times."""
    begins = ADVICE.search(text, start, edge)
    return begins.end() if begins else edge


def _end(text: bytes, at: int) -> int:
    """End of the line that holds `at`, cut where nobody reads on."""
    newline = text.find(b"\n", max(0, at - 1), at + lines.LONGEST)
    stop = newline if newline >= 0 else min(len(text), at + lines.LONGEST)
    turn = text.find(b"\r", at, stop)
    return turn if turn >= 0 else stop


def place_of(line: Line) -> Place | None:
    if (match := NCCL_PLACE.search(line.text)) and line.host:
        return Place(rank=int(match[1]), host=line.host, pci=match[2].lower())
    if match := TEST_PLACE.search(line.text):
        return Place(rank=int(match[1]), host=match[2], pci=match[3].lower())
    return None


def read(chunks: Iterable[bytes], scanner: Scanner | None = None) -> Reading:
    reader = Reader(scanner)
    for chunk in chunks:
        reader.feed(chunk)
    return reader.reading()
