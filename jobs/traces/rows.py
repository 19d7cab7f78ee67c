"""Parses tables, SWF and Philly's JSON from lines to a Trace. Pure: the caller has opened the file.

Rows are processed in blocks. A block is converted column by column, and only a block with a bad cell is parsed row by
row to find that cell. So a million rows take seconds, and memory holds the columns plus one block.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any

import numpy as np

from acmeweb.common.errors import InvalidInput
from jobs.traces.cells import CellParser, parse_cells, parse_time
from jobs.traces.layouts import KIND_NAMES, LAYOUTS, Columns, TraceLayout
from jobs.traces.trace import (
    MAX_QUOTED_ROWS,
    NUMBER_COLUMNS,
    EncodedColumn,
    Floats,
    InvalidRow,
    Trace,
    sort_by_submission,
)

BLOCK_ROWS = 20_000
TEXT_FIELDS = ("ids", "users", "pools", "kinds", "names", "states")
NUMBER_FIELDS = (
    "submit_s",
    "start",
    "end",
    "duration",
    "queue_s",
    "limit_s",
    "deadline_s",
    "gpus",
    "gpu_milli",
    "asked_gpus",
    "nodes",
    "cpus",
    "memory_mb",
)

MAX_GPUS = 10_000_000  # more than any cluster has, so larger values are errors

NumberedRow = tuple[int, list[str]]  # (line number, cells)


def read_text_trace(lines: Iterable[str], source: str = "trace") -> Trace:
    """Read any text layout. The first line determines which."""
    lines = iter(lines)
    first = next(lines, None)
    if first is None:
        raise InvalidInput(f"{source} is empty.")
    # Byte order mark, which spreadsheet programs write
    first = first.removeprefix("\ufeff")
    if first.lstrip().startswith(("[", "{")):
        try:
            jobs = json.loads(first + "".join(lines))
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"{source} begins like JSON but is not valid JSON: {error}.") from error
        return read_philly(jobs, source)
    if first.startswith(";"):
        return read_swf(chain([first], lines), source)
    return read_table(first, lines, source)


def read_table(header: str, lines: Iterable[str], source: str) -> Trace:
    # sacct -P separates columns with |, all other layouts with commas
    separator = "|" if header.count("|") > header.count(",") else ","
    try:
        names = [name.strip() for name in next(csv.reader([header], delimiter=separator), [])]
    except csv.Error as error:
        raise InvalidInput(f"{source}: the first line is not a valid header: {error}.") from error
    cells = csv.reader(lines, delimiter=separator, strict=True)
    reading = table_reader(names, source)
    rows = _number_rows(cells, reading)
    while block := list(islice(rows, BLOCK_ROWS)):
        reading.take(block)
    return reading.trace()


def read_columns(names: Sequence[str], blocks: Iterable[Sequence[Sequence[str]]], source: str) -> Trace:
    """Read a table that arrives in blocks of columns. Line numbers are row numbers, starting at 1."""
    reading, next_line = table_reader(names, source), 1
    for block in blocks:
        rows = [(line, list(cells)) for line, cells in enumerate(zip(*block, strict=True), next_line)]
        next_line += len(rows)
        reading.take(rows)
    return reading.trace()


def table_reader(names: Sequence[str], source: str) -> TableReader:
    """Return a reader for the layout that matches this header."""
    layout = next((known for known in LAYOUTS if known.marks.issubset(names)), None)
    if layout is None:
        known = "; ".join(f"{one.name} ({', '.join(sorted(one.marks))})" for one in LAYOUTS)
        columns = ", ".join(ascii(name)[1:-1][:40] for name in names[:12])
        raise InvalidInput(f"{source}: the header {columns} matches no known layout: {known}.")
    return TableReader(layout, names, source)


def _number_rows(cells: Iterator[list[str]], reading: TableReader) -> Iterator[NumberedRow]:
    """Yield rows with their line numbers. A line that is not valid CSV is recorded as bad."""
    while True:
        try:
            row = next(cells)
        except StopIteration:
            return
        except csv.Error as error:
            reading.refuse(cells.line_num + 1, str(error), [])  # type: ignore[attr-defined]
            continue
        if row:
            yield cells.line_num + 1, row  # type: ignore[attr-defined]


class TableReader:
    """Collects the columns of one table and its bad rows."""

    def __init__(self, layout: TraceLayout, header: Sequence[str], source: str) -> None:
        self._layout, self._source, self._width = layout, source, len(header)
        at = {name: index for index, name in enumerate(header)}
        words = (*layout.words.items(), *layout.better_words.items())
        self._words = {ours: at[theirs] for ours, theirs in words if theirs in at}
        self._numbers: dict[str, tuple[int, CellParser]] = {
            ours: (at[theirs], parse) for ours, (theirs, parse) in layout.numbers.items() if theirs in at
        }
        self._columns: dict[str, list[Floats]] = {name: [] for name in NUMBER_COLUMNS}
        self._known: dict[str, dict[str, int]] = {name: {} for name in TEXT_FIELDS if name != "ids"}
        # Texts are stored as codes: few distinct users and teams repeat in millions of rows
        self._codes: dict[str, list[np.ndarray[Any, np.dtype[np.int32]]]] = {name: [] for name in self._known}
        self._ids: list[str] = []
        self.bad: list[InvalidRow] = []
        self.bad_count = 0

    def refuse(self, line: int, why: str, row: Sequence[str]) -> None:
        """Count a bad row, and quote it if there are few so far."""
        self.bad_count += 1
        if len(self.bad) < MAX_QUOTED_ROWS:
            self.bad.append(InvalidRow(line=line, why=why, text=self._layout.separator.join(row)))

    def take(self, block: list[NumberedRow]) -> None:
        """Add a block of rows."""
        if skips := self._layout.skips:
            block = [row for row in block if not skips(row[1][0])]
        complete = [row for row in block if len(row[1]) == self._width]
        if len(complete) < len(block):
            for line, row in block:
                if len(row) != self._width:
                    self.refuse(line, f"{len(row)} cells, the header has {self._width}", row)
        if not complete:
            return
        try:
            columns = self._parse_block(complete)
        except ValueError:
            complete = [row for row in complete if self._is_readable(row)]
            columns = self._parse_block(complete)
        self._store_block(complete, columns)

    def _parse_block(self, block: list[NumberedRow]) -> Columns:
        cells = list(zip(*(row for _, row in block), strict=True)) or [()] * self._width
        missing = np.full(len(block), np.nan)
        columns = dict.fromkeys(NUMBER_FIELDS, missing)
        for name, (index, parse) in self._numbers.items():
            columns[name] = parse_cells(cells[index], parse) if block else missing
        return self._layout.finish(columns)

    def _is_readable(self, row: NumberedRow) -> bool:
        line, cells = row
        for index, parse in self._numbers.values():
            try:
                parse(cells[index])
            except ValueError:
                self.refuse(line, f"{cells[index]!r} cannot be read", cells)
                return False
        return True

    def _store_block(self, block: list[NumberedRow], columns: Columns) -> None:
        good = np.ones(len(block), dtype=bool)
        for row, why in _invalid_rows(columns):
            if good[row]:
                good[row] = False
                self.refuse(*block[row][:1], why, block[row][1])
        good_rows = [row for (_, row), is_good in zip(block, good.tolist(), strict=True) if is_good]
        self._store_texts(good_rows)
        for name in NUMBER_COLUMNS:
            self._columns[name].append(columns[name][good])

    def _store_texts(self, rows: list[list[str]]) -> None:
        index = self._words["ids"]
        self._ids += [row[index] for row in rows]
        for name, known in self._known.items():
            column = self._words.get(name)
            words = [row[column] for row in rows] if column is not None else [""] * len(rows)
            # dict.fromkeys keeps the order of first appearance, so codes do not depend on the block size
            for word in dict.fromkeys(words):
                known.setdefault(word, len(known))
            self._codes[name].append(np.fromiter(map(known.__getitem__, words), dtype=np.int32, count=len(rows)))

    def trace(self) -> Trace:
        columns: dict[str, Any] = {
            name: np.concatenate(parts or [np.empty(0)]) for name, parts in self._columns.items()
        }
        words = {
            name: EncodedColumn(
                codes=np.concatenate(self._codes[name] or [np.empty(0, np.int32)]),
                words=tuple(_normalize_kind(word) if name == "kinds" else word for word in known),
            )
            for name, known in self._known.items()
        }
        return _build_trace(self._source, self._ids, words, columns, self.bad, self.bad_count)


def _build_trace(
    source: str,
    ids: list[str],
    words: Mapping[str, EncodedColumn],
    columns: Columns,
    bad: Sequence[InvalidRow],
    bad_count: int,
) -> Trace:
    floats = ("submit_s", "runtime_s", "queue_s", "limit_s", "deadline_s", "cpus", "memory_mb")
    named_columns: dict[str, Any] = {**words, **{name: columns[name] for name in floats}}
    trace = Trace(
        source=source,
        ids=ids,
        **named_columns,
        gpus=np.nan_to_num(columns["gpus"]).astype(np.int32),
        gpu_milli=np.nan_to_num(columns["gpu_milli"]).astype(np.int32),
        nodes=np.maximum(np.nan_to_num(columns["nodes"], nan=1), 1).astype(np.int32),
        bad=tuple(bad),
        bad_count=bad_count,
    )
    return sort_by_submission(trace)


def _invalid_rows(columns: Columns) -> Iterator[tuple[int, str]]:
    """Yield rows that are readable but cannot be a job that ran."""
    submit, runtime, gpus = columns["submit_s"], columns["runtime_s"], columns["gpus"]
    for mask, why in (
        (~np.isfinite(submit), "no submission time"),
        (~np.isfinite(runtime), "no run time"),
        (runtime < 0, "negative run time"),
        (gpus < 0, "negative number of GPUs"),
        (gpus > MAX_GPUS, f"more than {MAX_GPUS:,} GPUs"),
    ):
        for row in np.flatnonzero(mask).tolist():
            yield row, why


def _normalize_kind(word: str) -> str:
    return KIND_NAMES.get(word.strip().lower(), word)


SWF_COLUMNS = {"submit_s": 1, "queue_s": 2, "duration": 3, "cpus": 4, "asked_cpus": 7, "limit_s": 8}


def read_swf(lines: Iterable[str], source: str = "swf") -> Trace:
    """Read Feitelson's Standard Workload Format: eighteen numbers per line, -1 for unknown, CPUs only."""
    layout = TraceLayout(
        name="swf",
        marks=frozenset(),
        words={"ids": "0", "states": "10", "users": "11", "pools": "15"},
        numbers={ours: (str(at), _negative_as_unknown) for ours, at in SWF_COLUMNS.items()},
        finish=_swf,
        separator=" ",
    )
    reading = TableReader(layout, [str(number) for number in range(18)], source)
    rows = ((at, line.split()) for at, line in enumerate(lines, 1) if line.strip() and not line.startswith(";"))
    while block := list(islice(rows, BLOCK_ROWS)):
        reading.take(block)
    return reading.trace()


