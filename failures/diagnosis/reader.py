"""Reads a log in chunks of any size and collects the findings in it. Pure; memory is bounded for any input.

The text is scanned in blocks of about one megabyte that end at a newline; only lines with a matching signature are
processed in Python. Very long lines are cut into blocks too. The collected data is bounded: one tally per signature and
label, a few thousand GPU events, the last lines of the text. The result does not depend on the size of the chunks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from . import catalogue, cleaning, lines
from .parsers import collectives, gpu_events
from .parsers.frames import IGNORED_FRAME, traceback_frames
from .scan import Scanner, shipped_scanner
from .signatures import Signature
from .table import exceptions
from .values import CollectivePosition, LineRole, LogFinding, ParsedLine, SignatureTrait

BLOCK_BYTES = 1 << 20
CONTEXT_BYTES = 8 << 10
TAIL_BYTES = 16 << 10
MAX_GPU_EVENTS = 4096
MAX_RANKS = 4096
MAX_LOCATIONS = 16384
MAX_DETAILED_MATCHES = 300  # matches of one signature that are parsed; later ones are only counted
MAX_VARIED_MATCHES = 20 * MAX_DETAILED_MATCHES
MAX_EXTRA_LINES = 3
DIGITS = re.compile(r"\d+")
STATE_ATTRIBUTES = ("_pending", "_head", "_before", "_line", "_size", "_sentence", "_judged", "_tallies", "_sightings",
                    "_events", "_places")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RankLocation:
    rank: int
    host: str
    pci: str = ""


@dataclass(frozen=True, kw_only=True)
class LogReading:
    findings: tuple[LogFinding, ...]
    gpu_events: tuple[gpu_events.GpuEvent, ...]
    places: tuple[RankLocation, ...]
    lines: int
    size: int
    sentence: str
    tail: tuple[tuple[int, str], ...]  # number and text of the last lines, without blank ones
    rules_version: str


@dataclass
class SignatureTally:
    """The matches of one signature under one label so far."""

    finding: LogFinding
    weak: bool  # only mentioned so far, not raised
    more: list[ParsedLine] = field(default_factory=list)
    count: int = 0
    last_number: int = 0
    ranks: set[int] = field(default_factory=set)
    collectives: dict[tuple[str, int], CollectivePosition] = field(default_factory=dict)  # by group and rank

    def again(self, number: int) -> None:
        self.count += 1
        self.last_number = number

    def keep(self, line: ParsedLine) -> None:
        """Keep a few more lines if their words differ: users need other messages, not the same one from 40 ranks."""
        if len(self.more) < MAX_EXTRA_LINES and line.number != self.finding.line.number:
            words = DIGITS.sub("#", line.message)
            if all(words != DIGITS.sub("#", other.message) for other in (self.finding.line, *self.more)):
                self.more.append(line)

    def keep_collective(self, line: ParsedLine) -> None:
        """Keep the first operation that each rank of a process group reports."""
        if len(self.collectives) < MAX_RANKS and (position := collectives.parse_position(line)):
            self.collectives.setdefault((position.group, position.rank), position)

    def build_finding(self) -> LogFinding:
        return replace(
            self.finding, count=self.count, last_number=self.last_number, ranks=tuple(sorted(self.ranks)),
            more=tuple(self.more), collectives=tuple(self.collectives.values()),
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SignatureMatch:
    """A signature that matched a line, with the label and specificity for this line."""

    signature: Signature
    label: str
    specificity: int
    weak: bool
    is_raised: bool = False  # an exception as Python prints it: the message begins with its name


def match_signature(signature: Signature, line: ParsedLine) -> SignatureMatch | None:
    """The match of a signature with a line; None if the details of the line rule it out."""
    if SignatureTrait.EXCEPTION in signature.traits:
        return _match_exception(signature, line)
    if SignatureTrait.HEALTH_CODE in signature.traits:
        return _match_health_code(signature, line)
    weak = signature.specificity < MIN_SPECIFICITY_AT_ANY_LEVEL and line.level in ("DEBUG", "INFO", "NOTICE")
    return SignatureMatch(signature=signature, label=signature.label, specificity=signature.specificity, weak=weak)


def _match_health_code(signature: Signature, line: ParsedLine) -> SignatureMatch | None:
    code = DCGM_CODE.search(line.text)
    label, _ = catalogue.dcgm_codes().get(code[0] if code else "", (signature.label, ""))
    if not label:
        return None
    return SignatureMatch(signature=signature, label=label, specificity=signature.specificity, weak=False)


def _match_exception(signature: Signature, line: ParsedLine) -> SignatureMatch | None:
    named = exceptions.match_exception(line.message)
    if named is None:
        return _match_unknown_exception(signature, line)
    label, specificity, column = named
    before = line.message[:column]
    weak = line.level in lines.LOW_LEVELS or CAUTION_WORDS.search(before) is not None
    if (
        column
        and not weak
        and line.level not in ("ERROR", "FATAL", "CRITICAL")
        and not ERROR_INTRODUCTION.search(before)
    ):
        weak = True
    return SignatureMatch(
        signature=signature, label=label, specificity=specificity, weak=weak, is_raised=not column and not weak
    )


def _match_unknown_exception(signature: Signature, line: ParsedLine) -> SignatureMatch | None:
    name = exceptions.unknown_exception_name(line.message)
    if name is None:
        return None
    weak = not exceptions.is_in_exception_module(line.message)
    return SignatureMatch(
        signature=signature, label=exceptions.label_by_name(name), specificity=UNKNOWN_EXCEPTION_SPECIFICITY, weak=weak
    )


class SignatureReader:
    """Call feed() with each chunk, and build_reading() at any time for the result so far."""

    def __init__(self, scanner: Scanner | None = None) -> None:
        self._scanner = scanner or shipped_scanner()
        self._signatures, self._unless = self._scanner.signatures, self._scanner.unless
        self._pending = bytearray()
        self._head = b""
        self._before = b""
        self._line = 1
        self._size = 0
        self._sentence = ""
        self._judged = False
        self._tallies: dict[tuple[str, str], SignatureTally] = {}
        self._sightings: dict[int, int] = {}
        self._events: list[gpu_events.GpuEvent] = []
        self._places: dict[int, RankLocation] = {}

    @property
    def rules_version(self) -> str:
        return self._scanner.version

    def state(self) -> dict[str, Any]:
        """Everything that has been read so far, for `restore_state`. The head is dropped once it has been checked."""
        known = {name: getattr(self, name) for name in STATE_ATTRIBUTES}
        return known | {"_head": b""} if self._judged else known

    def restore_state(self, state: dict[str, Any]) -> None:
        """Continue from the state of another reader with the same rules."""
        for name in STATE_ATTRIBUTES:
            setattr(self, name, state[name])

    def feed(self, chunk: bytes) -> None:
        self._size += len(chunk)
        if self._sentence:
            return
        if not self._judged and len(self._head) < cleaning.SAMPLE_BYTES:
            self._head += chunk[: cleaning.SAMPLE_BYTES - len(self._head)]
        view = memoryview(chunk)
        while view.nbytes:
            part = view[: BLOCK_BYTES - len(self._pending)] if len(self._pending) < BLOCK_BYTES else view[:0]
            self._pending += part
            view = view[part.nbytes :]
            if len(self._pending) >= BLOCK_BYTES:
                self._scan_whole_lines()

    def _scan_whole_lines(self) -> None:
        """Scan up to the last newline. A line longer than a block is cut at a carriage return, or anywhere."""
        self._check_input()
        if self._sentence:
            self._pending.clear()
            return
        cut = self._pending.rfind(b"\n") + 1 or self._pending.rfind(b"\r") + 1 or len(self._pending)
        with memoryview(self._pending) as view:  # slicing the bytearray directly would copy it twice
            block = bytes(view[:cut])
        del self._pending[:cut]
        self._scan_block(block)

    def _check_input(self) -> None:
        """Check once, before the first scan, whether this is a text file at all."""
        if not self._judged:
            self._judged, self._sentence = True, cleaning.non_text_message(self._head)

    def scan_pending_lines(self) -> None:
        """Scan all complete lines now, for a follower that cannot wait for a full block."""
        if b"\n" in self._pending:
            self._scan_whole_lines()

    def findings(self) -> tuple[LogFinding, ...]:
        return tuple(tally.build_finding() for tally in self._tallies.values() if tally.count)

    def build_reading(self) -> LogReading:
        """The result so far, including an unfinished last line."""
        self._check_input()
        if self._pending and not self._sentence:
            block = bytes(self._pending)
            self._pending.clear()
            self._scan_block(block)
        sentence = self._sentence or ("The log is empty." if not self._before.strip() else "")
        return LogReading(
            findings=self.findings(),
            gpu_events=tuple(self._events), places=tuple(self._places.values()), lines=self._line_count(),
            size=self._size, sentence=sentence, tail=self._tail_lines(), rules_version=self._scanner.version,
        )  # fmt: skip

    def _line_count(self) -> int:
        return self._line - 1 + (1 if self._before and not self._before.endswith(b"\n") else 0)

    def _tail_lines(self) -> tuple[tuple[int, str], ...]:
        rows = self._before.replace(b"\r", b"\n").decode("utf-8", "replace").splitlines()
        first = self._line_count() - len(rows) + 1
        return tuple((max(1, first + at), row[: lines.MAX_LINE_CHARS]) for at, row in enumerate(rows) if row.strip())

    def _scan_block(self, block: bytes) -> None:
        text = cleaning.strip_control_bytes(block)
        counted, number = 0, self._line
        for start, end, ids in self._lines_with_hits(text):
            number += text.count(b"\n", counted, start)
            counted = start
            self._process_line(text, start, end, ids, number)
        self._line += cleaning.count_newlines(block)
        self._before = (self._before + text)[-TAIL_BYTES:] if len(text) < TAIL_BYTES else text[-TAIL_BYTES:]

    def _lines_with_hits(self, text: bytes) -> list[tuple[int, int, list[int]]]:
        """(start, end, signature indices) of each line with hits. A carriage return begins a line, as on a terminal."""
        rows: list[tuple[int, int, list[int]]] = []
        edge = statement_edge = -1
        for at, index in self._scanner.hits(text):
            if at <= edge and rows:
                if at <= statement_edge and index not in rows[-1][2]:
                    rows[-1][2].append(index)
                continue
            above = text.rfind(b"\n", 0, at)  # a carriage return further up belongs to another line
            start = max(above, text.rfind(b"\r", above + 1, at - 1), at - lines.MAX_LINE_CHARS) + 1
            edge = _line_end(text, at)
            statement_edge = _statement_end(text, start, edge)
            rows.append((start, edge, [index] if at <= statement_edge else []))
        return [row for row in rows if row[2]]

    def _process_line(self, text: bytes, start: int, end: int, ids: list[int], number: int) -> None:
        if all(self._is_over_limit(index) for index in ids):
            for index in ids:
                self._count_match(self._signatures[index], number)
            return
        line = lines.parse(number, text[start:end].decode("utf-8", "replace"))
        for index in ids:
            self._sightings[index] = self._sightings.get(index, 0) + 1
        winner = self._best_match(ids, line, text, start)
        if winner is None:
            return
        if winner.signature.role is LineRole.PLACE:
            self._record_location(line)
        elif SignatureTrait.GPU_EVENT in winner.signature.traits:
            self._record_gpu_event(winner.signature, line)
        else:
            self._record_match(winner, line, text, start)

    def _is_over_limit(self, index: int) -> bool:
        """Whether this signature has matched so often that its lines are no longer parsed."""
        row = self._signatures[index]
        varied = SignatureTrait.VARIED in row.traits or row.role is LineRole.PLACE
        return self._sightings.get(index, 0) > (MAX_VARIED_MATCHES if varied else MAX_DETAILED_MATCHES)

    def _count_match(self, signature: Signature, number: int) -> None:
        if tally := self._tallies.get((signature.name, signature.label)):
            tally.again(number)

    def _best_match(self, ids: list[int], line: ParsedLine, text: bytes, start: int) -> SignatureMatch | None:
        """The most specific match on a line; None if a benign signature explains the line."""
        if SOURCE_LINE.match(line.message):
            return None
        rows = [self._signatures[index] for index in ids if not self._is_excluded(index, line.text)]
        matches = [match for row in rows if row.role is not LineRole.BENIGN and (match := match_signature(row, line))]
        if any(SignatureTrait.ERROR_CODE in row.traits for row in rows):
            matches = [match for match in matches if SignatureTrait.ERROR_CODE in match.signature.traits]
        else:
            matches = _drop_quoted_names(matches)
        best = max(matches, key=lambda match: match.specificity, default=None)
        if best is None or best.specificity > _benign_specificity(rows):
            return best
        unambiguous = [row for row in rows if SignatureTrait.AMBIGUOUS not in row.traits]
        raised = any(match.is_raised for match in matches) and best.specificity > _benign_specificity(unambiguous)
        return best if raised and self._frames_above(text, start, line) else None

    def _is_excluded(self, index: int, text: str) -> bool:
        unless = self._unless[index]
        return unless is not None and unless.search(text) is not None

    def _record_match(self, match: SignatureMatch, line: ParsedLine, text: bytes, start: int) -> None:
        key = (match.signature.name, match.label)
        tally = self._tallies.get(key)
        if tally and tally.last_number == line.number:
            return
        if tally is None or (tally.weak and not match.weak):
            tally = self._replace_tally(key, tally, self._new_tally(match, line, text, start))
        tally.again(line.number)
        tally.keep(line)
        if SignatureTrait.HEALTHY_RANKS_COMPLAIN in match.signature.traits:
            tally.keep_collective(line)
        if line.rank is not None and len(tally.ranks) < MAX_RANKS:
            tally.ranks.add(line.rank)

    def _new_tally(self, match: SignatureMatch, line: ParsedLine, text: bytes, start: int) -> SignatureTally:
        frames = self._frames_above(text, start, line)
        weak = IGNORED_FRAME in frames or (match.weak and not frames)
        finding = LogFinding(
            signature=match.signature.name, label=match.label, role=match.signature.role,
            specificity=match.specificity // 2 if weak else match.specificity, blame=match.signature.blame,
            restart=match.signature.restart, line=line, frames=frames, note=MENTION_NOTE if weak else "",
            traits=match.signature.traits,
        )  # fmt: skip
        return SignatureTally(finding=finding, weak=weak)

    def _replace_tally(self, key: tuple[str, str], old: SignatureTally | None, new: SignatureTally) -> SignatureTally:
        """Replace a tally of mentions by one of a raised error, which is better evidence."""
        if old is not None:
            if new.weak:
                return old
            new.count, new.ranks, new.collectives = old.count, old.ranks, old.collectives
        self._tallies[key] = new
        return new

    def _frames_above(self, text: bytes, start: int, line: ParsedLine) -> tuple[str, ...]:
        """The traceback above a line, of the same rank, as far as this block and the end of the previous one reach."""
        above = text[max(0, start - CONTEXT_BYTES) : start]
        if start < CONTEXT_BYTES:
            above = self._before[-CONTEXT_BYTES:] + above
        rows = above.decode("utf-8", "replace").splitlines()
        return tuple(traceback_frames(rows, line))

    def _record_gpu_event(self, signature: Signature, line: ParsedLine) -> None:
        event = gpu_events.parse_gpu_event(line)
        if event is None:
            return
        if len(self._events) < MAX_GPU_EVENTS:
            self._events.append(event)
        key = (f"{event.kind.lower()}-{event.code}", event.label)
        tally = self._tallies.get(key)
        if tally is None:
            finding = LogFinding(
                signature=key[0], label=event.label, role=event.role, specificity=event.specificity,
                blame=signature.blame, restart=None, line=line, note=event.note, traits=event.traits,
            )  # fmt: skip
            tally = self._tallies[key] = SignatureTally(finding=finding, weak=False)
        elif event.specificity > tally.finding.specificity:
            tally.finding = replace(tally.finding, specificity=event.specificity, line=line, note=event.note)
        tally.again(line.number)

    def _record_location(self, line: ParsedLine) -> None:
        if (place := parse_location(line)) and len(self._places) < MAX_LOCATIONS:
            self._places.setdefault(place.rank, place)


def _benign_specificity(rows: list[Signature]) -> int:
    return max((row.specificity for row in rows if row.role is LineRole.BENIGN), default=-1)


def _drop_quoted_names(matches: list[SignatureMatch]) -> list[SignatureMatch]:
    """The matches without names that a code error only quotes, such as `cannot import name 'S3Error'`."""
    label = next((match.label for match in matches if match.is_raised and match.label in CODE_ERROR_LABELS), None)
    return [match for match in matches if label is None or match.label == label]


MENTION_NOTE = "mentioned"
CODE_ERROR_LABELS = frozenset({"ImportError", "NameError", "AttributeError", "ZeroDivisionError"})
DCGM_CODE = re.compile(r"DCGM_FR_[A-Z0-9_]+")
# Source lines that tracebacks quote: they name errors that were not raised there
SOURCE_LINE = re.compile(r"\s*(?:raise \w|except\b.*:$|File \"[^\"]+\", line \d+|warnings\.warn\()")
MIN_SPECIFICITY_AT_ANY_LEVEL = 44
UNKNOWN_EXCEPTION_SPECIFICITY = 38  # an exception with an unknown name
CAUTION_WORDS = re.compile(r"(?i)\bwarn|\bnote\b|\bignor|\boptional|\bskip|\bdebug\b")
ERROR_INTRODUCTION = re.compile(
    r"(?i)^\W*$|^[\w./-]+: *$|(?:message|what\(\)|errors?|exceptions?|caused by|causes?|caught|raised?|fail(?:ed|ure)|"
    r"reason|\"name\"|"
    r"died|with|traceback|<class)\W*$"
)
# The rest of the line lists possible causes: `this can happen if the node was preempted`
ADVICE_START = re.compile(
    rb"[Tt]his (?:can|could|may|might) (?:also )?(?:happen|occur|be (?:due|caused))\b|[Tt]his indicates that\b|"
    rb"[Pp]ossible (?:[Cc]auses?|[Rr]easons?)\b|\b[Ss]olution:|\b[Ii]f you (?:see|get|suspect)\b"
)
NCCL_LOCATION = re.compile(r"\brank (\d+) nranks \d+ cudaDev \d+ (?:nvmlDev \d+ )?busId ([0-9a-fA-F:]+)")
MEGATRON_LOCATION = re.compile(r"Rank +(\d+) .*? on +(\S+) +device +\d+ \[([^\]]*)\]")


def _statement_end(text: bytes, start: int, edge: int) -> int:
    """The end of the part of a line that states what happened, before a list of possible causes."""
    begins = ADVICE_START.search(text, start, edge)
    return begins.end() if begins else edge


def _line_end(text: bytes, at: int) -> int:
    """The end of the line that contains `at`, or MAX_LINE_CHARS further if it is longer."""
    newline = text.find(b"\n", max(0, at - 1), at + lines.MAX_LINE_CHARS)
    stop = newline if newline >= 0 else min(len(text), at + lines.MAX_LINE_CHARS)
    turn = text.find(b"\r", at, stop)
    return turn if turn >= 0 else stop


def parse_location(line: ParsedLine) -> RankLocation | None:
    """The host and GPU of a rank, if the line reports them."""
    if (match := NCCL_LOCATION.search(line.text)) and line.host:
        return RankLocation(rank=int(match[1]), host=line.host, pci=match[2].lower())
    if match := MEGATRON_LOCATION.search(line.text):
        return RankLocation(rank=int(match[1]), host=match[2], pci=match[3].lower())
    return None


def read_log(chunks: Iterable[bytes], scanner: Scanner | None = None) -> LogReading:
    reader = SignatureReader(scanner)
    for chunk in chunks:
        reader.feed(chunk)
    return reader.build_reading()
