"""Drills with many seeds, one after the other: what recovery did, and whether any of it was wrong.

python bench/drills.py 1 2 3 77
python bench/drills.py --hours 24 $(seq 101 120)

Each seed runs `manage.py drill` with Acme's recovery only, at its three rates; about twelve seconds of one core. A seed
with a wrong stop, a wrong restart, a false cordon or an unrecovered recoverable failure is marked, and the command then
exits with 1. A storage outage lasts up to an hour for any method, so the second p95 excludes outages.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scheduling.simulation.drill import figures
from scheduling.simulation.drill.counts import percentiles
from scheduling.simulation.drill.faults import SCENARIOS
from scheduling.simulation.drill.run import DrillResult, run_drill
from scheduling.simulation.drill.values import DrillPlan
from scheduling.simulation.machines.faults import FaultKind

DRILL_COLUMNS = ("seed", "cured", "stops", "restarts", "cordons", "false", "named", "p50", "p95", "p95 w/o", *SCENARIOS)
ERROR_COUNTS = ("wrong_stops", "wrong_restarts", "false_cordons")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seeds", type=int, nargs="+")
    parser.add_argument("--hours", type=float, default=24.0)
    options = parser.parse_args()
    print(format_row(DRILL_COLUMNS))
    all_runs: list[DrillResult] = []
    clean = True
    for seed in options.seeds:
        runs = [
            run_drill(scenario, DrillPlan(hours=options.hours, seed=seed), "acme") for scenario in SCENARIOS.values()
        ]
        all_runs += runs
        clean &= is_clean(figures.drill_summary(runs))
        print(format_row(drill_row(str(seed), runs, [f"{figures.gang_ettr(one):.3f}" for one in runs])), flush=True)
    print(format_row(drill_row("all", all_runs, [])))
    return 0 if clean else 1


def drill_row(name: str, runs: Sequence[DrillResult], ettr: Sequence[str]) -> list[str]:
    counts = figures.drill_summary(runs)
    quick, times = percentiles(recovery_times_without_outages(runs)), counts["fault_to_first_step_s"]
    return [
        f"{name}{'' if is_clean(counts) else ' !'}", f"{counts['recovered_without_human']}/{counts['recoverable']}",
        str(counts["wrong_stops"]), str(counts["wrong_restarts"]), str(counts["cordons"]),
        str(counts["false_cordons"]), f"{counts['diagnosed_right']}/{counts['detected']}",
        format_seconds(times["p50"]), format_seconds(times["p95"]), format_seconds(quick["p95"]), *ettr,
    ]  # fmt: skip


def is_clean(counts: dict[str, Any]) -> bool:
    return not any(counts[name] for name in ERROR_COUNTS) and counts["recovered_without_human"] == counts["recoverable"]


def recovery_times_without_outages(runs: Sequence[DrillResult]) -> list[float]:
    cases = [case for one in runs for case in one.tally.cases if case.recoverable and case.kind != FaultKind.STORAGE]
    return [case.first_step - case.at for case in cases if case.first_step is not None]


def format_seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def format_row(cells: Sequence[str]) -> str:
    return "".join(f"{cell:>11}" for cell in cells)


if __name__ == "__main__":
    sys.exit(main())
