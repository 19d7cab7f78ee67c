"""Opens trace files (plain, gz, zst or Parquet) and writes Acme's own export. The only module here that does I/O."""

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

from acmeweb.common.errors import InvalidInput
from jobs.traces.rows import BLOCK_ROWS, read_columns, read_text_trace
from jobs.traces.trace import Trace

EXPORT_HEADER = (
    *("job_id", "user", "group_or_vc", "type", "submit_ts", "duration_s", "gpu_num", "node_num", "cpu_num", "state"),
    *("queue_s", "name", "timelimit_s", "memory_mib", "deadline_ts", "gpu_milli"),
)


@dataclass(frozen=True, kw_only=True)
class TraceLimits:
    """Limits for uploaded files, whatever they unpack to."""

    jobs: int
    unpacked_bytes: int
    json_characters: int = 32 << 20  # JSON is parsed as a whole in memory


SNIFFED_CHARACTERS = 1_000  # allowance for lines that are not jobs: header, comments


def read_trace(path: str | Path, name: str = "", limits: TraceLimits | None = None) -> Trace:
    """Read a trace file. Raises InvalidInput if it is unreadable or exceeds the limits."""
    path = Path(path)
    name = name or path.name
    try:
        if _begins_with(path, b"PAR1"):
            if limits:
                raise InvalidInput(
                    f"{name} is Parquet, which is only supported on the command line. Convert it to CSV."
                )
            return _read_parquet(path)
        with open_trace_lines(path, limits) as lines:
            trace = read_text_trace(_limit_lines(lines, name, limits) if limits else lines, name)
    # Everything that a truncated or damaged file can raise
    except (OSError, EOFError, UnicodeError, zlib.error) as error:
        raise InvalidInput(f"{name} cannot be read: {error}") from error
    if limits and len(trace) > limits.jobs:
        raise InvalidInput(f"{name} has {len(trace):,} jobs, more than the {limits.jobs:,} allowed.")
    return trace


def _limit_lines(lines: Iterable[str], name: str, limits: TraceLimits) -> Iterator[str]:
    """Stop a file that exceeds the limits before it is parsed. Replaces NUL, which the database cannot store."""
    is_json, characters = False, 0
    for number, line in enumerate(lines):
        is_json = line.lstrip("\ufeff \t").startswith(("[", "{")) if number == 0 else is_json
        characters += len(line)
        if is_json and characters > limits.json_characters:
            raise InvalidInput(f"{name} is JSON of more than {limits.json_characters >> 20} MiB. Convert it to CSV.")
        if not is_json and number > limits.jobs + SNIFFED_CHARACTERS:
            raise InvalidInput(f"{name} has more lines than the {limits.jobs:,} jobs allowed.")
        yield line.replace("\x00", "?")


def _begins_with(path: Path, magic: bytes) -> bool:
    with path.open("rb") as raw:
        return raw.read(len(magic)) == magic


def _read_parquet(path: Path) -> Trace:
    """Read a few thousand rows at a time and convert each cell to the text that a CSV would contain, for the
    layouts."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InvalidInput(f"{path.name} is Parquet. Install acme[traces] or convert it to CSV.") from None

    def cell_texts(batch: Any) -> list[list[str]]:
        return [column.cast(pyarrow.string()).fill_null("").to_pylist() for column in batch.columns]

    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            return read_columns(names, map(cell_texts, file.iter_batches(BLOCK_ROWS)), path.name)
    except pyarrow.ArrowException as error:
        raise InvalidInput(f"{path.name} cannot be read: {error}") from error


@contextmanager
def open_trace_lines(path: Path, limits: TraceLimits | None = None) -> Iterator[Iterable[str]]:
    with path.open("rb") as raw, _decompress(raw) as data:
        bounded = io.BufferedReader(_LimitedReader(data, limits.unpacked_bytes)) if limits else data
        yield io.TextIOWrapper(bounded, encoding="utf-8", errors="replace", newline="")  # type: ignore[arg-type]


class _LimitedReader(io.RawIOBase):
    """Stops a decompression bomb at the limit of unpacked bytes."""

    def __init__(self, data: IO[bytes], limit: int) -> None:
        self._data, self._left, self._most = data, limit, limit

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        chunk = self._data.read(len(buffer))
        self._left -= len(chunk)
        if self._left < 0:
            raise InvalidInput(f"It unpacks to more than the {self._most >> 20} MiB allowed.")
        buffer[: len(chunk)] = chunk
        return len(chunk)


@contextmanager
def _decompress(raw: IO[bytes]) -> Iterator[IO[bytes]]:
    """Decompress according to the first bytes of the file, not its name."""
    # Users rename files, so the extension is not reliable
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
    """Return the zstd module of Python 3.14, or the backport package for older versions."""
    try:
        from compression import zstd
    except ImportError:
        try:
            from backports import zstd
        except ImportError:
            raise OSError(
                "it is compressed with zstd, and the package backports.zstd is not installed; decompress it first"
            ) from None
    return zstd


def write_trace(trace: Trace, out: TextIO) -> None:
    """Write Acme's own export with one row per job. `read_trace` reads it again."""
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(EXPORT_HEADER)
    columns = (
        trace.ids, trace.users, trace.pools, trace.kinds, _format_cells(trace.submit_s), _format_cells(trace.runtime_s),
        trace.gpus.tolist(), trace.nodes.tolist(), _format_cells(trace.cpus), trace.states,
        _format_cells(trace.queue_s), trace.names, _format_cells(trace.limit_s), _format_cells(trace.memory_mb),
        _format_cells(trace.deadline_s),
        trace.gpu_milli.tolist(),
    )  # fmt: skip
    rows.writerows(zip(*columns, strict=True))


def _format_cells(column: Iterable[float]) -> Iterator[str]:
    return ("" if math.isnan(value) else format(value, ".15g") for value in column)