def _negative_as_unknown(cell: str) -> float:
    value = float(cell)
    return math.nan if value < 0 else value


def _swf(columns: Columns) -> Columns:
    columns["runtime_s"] = columns["duration"]
    columns["cpus"] = np.where(columns["cpus"] > 0, columns["cpus"], columns["asked_cpus"])
    return columns


def read_philly(jobs: Sequence[Mapping[str, Any]], source: str = "philly") -> Trace:
    """Read Microsoft's cluster_job_log: a list of jobs with attempts. The run time is the sum over the attempts.

    The line number of a bad row is its position in the list, starting at 1.
    """
    layout = TraceLayout(
        name="philly",
        marks=frozenset(),
        words={"ids": "0", "users": "1", "pools": "2", "states": "3"},
        numbers={"submit_s": ("4", parse_time), "duration": ("5", float), "gpus": ("6", float), "nodes": ("7", float)},
        finish=lambda columns: {**columns, "runtime_s": columns["duration"]},
    )
    reading = TableReader(layout, [str(number) for number in range(8)], source)
    rows: list[NumberedRow] = []
    for at, job in enumerate(jobs, 1):
        try:
            rows.append((at, _philly_row(job)))
        # The structure of the JSON is not validated, so a bad job can fail in any of these ways
        except (KeyError, TypeError, ValueError, IndexError) as error:
            why = str(error) if type(error) is ValueError else f"is not a job in this layout ({error})"
            reading.refuse(at, why, [json.dumps(job, default=str)])
    for start in range(0, len(rows), BLOCK_ROWS):
        reading.take(rows[start : start + BLOCK_ROWS])
    return replace(reading.trace(), source=source)


def _philly_row(job: Mapping[str, Any]) -> list[str]:
    attempts = [attempt for attempt in job["attempts"] if attempt.get("start_time") and attempt.get("end_time")]
    if not attempts:
        raise ValueError("no attempt that started and ended")
    runtime_s = sum(parse_time(attempt["end_time"]) - parse_time(attempt["start_time"]) for attempt in attempts)
    hosts = attempts[0]["detail"]
    gpus = sum(len(place["gpus"]) for place in hosts)
    words = [_storable_text(job[name]) for name in ("jobid", "user", "vc", "status")]
    return [*words, str(job["submitted_time"]), str(runtime_s), str(gpus), str(max(1, len(hosts)))]


def _storable_text(value: Any) -> str:
    """Replace characters that JSON can contain but the database cannot store."""
    return str(value).encode("utf-8", "replace").decode().replace("\x00", "?")
