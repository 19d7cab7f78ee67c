"""The page of a 200 MB log: time to show its end, its middle, and to search it. `python bench/logs/page.py`

Measures the reading, from the open file to the lines of the template; the rest of a request costs as much as on any
page. For comparison, in the same run: reading the whole file, as an editor or `cat` would.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "acmeweb.settings")

from jobs.logs import log_chunks, log_search
from jobs.logs.log_source import LogSource

MEGABYTES, TIMING_ROUNDS = 200, 9
STEP_LINE = b"[rank%d]: 2026-11-21 12:00:%02d step %07d | loss 2.3142 | lr 3.0e-04 | grad norm 0.81 | 1.25 s a step\n"


def write_log(path: Path) -> None:
    block = b"".join(STEP_LINE % (number % 8, number % 60, number) for number in range(10_000))
    with path.open("wb") as file:
        while file.tell() < MEGABYTES << 20:
            file.write(block)
        file.write(b"the needle stands here\n")


def time_calls(what: Callable[[], object]) -> dict[str, float]:
    spent = []
    for _ in range(TIMING_ROUNDS):
        began = time.perf_counter()
        what()
        spent.append(1000 * (time.perf_counter() - began))
    return {"median_ms": round(statistics.median(spent), 2), "worst_ms": round(max(spent), 2)}


def count_search_hits(where: LogSource) -> int:
    """Search from the beginning to the end, in the same pieces as the page."""
    at, matches, count = 0, log_search.LineFilter(text="the needle"), 0
    while True:
        hits = log_search.search(where, matches, at)
        count, at = count + len(hits.rows), hits.until
        if not hits.more:
            return count


def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        path = Path(home) / "job.log"
        write_log(path)
        where = LogSource(home, path.name)
        assert count_search_hits(where) == 1
        rows = {
            "the end": time_calls(lambda: log_chunks.chunk_before(where)),
            "the middle": time_calls(lambda: log_chunks.chunk_at(where, MEGABYTES << 19)),
            "around line 1,000,000": time_calls(lambda: log_chunks.chunk_around_line(where, 1_000_000)),
            "the end, numbered": time_calls(lambda: log_chunks.number_lines(where, log_chunks.chunk_before(where))),
            "errors and warnings (64 MiB)": time_calls(
                lambda: log_search.search(where, log_search.LineFilter(level="warning"), 0)
            ),
            "a piece of a search (64 MiB)": time_calls(
                lambda: log_search.search(where, log_search.LineFilter(text="needle"), 0)
            ),
            "a search of the whole log": time_calls(lambda: count_search_hits(where)),
            "for comparison: read all": time_calls(path.read_bytes),
        }
        document = {"input_mb": path.stat().st_size / 1e6, "rounds": TIMING_ROUNDS, "rows": rows}
    machine = {"python": platform.python_version(), "cpus": os.cpu_count(), "load": os.getloadavg()[0]}
    print(json.dumps(document | {"machine": machine}))
    for name, row in rows.items():
        print(f"{name:32} median {row['median_ms']:9.2f} ms   worst {row['worst_ms']:9.2f} ms", file=sys.stderr)


if __name__ == "__main__":
    main()
