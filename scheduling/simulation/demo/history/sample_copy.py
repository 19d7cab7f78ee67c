"""Samples in the binary format of COPY, as NumPy makes them.

A month of both clusters has 600,000 rows with 40 values each. Texts of them would take longer than the simulation.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

GPU_COLUMNS = ("gpu_util", "gpu_memory_mib", "gpu_temperature_c", "gpu_power_w", "xid")
KEY_COLUMNS = {"node_id": ">i8", "resolution": ">i2", "at": ">i8"}
COLUMNS = (*KEY_COLUMNS, *GPU_COLUMNS)
HEADER, TRAILER = b"PGCOPY\n\xff\r\n\0" + bytes(8), b"\xff\xff"
EPOCH = datetime(2000, 1, 1, tzinfo=UTC)  # of PostgreSQL
FLOAT8, FLOAT8_BYTES, ARRAY_HEADER_BYTES = 701, 8, 20  # 701: its number among PostgreSQL's types


def sample_rows(node: int, resolution: int, began: datetime, numbers: Any, values: Sequence[Any]) -> bytes:
    """The rows of one node for the intervals with these numbers. `values` has one array for each of `GPU_COLUMNS`,
    of intervals and GPUs; NaN is NULL."""
    gpus = values[0].shape[1]
    rows = np.zeros(len(numbers), _row_type(gpus))
    rows["fields"] = len(COLUMNS)
    began_us, step_us = round((began - EPOCH).total_seconds() * 1e6), resolution * 1_000_000
    for name, number in (("node_id", node), ("resolution", resolution), ("at", began_us + numbers * step_us)):
        rows[name]["size"], rows[name]["value"] = rows.dtype[name]["value"].itemsize, number
    for name, cells in zip(GPU_COLUMNS, values, strict=True):
        _fill_array(rows[name], cells[numbers])
    return _without_null_values(rows, gpus)


def _row_type(gpus: int, value: str = ">f8") -> np.dtype[Any]:
    array = [(name, ">i4") for name in ("size", "dimensions", "has_null", "type", "length", "first")]
    return np.dtype([
        ("fields", ">i2"),
        *((name, [("size", ">i4"), ("value", kind)]) for name, kind in KEY_COLUMNS.items()),
        *((name, [*array, ("cells", [("size", ">i4"), ("value", value)], gpus)]) for name in GPU_COLUMNS),
    ])  # fmt: skip


def _fill_array(column: Any, cells: Any) -> None:
    nulls = np.isnan(cells)
    column["size"] = ARRAY_HEADER_BYTES + 4 * cells.shape[1] + FLOAT8_BYTES * (~nulls).sum(axis=1)
    column["dimensions"], column["has_null"], column["type"] = 1, nulls.any(axis=1), FLOAT8
    column["length"], column["first"] = cells.shape[1], 1
    column["cells"]["size"], column["cells"]["value"] = np.where(nulls, -1, FLOAT8_BYTES), cells


def _without_null_values(rows: Any, gpus: int) -> bytes:
    """The bytes of the rows. Fields of the same size are easy to fill, but a NULL has no value."""
    nulls = {name: rows[name]["cells"]["size"] < 0 for name in GPU_COLUMNS}
    if not any(cells.any() for cells in nulls.values()):
        return bytes(rows.tobytes())
    dropped = np.zeros(len(rows), _row_type(gpus, ">i8"))
    for name, cells in nulls.items():
        dropped[name]["cells"]["value"] = np.where(cells, -1, 0)  # all bits set, or none
    return bytes(rows.view(np.uint8)[dropped.view(np.uint8) == 0].tobytes())
