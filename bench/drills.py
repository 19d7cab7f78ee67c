"""Drills of many seeds, one after the other: what recovery did, and whether any of it was wrong.

python bench/drills.py 1 2 3 77
python bench/drills.py --hours 24 $(seq 101 120)

Each seed is `manage.py drill` with the answer of Acme alone, at its three rates; about twelve seconds of one core. A
seed that has a wrong stop, a wrong restart, a false cordon or a curable failure that was not cured is marked, and the
command then ends with 1. An outage of storage lasts up to an hour, whoever recovers, so the second p95 is without them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scheduling.drill import figures
from scheduling.drill.faults import SCENARIOS
from scheduling.drill.run import Drilled, run
from scheduling.drill.tally import percentiles
from scheduling.drill.values import Plan
from scheduling.simulator.troubles import Breakage

COLUMNS = ("seed", "cured", "stops", "restarts", "cordons", "false", "named", "p50", "p95", "p95 w/o", *SCENARIOS)
WRONG = ("wrong_stops", "wrong_restarts", "false_cordons")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seeds", type=int, nargs="+")
    parser.add_argument("--hours", type=float, default=24.0)
    asked = parser.parse_args()
    print(shown(COLUMNS))
    all_runs: list[Drilled] = []
    clean = True
    for seed in asked.seeds:
        runs = [run(scenario, Plan(hours=asked.hours, seed=seed), "acme") for scenario in SCENARIOS.values()]
        all_runs += runs
        clean &= is_clean(figures.counts(runs))
        print(shown(row(str(seed), runs, [f"{figures.ettr(one):.3f}" for one in runs])), flush=True)
    print(shown(row("all", all_runs, [])))
    return 0 if clean else 1


def row(name: str, runs: Sequence[Drilled], ettr: Sequence[str]) -> list[str]:
    counts = figures.counts(runs)
    quick, times = percentiles(without_outages(runs)), counts["fault_to_first_step_s"]
    return [
        f"{name}{'' if is_clean(counts) else ' !'}", f"{counts['recovered_without_human']}/{counts['recoverable']}",
        str(counts["wrong_stops"]), str(counts["wrong_restarts"]), str(counts["cordons"]),
        str(counts["false_cordons"]), f"{counts['diagnosed_right']}/{counts['detected']}",
        seconds(times["p50"]), seconds(times["p95"]), seconds(quick["p95"]), *ettr,
    ]  # fmt: skip


def is_clean(counts: dict[str, Any]) -> bool:
    return not any(counts[name] for name in WRONG) and counts["recovered_without_human"] == counts["recoverable"]


def without_outages(runs: Sequence[Drilled]) -> list[float]:
    cases = [case for one in runs for case in one.tally.cases if case.recoverable and case.kind != Breakage.STORAGE]
    return [case.first_step - case.at for case in cases if case.first_step is not None]


def seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def shown(cells: Sequence[str]) -> str:
    return "".join(f"{cell:>11}" for cell in cells)


if __name__ == "__main__":
    sys.exit(main())
