"""What a trace is: one column per fact, one row per job, in order of submission. Never reads a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]

MAX_QUOTED_ROWS = 20  # bad rows kept word for word; all are counted


class BadTrace(ValueError):
    """The file as a whole is not a trace we can read; the sentence says why."""


@dataclass(frozen=True, kw_only=True)
class InvalidRow:
    line: int
    why: str
    text: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.why}: {self.text[:120]}"


@dataclass(frozen=True, kw_only=True)
class EncodedColumn:
    """A column of words that repeat: users, teams, kinds."""

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

    def rows(self, chosen: npt.NDArray[np.intp]) -> EncodedColumn:
        return replace(self, codes=self.codes[chosen])


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Times in seconds from the first submission; `began_s` is that moment in Unix time, 0 where the source has none.

    `runtime_s` is the time on the GPUs, without queueing, whatever the source calls duration. NaN: not known.
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
    gpus: Ints
    nodes: Ints
    cpus: Floats
    memory_mb: Floats
    began_s: float = 0.0
    bad: tuple[InvalidRow, ...] = field(default=())
    bad_count: int = 0

    def __len__(self) -> int:
        return len(self.submit_s)

    def rows(self, chosen: npt.NDArray[np.intp]) -> Trace:
        """The same trace with these rows only, in this order."""
        words = ("users", "pools", "kinds", "names", "states")
        numbers = ("submit_s", "runtime_s", "queue_s", "limit_s", "gpus", "nodes", "cpus", "memory_mb")
        columns = {name: getattr(self, name).rows(chosen) for name in words}
        columns |= {name: getattr(self, name)[chosen] for name in numbers}
        return replace(self, ids=[self.ids[row] for row in chosen.tolist()], **columns)


def trace_from_columns(source: str, **columns: Sequence[float] | Sequence[str] | npt.NDArray[np.generic]) -> Trace:
    """A trace from plain columns; what is not given is unknown. Rows are put in order of submission."""
    given = {name: column for name, column in columns.items() if column is not None}
    count = len(given["submit_s"])
    columns_of_words: dict[str, Any] = {
        name: EncodedColumn.of(str(word) for word in given.get(name, ("",) * count))
        for name in ("users", "pools", "kinds", "names", "states")
    }
    floats: dict[str, Any] = {
        name: np.asarray(given.get(name, np.full(count, np.nan)), dtype=np.float64)
        for name in ("submit_s", "runtime_s", "queue_s", "limit_s", "cpus", "memory_mb")
    }
    ints: dict[str, Any] = {
        "gpus": np.asarray(given.get("gpus", np.zeros(count)), dtype=np.int32),
        "nodes": np.asarray(given.get("nodes", np.ones(count)), dtype=np.int32),
    }
    ids = [str(word) for word in given.get("ids", range(1, count + 1))]
    trace = Trace(source=source, ids=ids, **columns_of_words, **floats, **ints)
    return sort_by_submission(trace)


def sort_by_submission(trace: Trace) -> Trace:
    """By time of submission, equal times as they stand in the file, and time counted from the first."""
    if not len(trace):
        return trace
    order = np.argsort(trace.submit_s, kind="stable")
    if np.any(order[1:] < order[:-1]):
        trace = trace.rows(order)
    first = float(trace.submit_s[0])
    # Seconds below a year are counted from a start of their own; larger ones are Unix time
    began = trace.began_s or (first if first > 31_536_000 else 0.0)
    return replace(trace, submit_s=trace.submit_s - began if began == first else trace.submit_s, began_s=began)
