"""Searches a log of any size for lines with a text, of a rank, or of a level.

A request reads at most `MAX_SCANNED_BYTES`. The response contains how far the search came, so that the client can
continue. The search text is matched literally, never as a pattern.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from jobs.logs.job_log import CHUNK_BYTES, LogFile, decode_log_text
from jobs.logs.log_chunks import line_number_at, line_start_before
from jobs.logs.log_source import LogSource

MAX_SCANNED_BYTES = 64 * 1024 * 1024
MAX_HITS = 200
MAX_HIT_BYTES = 500
CONTEXT_BYTES = 4096  # read on either side of a hit
OVERLAP = 4096  # longer than the longest search text, so that no match is lost between two chunks

ERROR_WORDS = ("abort", "critical", "error", "exception", "failed", "fatal", "killed", "panic", "traceback")
LEVEL_WORDS = {"error": ERROR_WORDS, "warning": (*ERROR_WORDS, "warn")}

LineMatcher = Callable[[bytes, int], Iterator[int]]  # (bytes, stop) -> offsets of matches before stop


def text_matcher(text: str) -> LineMatcher:
    """Match case-insensitively. Several times faster than a regular expression, which folds each byte separately."""
    return words_matcher([text])


def words_matcher(words: list[str] | tuple[str, ...]) -> LineMatcher:
    """Match lines that contain any of these words, in upper or lower case."""
    needles = [word.encode().lower() for word in words]

    def find_words(raw: bytes, stop: int) -> Iterator[int]:
        lowered = raw.lower()
        return heapq.merge(*(_find_in_lines(lowered, needle, stop) for needle in needles))

    return find_words


def _find_in_lines(lowered: bytes, needle: bytes, stop: int) -> Iterator[int]:
    """Yield the first place of the needle in each line."""
    at = -1
    while (at := lowered.find(needle, at + 1, stop)) >= 0:
        yield at
        at = lowered.find(b"\n", at, stop)
        if at < 0:
            return


def rank_matcher(number: int) -> LineMatcher:
    """Match the notations of trainers and launchers: [rank3], rank=3, `3:` at the start of a line."""
    pattern = _rank_pattern(number)
    return lambda raw, stop: (match.start() for match in pattern.finditer(raw, 0, stop))


def _rank_pattern(rank: int) -> re.Pattern[bytes]:
    return re.compile(rb"\[rank ?%d\]|\brank[ =:]{1,2}%d\b|^ *%d: " % (rank, rank, rank), re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class LineFilter:
    """What a line must have: a text, a rank, a level. Empty values are not required."""

    text: str = ""
    rank: int | None = None
    level: str = ""

    def __bool__(self) -> bool:
        return bool(self.text or self.level) or self.rank is not None

    @cached_property
    def _matchers(self) -> list[LineMatcher]:
        text = [text_matcher(self.text)] if self.text else []
        rank = [] if self.rank is None else [rank_matcher(self.rank)]
        level = [words_matcher(LEVEL_WORDS[self.level])] if self.level else []
        return text + rank + level

    def find_candidates(self, raw: bytes, stop: int) -> Iterator[int]:
        return self._matchers[0](raw, stop)

    def accepts(self, line: bytes) -> bool:
        """Whether a candidate fulfils the other conditions too."""
        return all(next(matcher(line, len(line)), None) is not None for matcher in self._matchers[1:])


@dataclass(frozen=True, kw_only=True)
class LogRow:
    """A line of search results: a hit or a line near one."""

    at: int
    end: int  # offset after the line
    text: str
    number: int | None
    is_hit: bool


@dataclass(frozen=True, kw_only=True)
class SearchHits:
    """Lines that match, and how far the search came."""

    rows: list[LogRow]
    until: int  # offset up to which the log was searched
    size: int

    @property
    def count(self) -> int:
        return sum(row.is_hit for row in self.rows)

    @property
    def more(self) -> bool:
        return self.until < self.size

    @property
    def groups(self) -> list[list[LogRow]]:
        """The rows, divided where lines between them are not shown."""
        groups: list[list[LogRow]] = []
        for row in self.rows:
            if groups and groups[-1][-1].end == row.at:
                groups[-1].append(row)
            else:
                groups.append([row])
        return groups


def search(source: LogSource, wanted: LineFilter, at: int, context: int = 0) -> SearchHits:
    """Return the matching lines from byte `at` on, each once, with `context` lines before and after them."""
    log = LogFile(source)
    begin = line_start_before(log, min(at, log.size))
    hits = _search_open_log(log, wanted, begin, log.size, line_number_at(log, begin))
    rows = _add_context(log, hits.rows, context) if context else hits.rows
    return SearchHits(rows=rows, until=hits.until, size=hits.size)


def _search_open_log(log: LogFile, wanted: LineFilter, at: int, size: int, number: int | None = 1) -> SearchHits:
    """`number` is the number of the line at `at`."""
    hits: list[LogRow] = []
    stop = min(size, at + MAX_SCANNED_BYTES)
    while at < stop and (raw := log.pread(CHUNK_BYTES + OVERLAP, at)):
        # Search whole lines if there are any. The rest is read again with the next chunk
        whole = len(raw) if at + len(raw) >= size else raw.rfind(b"\n") + 1 or CHUNK_BYTES
        for begin, end, line_number in _matching_lines(raw, whole, wanted, number):
            text = decode_log_text(raw[begin : min(end, begin + MAX_HIT_BYTES)])
            hits.append(LogRow(at=at + begin, end=at + end + 1, text=text, number=line_number, is_hit=True))
            if len(hits) == MAX_HITS:
                return SearchHits(rows=hits, until=min(at + end + 1, size), size=size)
        number = None if number is None else number + raw.count(b"\n", 0, whole)
        at += whole
    return SearchHits(rows=hits, until=min(at, size), size=size)


def _matching_lines(
    raw: bytes, stop: int, wanted: LineFilter, number: int | None
) -> Iterator[tuple[int, int, int | None]]:
    """Yield (begin, end, line number) of the lines that match before `stop`."""
    last_begin, counted = -1, 0
    for match in wanted.find_candidates(raw, stop):
        begin = raw.rfind(b"\n", 0, match) + 1
        if begin == last_begin:
            continue
        last_begin, newline = begin, raw.find(b"\n", match)
        end = newline if newline >= 0 else stop
        if wanted.accepts(raw[begin:end]):
            number = None if number is None else number + raw.count(b"\n", counted, begin)
            counted = begin
            yield begin, end, number


def _add_context(log: LogFile, hits: list[LogRow], count: int) -> list[LogRow]:
    """Return the hits and `count` lines before and after each, every line once."""
    spans = [(min(CONTEXT_BYTES, hit.at), max(0, hit.at - CONTEXT_BYTES)) for hit in hits]
    spans += [(CONTEXT_BYTES, hit.end) for hit in hits]
    pieces = log.pread_pieces(spans) if hits else []
    rows: dict[int, LogRow] = {}
    for hit, before, after in zip(hits, pieces[: len(hits)], pieces[len(hits) :], strict=True):
        for row in (*_rows_before(hit, before, count), *_rows_after(hit, after, count, log.size)):
            rows.setdefault(row.at, row)
    rows |= {hit.at: hit for hit in hits}
    return [rows[at] for at in sorted(rows)]


def _rows_before(hit: LogRow, raw: bytes, count: int) -> Iterator[LogRow]:
    lines, end = raw.split(b"\n")[:-1], hit.at
    # The first line is incomplete unless the log starts there
    complete = lines if len(raw) == hit.at else lines[1:]
    for back, line in enumerate(complete[: -count - 1 : -1], 1):
        at = end - len(line) - 1
        yield _context_row(at, line, None if hit.number is None else hit.number - back)
        end = at


def _rows_after(hit: LogRow, raw: bytes, count: int, size: int) -> Iterator[LogRow]:
    lines, at = raw.split(b"\n"), hit.end
    # The last line is incomplete, or empty, unless the log ends in it
    complete = lines if lines[-1] and hit.end + len(raw) >= size else lines[:-1]
    for ahead, line in enumerate(complete[:count], 1):
        yield _context_row(at, line, None if hit.number is None else hit.number + ahead)
        at += len(line) + 1


def _context_row(at: int, line: bytes, number: int | None) -> LogRow:
    text = decode_log_text(line[:MAX_HIT_BYTES])
    return LogRow(at=at, end=at + len(line) + 1, text=text, number=number, is_hit=False)
