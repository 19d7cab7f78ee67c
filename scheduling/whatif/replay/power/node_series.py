"""Reads a series of active nodes, `time,active,total`, and reduces it to the maximum of each ten minutes. Pure: the
caller opens the file.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from acmeweb.common.errors import InvalidInput
from jobs.traces.cells import parse_time
from jobs.traces.csv_table import CsvTable
from scheduling.power.rules.awake_nodes import STEP_S, NodeSeries

COLUMNS = ("time", "active", "total")
MAX_ROWS = 20_000_000
MAX_NODES = 1_000_000
LAST_TIME_S = 253_402_300_799.0  # the end of the year 9999
NodeRow = tuple[float, int, int]


def read_series(lines: Iterable[str], source: str) -> NodeSeries:
    """Return the series of a CSV file. Raises `InvalidInput`."""
    steps: list[int] = []
    active: list[int] = []
    total: list[int] = []
    rows = 0
    for at_s, busy, nodes in _rows(lines, source):
        rows += 1
        step = int(at_s // STEP_S)
        if steps and step == steps[-1]:
            active[-1], total[-1] = max(active[-1], busy), max(total[-1], nodes)
        else:
            steps.append(step)
            active.append(busy)
            total.append(nodes)
    if not rows:
        raise InvalidInput(f"{source}: the file has no rows below its header.")
    columns = (np.array(column, dtype=np.int64) for column in (steps, active, total))
    return NodeSeries(**dict(zip(("steps", "active", "total"), columns, strict=True)), rows=rows)


def _rows(lines: Iterable[str], source: str) -> Iterator[NodeRow]:
    last_s = -math.inf
    for where, cells in CsvTable(lines, source, COLUMNS, max_rows=MAX_ROWS, error=_invalid):
        try:
            row = _parse_row(cells)
            if row[0] < last_s:
                raise ValueError(f"time {cells['time'][:40]!r} is before the time of the line above")
        except ValueError as error:
            raise InvalidInput(f"{where}: {error}.") from None
        last_s = row[0]
        yield row


def _invalid(text: str) -> InvalidInput:
    return InvalidInput(f"{text}.")


def _parse_row(cells: Mapping[str, str]) -> NodeRow:
    at_s = _parse_time(cells["time"])
    active, total = (_parse_count(name, cells[name]) for name in ("active", "total"))
    if active > total:
        raise ValueError(f"active {active} is more than total {total}")
    return at_s, active, total


def _parse_time(cell: str) -> float:
    try:
        at_s = parse_time(cell[:40])
    except (ValueError, OverflowError):
        at_s = math.nan
    if not 0 <= at_s <= LAST_TIME_S:
        raise ValueError(f"time {cell[:40]!r} is neither a date and time nor seconds since 1970")
    return at_s


def _parse_count(name: str, cell: str) -> int:
    try:
        number = float(cell)
    except ValueError:
        number = math.nan
    if not (0 <= number <= MAX_NODES and number == int(number)):
        raise ValueError(f"{name} {cell[:40]!r} is not a whole number from 0 to {MAX_NODES:,}")
    return int(number)
