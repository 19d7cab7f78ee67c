"""Hostile logs: the diagnosis of each, with time and peak memory.

    python bench/hostile.py [--mb 300]

Each log passes the whole diagnosis in a separate process. The peak is that of the process, including the compiled
signatures and Python itself (the row `nothing`). Exits with 1 if a peak exceeds 300 MB or a process dies.
"""

from __future__ import annotations

import argparse
import gzip
import json
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

MB = 1_000_000
MEMORY_LIMIT_MB = 300
CAUSE_LINE = b"\nRuntimeError: CUDA error: uncorrectable ECC error encountered\n"


def repeat_bytes(piece: bytes, mb: int, end: bytes = CAUSE_LINE) -> Iterator[bytes]:
    block = piece * max(1, MB // len(piece))
    for _ in range(mb):
        yield block
    yield end


def gzip_bomb(mb: int) -> Iterator[bytes]:
    yield b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03"
    yield gzip.compress(bytes(min(mb, 300) * MB))[10:]


HOSTILE_LOGS: dict[str, Callable[[int], Iterator[bytes]]] = {
    "nothing": lambda mb: iter(()),
    "one line without end": lambda mb: repeat_bytes(b"x" * 1000, mb),
    "one line of 'Error: '": lambda mb: repeat_bytes(b"RuntimeError: x ", mb),
    "NULs": lambda mb: repeat_bytes(bytes(1000), mb),
    "broken UTF-8": lambda mb: repeat_bytes(b"loss \xff\xfe\xc3\x28 2.0\n", mb),
    "only newlines": lambda mb: repeat_bytes(b"\n", mb),
    "carriage returns": lambda mb: repeat_bytes(b" 12%|##  | 12/100 [00:10<01:10]\r", mb),
    "color codes": lambda mb: repeat_bytes(b"\x1b[31mred\x1b[0m ok\n", mb),
    "every line an exception": lambda mb: repeat_bytes(b"ValueError: bad value 17\n", min(mb, 50)),
    "every line an Xid": lambda mb: repeat_bytes(b"NVRM: Xid (PCI:0000:1b:00): 31, pid=3, MMU Fault\n", min(mb, 50)),
    "random bytes": lambda mb: repeat_bytes(bytes(range(256)), mb),
    "a zip": lambda mb: repeat_bytes(b"PK\x03\x04" + bytes(96), mb, b""),
    "a gzip bomb": gzip_bomb,
}


def diagnose_case(name: str, mb: int) -> None:
    from failures.diagnosis import engine

    began = time.perf_counter()
    answer = engine.diagnose(HOSTILE_LOGS[name](mb))
    print(json.dumps({
        "case": name, "seconds": round(time.perf_counter() - began, 2),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024), "size_mb": round(answer.size / MB),
        "answer": answer.root_cause, "note": answer.notes[0] if answer.notes else "",
    }))  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=300)
    parser.add_argument("--one", choices=HOSTILE_LOGS, help="used by the bench itself")
    options = parser.parse_args()
    if options.one:
        diagnose_case(options.one, options.mb)
        return 0
    bad = 0
    print(f"{platform.machine()}, Python {platform.python_version()}, {options.mb} MB each\n")
    print(f"{'case':26s} {'s':>7s} {'peak MB':>8s}  answer")
    rows = []
    for name in HOSTILE_LOGS:
        run = [sys.executable, __file__, "--one", name, "--mb", str(options.mb)]
        out = subprocess.run(run, capture_output=True, text=True, check=False)
        if out.returncode:
            print(f"{name:26s} died: {(out.stderr.strip().splitlines() or [str(out.returncode)])[-1]}")
            bad += 1
            continue
        row = json.loads(out.stdout)
        rows.append(row)
        bad += row["peak_mb"] > MEMORY_LIMIT_MB
        print(f"{name:26s} {row['seconds']:7.2f} {row['peak_mb']:8d}  {row['answer']}  {row['note'][:70]}")
    print("\n" + json.dumps(rows))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
