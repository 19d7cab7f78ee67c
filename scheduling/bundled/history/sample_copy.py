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
CELL = np.dtype([("size", ">i4"), ("value", ">f8")])


def sample_rows(node: int, resolution: int, began: datetime, numbers: Any, values: Sequence[Any]) -> bytes:
    """The rows of one node for the intervals with these numbers. `values` has one array for each of `GPU_COLUMNS`,
    of intervals and GPUs; NaN is NULL."""
    rows = np.zeros(len(numbers), _row_type(values[0].shape[1]))
    rows["fields"] = len(COLUMNS)
    for name, number in (
        ("node_id", node), ("resolution", resolution),
        ("at", (began - EPOCH).total_seconds() * 1_000_000 + numbers * (resolution * 1_000_000)),
    ):  # fmt: skip
        rows[name]["size"], rows[name]["value"] = rows.dtype[name]["value"].itemsize, number
    for name, cells in zip(GPU_COLUMNS, values, strict=True):
        _fill_array(rows[name], cells[numbers])
    return _without_null_values(rows)


def _row_type(gpus: int) -> np.dtype[Any]:
    array = [(name, ">i4") for name in ("size", "dimensions", "has_null", "type", "length", "first")]
    return np.dtype([
        ("fields", ">i2"),
        *((name, [("size", ">i4"), ("value", kind)]) for name, kind in KEY_COLUMNS.items()),
        *((name, [*array, ("cells", CELL, gpus)]) for name in GPU_COLUMNS),
    ])  # fmt: skip


def _fill_array(column: Any, cells: Any) -> None:
    nulls = np.isnan(cells)
    column["size"] = ARRAY_HEADER_BYTES + 4 * cells.shape[1] + FLOAT8_BYTES * (~nulls).sum(axis=1)
    column["dimensions"], column["has_null"], column["type"] = 1, nulls.any(axis=1), FLOAT8
    column["length"], column["first"] = cells.shape[1], 1
    column["cells"]["size"], column["cells"]["value"] = np.where(nulls, -1, FLOAT8_BYTES), cells


def _without_null_values(rows: Any) -> bytes:
    """The bytes of the rows. Fields of the same size are easy to fill, but a NULL has no value."""
    data = rows.view(np.uint8).reshape(len(rows), rows.itemsize)
    kept = np.ones_like(data, dtype=bool)
    for name in GPU_COLUMNS:
        nulls, (array, offset) = rows[name]["cells"]["size"] < 0, rows.dtype.fields[name][:2]
        for gpu in np.flatnonzero(nulls.any(axis=0)).tolist():
            at = offset + array.fields["cells"][1] + gpu * CELL.itemsize + CELL.fields["value"][1]
            kept[nulls[:, gpu], at : at + FLOAT8_BYTES] = False
    return bytes(data[kept].tobytes())
