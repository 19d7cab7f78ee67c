"""Sleeping nodes on a series of active nodes:  python bench/power/sleeping.py SERIES.csv

SERIES is any CSV `time,active,total`; the published figures are of the nodes of Philly, 3 October to 15 December 2017
(420 nodes, one row a minute; not part of this repository). Prints, for the same unseen days: the chosen forecast, every
forecast, the simple rule (the maximum of six hours and 2.4 % of the nodes) and no sleep, with and without a boot time.
The goal: at least 94 % of the awake nodes in use with at most 1.5 unplanned wake-ups per day.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.scheduling.doors import machine
from scheduling.power.rules.awake_nodes import NodeSeries, ReserveSettings
from scheduling.whatif.replay.power.node_series import read_series
from scheduling.whatif.replay.power.sleep_study import StudySettings, sleep_study
from scheduling.whatif.replay.power.sleeping_nodes import SleepLimits

GOAL_IN_USE, GOAL_UNPLANNED = 0.94, 1.5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("series")
    path = parser.parse_args().series
    with open(path, newline="", encoding="utf-8-sig") as lines:
        series = read_series(lines, path)
    print(f"{len(series):,} steps of {len(series.days)} days; {machine()}")
    reached = [print_study(series, boot) for boot in (0, 1)]
    return 0 if reached[0] else 1


def print_study(series: NodeSeries, boot: int) -> bool:
    """Print the figures with this boot time. Return whether the goal is reached."""
    began = time.perf_counter()
    settings = StudySettings(reserve=ReserveSettings(lead_steps=boot), limits=SleepLimits(boot=boot))
    report, _ = sleep_study(series, settings)
    took_s, test = time.perf_counter() - began, report["days"]["test"]
    print(f"\nboot time {boot * 10} min, test days {test[0]} to {test[1]}, trained {report['days']['trained']}")
    print_row(f"chosen: {report['forecast']}", report)
    for name, figures in {**report["forecasts"], "rule": report["rule"], "none": report["none"]}.items():
        print_row(name, figures)
    ratio = report["awake_mean"] / report["rule"]["awake_mean"]
    print(f"node-hours awake, chosen / rule: {ratio:.3f}; {took_s:.1f} s")
    is_reached = bool(report["in_use"] >= GOAL_IN_USE and report["unplanned_wakes_per_day"] <= GOAL_UNPLANNED)
    print(f"goal {GOAL_IN_USE:.0%} in use, {GOAL_UNPLANNED} unplanned a day: {'reached' if is_reached else 'missed'}")
    return is_reached


def print_row(name: str, figures: dict[str, Any]) -> None:
    print(
        f"{name:24}{figures['in_use']:8.1%} in use{figures['unplanned_wakes_per_day']:7.2f} unplanned wake-ups a day"
        f"{figures['asleep_mean']:8.1f} nodes asleep{figures['node_wakes_per_day']:7.1f} node wake-ups a day"
    )


if __name__ == "__main__":
    sys.exit(main())
