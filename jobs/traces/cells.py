"""Converts the cells of a table to numbers, whole columns at a time."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import numpy as np

from jobs.traces.trace import Floats

BLANK_CELLS = frozenset({"", "-", "NA", "N/A", "nan", "NaN", "None", "null", "NULL", "Unknown"})
_PLAIN_TIME = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d")
_CLOCK = re.compile(r"(?:(\d+)-)?(\d+):(\d\d)(?::(\d\d(?:\.\d+)?))?$")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGT]?)i?B?[nc]?$", re.IGNORECASE)
_GPU = re.compile(r"gres/gpu(:[^=,:]+)?[=:](\d{1,18})")

CellParser = Callable[[str], float]


def parse_cells(cells: Sequence[str], parse: CellParser) -> Floats:
    """Return a column of numbers. Raises ValueError for a bad cell; the caller then parses row by row to find it."""
    blanks = cells.count("")
    if blanks == len(cells):
        return np.full(len(cells), math.nan)
    # Fast paths for whole columns. A ValueError falls back to parsing cell by cell
    if parse is parse_number:
        try:
            filled = [cell or "nan" for cell in cells] if blanks else cells
            return np.fromiter(map(float, filled), dtype=np.float64, count=len(cells))
        except ValueError:
            pass
    if parse is parse_time:
        try:
            return _parse_plain_times(cells)
        except ValueError:
            pass
    return np.fromiter(map(parse, cells), dtype=np.float64, count=len(cells))


def parse_number(cell: str) -> float:
    return math.nan if cell.strip() in BLANK_CELLS else float(cell)


def parse_time(cell: str) -> float:
    """Return Unix seconds. A time without a zone is taken as UTC, because only differences matter to a replay."""
    cell = cell.strip()
    if cell in BLANK_CELLS:
        return math.nan
    # Unix seconds, possibly with a fraction
    if cell.replace(".", "", 1).isdigit():
        return float(cell)
    timestamp = datetime.fromisoformat(cell)
    return (timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=UTC)).timestamp()


def parse_slurm_clock(cell: str) -> float:
    """Parse Slurm's [days-]hours:minutes:seconds, or plain seconds."""
    cell = cell.strip()
    if cell in BLANK_CELLS or cell in ("UNLIMITED", "Partition_Limit"):
        return math.nan
    if matched := _CLOCK.match(cell):
        days, first, second, third = matched.groups()
        if third is None:
            return float(days or 0) * 86400 + float(first) * 60 + float(second)
        return float(days or 0) * 86400 + float(first) * 3600 + float(second) * 60 + float(third)
    return float(cell)


def parse_megabytes(cell: str) -> float:
    cell = cell.strip()
    if cell in BLANK_CELLS:
        return math.nan
    if not (matched := _SIZE.match(cell)):
        raise ValueError(f"{cell!r} is not a size")
    return float(matched[1]) * {"": 1, "K": 1 / 1024, "M": 1, "G": 1024, "T": 1024 * 1024}[matched[2].upper()]


def parse_tres_gpus(cell: str) -> float:
    """Return the GPUs: `billing=8,gres/gpu:a100=8,gres/gpu=8` gives 8. The entry without a model is the sum of those
    with one."""
    matches = _GPU.findall(cell)
    totals = [int(count) for model, count in matches if not model]
    return float(totals[0] if totals else sum(int(count) for _, count in matches))


def _parse_plain_times(cells: Sequence[str]) -> Floats:
    """Parse columns of `2023-05-17 11:00:58[+00:00]` with one zone, without a Python step per cell."""
    first = cells[0]
    zone = first[19:]
    if not _PLAIN_TIME.match(first) or any(cell[19:] != zone for cell in cells):
        raise ValueError("mixed")
    times = np.array([cell[:19] for cell in cells], dtype="datetime64[s]")
    if np.isnat(times).any():
        raise ValueError("blank among times")
    # All cells have the same zone, so its offset is computed once
    shift = parse_time(first) - float(times[0].astype(np.int64))
    return times.astype(np.int64).astype(np.float64) + shift
