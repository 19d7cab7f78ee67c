"""What the product costs when nothing happens: processor time, memory and processes of `make up`.

    python bench/rest.py                 about a quarter of an hour; --minutes 5 --settle 120 --only local

It starts an instance with DEMO=0 and then one with the demo (both clusters, without its history), waits until each has
settled, and adds up the processor time of all its processes. Memory is the proportional set size, in which shared pages
count once. Prints a table to stderr and JSON to stdout.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.acceptance.instance import running  # noqa: E402
from tests.chaos.site import with_descendants  # noqa: E402

KINDS = {"local": {"DEMO": "0"}, "demo": {"DEMO": "1", "DEMO_CLUSTERS": "seren,kalos", "DEMO_SPEED": "1"}}
GOALS = {"local": (8.0, 1536), "demo": (50.0, 2560)}  # percent of a core, MiB
TICKS_PER_S = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0, help="Duration of each measurement.")
    parser.add_argument("--settle", type=float, default=120.0, help="Seconds to wait before it.")
    parser.add_argument("--only", choices=list(KINDS))
    options = parser.parse_args()
    figures: dict[str, Any] = {"machine": f"{platform.platform()}, load {Path('/proc/loadavg').read_text().split()[0]}"}
    for kind in [options.only] if options.only else KINDS:
        with running(**KINDS[kind]) as (instance, _):
            time.sleep(options.settle)
            figures[kind] = measure_rest(instance, 60 * options.minutes)
    print(rest_table(figures), file=sys.stderr)
    print(json.dumps(figures, indent=1))


def measure_rest(instance: Any, seconds: float) -> dict[str, Any]:
    root = instance.process.pid
    before, began = cpu_seconds(with_descendants([root])), time.monotonic()
    time.sleep(seconds)
    pids = with_descendants([root])
    after, took = cpu_seconds(pids), time.monotonic() - began
    used = sum(after[pid] - before.get(pid, 0.0) for pid in after)
    by_program = {
        name: 100 * sum(after.get(pid, 0.0) - before.get(pid, 0.0) for pid in with_descendants([root])) / took
        for name, root in instance.pids().items()
    }
    return {
        "cpu_percent_of_a_core": 100 * used / took,
        "memory_mib": sum(map(proportional_mib, pids)),
        "processes": len(pids),
        "cpu_percent_by_program": by_program,
    }


def cpu_seconds(pids: Sequence[int]) -> dict[int, float]:
    found = {}
    for pid in pids:
        try:
            columns = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        found[pid] = (int(columns[11]) + int(columns[12])) / TICKS_PER_S
    return found


def proportional_mib(pid: int) -> float:
    try:
        match = re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    except OSError:
        return 0.0
    return int(match[1]) / 1024 if match else 0.0


def rest_table(figures: dict[str, Any]) -> str:
    lines = [
        figures["machine"],
        f"{'':8}{'CPU, % of a core':>18}{'goal':>6}{'PSS, MiB':>10}{'goal':>6}{'processes':>11}",
    ]
    for kind, row in figures.items():
        if kind == "machine":
            continue
        cpu, memory = GOALS[kind]
        lines.append(
            f"{kind:8}{row['cpu_percent_of_a_core']:18.1f}{cpu:6.0f}{row['memory_mib']:10.0f}{memory:6}{row['processes']:11}"
        )
        shares = sorted(row["cpu_percent_by_program"].items(), key=lambda one: -one[1])
        lines.append("        " + ", ".join(f"{name} {share:.1f}" for name, share in shares))
    return "\n".join(lines)


if __name__ == "__main__":
    main()
