"""Opens trace files, plain or packed (gz, zst) or Parquet, and writes our own export: the only part that does I/O."""

from __future__ import annotations

import csv
import gzip
import io
import math
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TextIO

from jobs.traces.rows import BLOCK_ROWS, read_columns, read_text_trace
from jobs.traces.trace import BadTrace, Trace

EXPORT_HEADER = (
    *("job_id", "user", "group_or_vc", "type", "submit_ts", "duration_s", "gpu_num", "node_num", "cpu_num", "state"),
    *("queue_s", "name", "timelimit_s", "memory_mib"),
)


@dataclass(frozen=True, kw_only=True)
class TraceLimits:
    """What is taken of a stranger's file, whatever it unpacks to."""

    jobs: int
    unpacked_bytes: int
    json_characters: int = 32 << 20  # it is held whole, as objects


SNIFFED_CHARACTERS = 1_000  # lines of a table that are no jobs: header, comments


def read_trace(path: str | Path, name: str = "", most: TraceLimits | None = None) -> Trace:
    path = Path(path)
    name = name or path.name
    try:
        if _begins_with(path, b"PAR1"):
            if most:
                raise BadTrace(f"{name} is Parquet, which is read from the command line only; write it as CSV.")
            return _read_parquet(path)
        with open_trace_lines(path, most) as lines:
            trace = read_text_trace(_limit_lines(lines, name, most) if most else lines, name)
    except (OSError, EOFError, UnicodeError, zlib.error) as error:
        raise BadTrace(f"{name} cannot be read: {error}") from error
    if most and len(trace) > most.jobs:
        raise BadTrace(f"{name} has {len(trace):,} jobs, more than the {most.jobs:,} allowed.")
    return trace


def _limit_lines(lines: Iterable[str], name: str, most: TraceLimits) -> Iterator[str]:
    """Stopped where it grows too long, before anything is made of it. No cell needs a NUL, and no database takes it."""
    is_json, characters = False, 0
    for number, line in enumerate(lines):
        is_json = line.lstrip("\ufeff \t").startswith(("[", "{")) if number == 0 else is_json
        characters += len(line)
        if is_json and characters > most.json_characters:
            raise BadTrace(f"{name} is JSON of more than {most.json_characters >> 20} MiB; write it as CSV.")
        if not is_json and number > most.jobs + SNIFFED_CHARACTERS:
            raise BadTrace(f"{name} has more lines than the {most.jobs:,} jobs allowed.")
        yield line.replace("\x00", "?")


def _begins_with(path: Path, magic: bytes) -> bool:
    with path.open("rb") as raw:
        return raw.read(len(magic)) == magic


def _read_parquet(path: Path) -> Trace:
    """A few thousand rows at a time, each cell as the text that a CSV would hold: the layouts know no other."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise BadTrace(f"{path.name} is Parquet; install acme[traces] or write it as CSV first.") from None

    def cell_texts(batch: Any) -> list[list[str]]:
        return [column.cast(pyarrow.string()).fill_null("").to_pylist() for column in batch.columns]

    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            return read_columns(names, map(cell_texts, file.iter_batches(BLOCK_ROWS)), path.name)
    except pyarrow.ArrowException as error:
        raise BadTrace(f"{path.name} cannot be read: {error}") from error


@contextmanager
def open_trace_lines(path: Path, most: TraceLimits | None = None) -> Iterator[Iterable[str]]:
    with path.open("rb") as raw, _decompress(raw) as data:
        bounded = io.BufferedReader(_LimitedReader(data, most.unpacked_bytes)) if most else data
        yield io.TextIOWrapper(bounded, encoding="utf-8", errors="replace", newline="")  # type: ignore[arg-type]


class _LimitedReader(io.RawIOBase):
    """A few kilobytes that unpack to all of the memory are refused on their way."""

    def __init__(self, data: IO[bytes], most: int) -> None:
        self._data, self._left, self._most = data, most, most

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        chunk = self._data.read(len(into))
        self._left -= len(chunk)
        if self._left < 0:
            raise BadTrace(f"It unpacks to more than the {self._most >> 20} MiB allowed.")
        into[: len(chunk)] = chunk
        return len(chunk)


@contextmanager
def _decompress(raw: IO[bytes]) -> Iterator[IO[bytes]]:
    """By what the file begins with, not by its name."""
    magic = raw.read(4)
    raw.seek(0)
    if magic[:2] == b"\x1f\x8b":
        with gzip.open(raw) as data:
            yield data  # type: ignore[misc]
    elif magic == b"\x28\xb5\x2f\xfd":
        zstd = _zstd_module()
        try:
            with zstd.open(raw) as data:
                yield data
        except zstd.ZstdError as error:
            raise OSError(str(error)) from error
    else:
        yield raw


def _zstd_module():  # type: ignore[no-untyped-def]
    """Python 3.14 brings zstd along; before it, the package of the same code."""
    try:
        from compression import zstd
    except ImportError:
        try:
            from backports import zstd
        except ImportError:
            raise OSError("it is packed with zstd, for which a package is missing; unpack it first") from None
    return zstd


def write_trace(trace: Trace, out: TextIO) -> None:
    """Our own export: what `read` understands, one row a job."""
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(EXPORT_HEADER)
    columns = (
        trace.ids, trace.users, trace.pools, trace.kinds, _format_cells(trace.submit_s), _format_cells(trace.runtime_s),
        trace.gpus.tolist(), trace.nodes.tolist(), _format_cells(trace.cpus), trace.states,
        _format_cells(trace.queue_s), trace.names, _format_cells(trace.limit_s), _format_cells(trace.memory_mb),
    )  # fmt: skip
    rows.writerows(zip(*columns, strict=True))


def _format_cells(column: Iterable[float]) -> Iterator[str]:
    return ("" if math.isnan(value) else format(value, ".15g") for value in column)
