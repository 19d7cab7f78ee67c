"""Reads CSV tables that operators write, such as quotas, prices or speeds. Pure: the caller opens the file.

Columns may have any order, and spaces around values are ignored. Every error is one sentence that names the file, and
the line if there is one.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple


class TableRow(NamedTuple):
    where: str  # file and line
    cells: Mapping[str, str]  # by column; "" for optional columns that the table or the row lacks


class CsvTable:
    """The rows below a header, to be read once. `error` makes the exception from a sentence without a full stop."""

    def __init__(
        self,
        lines: Iterable[str],
        source: str,
        columns: Sequence[str],
        *,
        optional: Sequence[str] = (),
        max_rows: int = 100_000,
        error: Callable[[str], Exception],
    ) -> None:
        self._reader = csv.reader(lines, strict=True)
        self._source, self._max_rows, self._error = source, max_rows, error
        self._names, self._required = [*columns, *optional], columns
        self.header = [cell.strip().lower() for cell in next(self._lines(), [])]
        if not set(columns) <= set(self.header):
            raise error(f"{source} must be a CSV with the {'columns' if columns[1:] else 'column'} {','.join(columns)}")
        if repeated := next((name for name in self._names if self.header.count(name) > 1), None):
            raise error(f"{source} names the column {repeated} twice")

    def __iter__(self) -> Iterator[TableRow]:
        at = {name: self.header.index(name) for name in self._names if name in self.header}
        absent = {name: "" for name in self._names if name not in at}
        for number, cells in enumerate(filter(None, self._lines())):
            where = f"{self._source} line {self._reader.line_num}"
            if number >= self._max_rows:
                raise self._error(f"{self._source} has more than {self._max_rows:,} rows")
            if len(cells) > len(self.header) or any(at[name] >= len(cells) for name in self._required):
                raise self._error(f"{where}: expected {len(self.header)} values, found {len(cells)}")
            row = {name: cells[index].strip() if index < len(cells) else "" for name, index in at.items()}
            yield TableRow(where, row | absent)

    def _lines(self) -> Iterator[list[str]]:
        while True:
            try:
                cells = next(self._reader)
            except StopIteration:
                return
            except csv.Error as problem:
                raise self._error(f"{self._source} line {self._reader.line_num}: {problem}") from None
            yield cells
