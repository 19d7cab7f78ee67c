"""The trace type: one column per field, one row per job, in order of submission. Does not read files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]

MAX_QUOTED_ROWS = 20  # bad rows that are quoted; all are counted


@dataclass(frozen=True, kw_only=True)
class InvalidRow:
    """A row that was not accepted, with its line number."""

    line: int
    why: str
    text: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.why}: {self.text[:120]}"


@dataclass(frozen=True, kw_only=True)
class EncodedColumn:
    """A column of repeated words, such as users, teams or kinds, stored as codes."""

    codes: Ints
    words: tuple[str, ...]

    @staticmethod
    def of(column: Iterable[str]) -> EncodedColumn:
        known: dict[str, int] = {}
        codes = np.fromiter((known.setdefault(word, len(known)) for word in column), dtype=np.int32)
        return EncodedColumn(codes=codes, words=tuple(known))

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, row: int) -> str:
        return self.words[int(self.codes[row])]

    def __iter__(self) -> Iterator[str]:
        return (self.words[code] for code in self.codes.tolist())

    def rows(self, indices: npt.NDArray[np.intp]) -> EncodedColumn:
        return replace(self, codes=self.codes[indices])


WORD_COLUMNS = ("users", "pools", "kinds", "names", "states")
NUMBER_COLUMNS = (
    *("submit_s", "runtime_s", "queue_s", "limit_s", "deadline_s"),
    *("gpus", "gpu_milli", "nodes", "cpus", "memory_mb"),
)


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Times are in seconds from the first submission. `began_s` is the Unix time of that moment, 0 if the source has
    none.

    `runtime_s` is the time on the GPUs without queueing, whatever the source calls duration. NaN means unknown.
    """

    source: str
    ids: Sequence[str]
    users: EncodedColumn
    pools: EncodedColumn  # virtual cluster, partition or team
    kinds: EncodedColumn
    names: EncodedColumn
    states: EncodedColumn
    submit_s: Floats
    runtime_s: Floats
    queue_s: Floats
    limit_s: Floats
    gpus: Ints  # whole ones
    gpu_milli: Ints  # thousandths of one GPU, for jobs that share it with others
    nodes: Ints
    cpus: Floats
    memory_mb: Floats
    deadline_s: Floats  # when each job should have ended; NaN without a deadline
    began_s: float = 0.0
    bad: tuple[InvalidRow, ...] = field(default=())
    bad_count: int = 0

    def __len__(self) -> int:
        return len(self.submit_s)

    def rows(self, indices: npt.NDArray[np.intp]) -> Trace:
        """Return the trace with these rows only, in this order."""
        columns = {name: getattr(self, name).rows(indices) for name in WORD_COLUMNS}
        columns |= {name: getattr(self, name)[indices] for name in NUMBER_COLUMNS}
        return replace(self, ids=[self.ids[row] for row in indices.tolist()], **columns)


def trace_from_columns(source: str, **columns: Sequence[float] | Sequence[str] | npt.NDArray[np.generic]) -> Trace:
    """Build a trace from plain columns, sorted by submission. Missing columns are unknown."""
    present = {name: column for name, column in columns.items() if column is not None}
    count = len(present["submit_s"])
    columns_of_words: dict[str, Any] = {
        name: EncodedColumn.of(str(word) for word in present.get(name, ("",) * count))
        for name in ("users", "pools", "kinds", "names", "states")
    }
    floats: dict[str, Any] = {
        name: np.asarray(present.get(name, np.full(count, np.nan)), dtype=np.float64)
        for name in ("submit_s", "runtime_s", "queue_s", "limit_s", "deadline_s", "cpus", "memory_mb")
    }
    ints: dict[str, Any] = {
        "gpus": np.asarray(present.get("gpus", np.zeros(count)), dtype=np.int32),
        "gpu_milli": np.asarray(present.get("gpu_milli", np.zeros(count)), dtype=np.int32),
        "nodes": np.asarray(present.get("nodes", np.ones(count)), dtype=np.int32),
    }
    ids = [str(word) for word in present.get("ids", range(1, count + 1))]
    trace = Trace(source=source, ids=ids, **columns_of_words, **floats, **ints)
    return sort_by_submission(trace)


def sort_by_submission(trace: Trace) -> Trace:
    """Sort by submission time, keeping the file order of equal times, and count time from the first submission."""
    if not len(trace):
        return trace
    order = np.argsort(trace.submit_s, kind="stable")
    # Most traces are already sorted; copying all columns would be wasted
    if np.any(order[1:] < order[:-1]):
        trace = trace.rows(order)
    first = float(trace.submit_s[0])
    # Values below a year are relative to the start of the trace; larger ones are Unix time
    began = trace.began_s or (first if first > 31_536_000 else 0.0)
    if began != first:
        return replace(trace, began_s=began)
    return replace(trace, submit_s=trace.submit_s - began, deadline_s=trace.deadline_s - began, began_s=began)
