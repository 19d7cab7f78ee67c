"""Find out how many nodes could have slept, from a series of active nodes. Needs no database and no server.

manage.py simulate_power nodes.csv
manage.py simulate_power nodes.csv --json - --test-days 14 --boot-minutes 10
manage.py simulate_power nodes.csv --steps awake.csv

The CSV has the columns time,active,total: nodes with jobs and all nodes, at any interval. It is reduced to the maximum
of each ten minutes. The figures are those of the last days, which no forecast was trained or chosen on.
"""

from __future__ import annotations

import csv
import json
from argparse import RawDescriptionHelpFormatter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from acmeweb.common.errors import InvalidInput
from scheduling.management.text_files import open_text
from scheduling.power.rules.awake_nodes import NodeSeries, ReserveSettings
from scheduling.whatif.replay.power.node_series import read_series
from scheduling.whatif.replay.power.sleep_study import RECENT, TREES, StudySettings, sleep_study, step_rows
from scheduling.whatif.replay.power.sleeping_nodes import SleepLimits, SleepRun

STEP_MINUTES = 10
# option -> smallest and largest value
BOUNDS: Mapping[str, tuple[float, float]] = {
    "test_days": (1, 100_000),
    "unplanned_per_day": (0.01, 100),
    "min_reserve": (0, 1_000_000),
    "boot_minutes": (0, 120),
    "min_awake_minutes": (0, 1440),
    "min_asleep_minutes": (0, 1440),
    "max_wakes": (1, 144),
}


class Command(BaseCommand):
    help = __doc__ or ""
    requires_system_checks: list[str] = []

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        return super().create_parser(prog_name, subcommand, formatter_class=RawDescriptionHelpFormatter, **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        add = parser.add_argument
        add("series", metavar="SERIES.csv", help="CSV with the columns time,active,total")
        add("--test-days", type=int, help="number of days at the end that are measured (default: a fifth)")
        add("--forecast", choices=("best", RECENT, TREES), default="best", help="best: chosen on the days before")
        add("--unplanned-per-day", type=float, default=1.0, help="unplanned wake-ups accepted per day (default: 1)")
        add("--min-reserve", type=int, default=1, help="idle nodes that always stay awake (default: 1)")
        add("--boot-minutes", type=int, default=0, help="until a node accepts jobs, in tens (default: under ten)")
        add("--min-awake-minutes", type=int, default=60, help="after a wake-up (default: 60)")
        add("--min-asleep-minutes", type=int, default=30, help="before a planned wake-up (default: 30)")
        add("--max-wakes", type=int, default=4, help="a node that woke up so often in 24 h stays awake (default: 4)")
        add("--json", metavar="FILE", help="write the report to FILE; with - only the report is written, to stdout")
        add("--steps", metavar="FILE", help="write a CSV with the nodes awake in each ten minutes to FILE")

    def handle(self, *, series: str, **options: Any) -> None:
        _check_bounds(options)
        nodes = _read_file(series)
        try:
            report, run = sleep_study(nodes, _study_settings(options))
        except InvalidInput as error:
            raise CommandError(str(error)) from error
        if options["steps"]:
            _write_steps(options["steps"], nodes, run)
        self._write_report(report | {"series": series}, options["json"])

    def _write_report(self, report: Mapping[str, Any], target: str | None) -> None:
        text = json.dumps(report, indent=2, allow_nan=False)
        if target == "-":
            self.stdout.write(text)
            return
        self.stdout.write("\n".join(_report_lines(report)))
        if target:
            try:
                Path(target).write_text(text + "\n")
            except OSError as error:
                raise CommandError(f"json: {error}") from error


def _check_bounds(options: Mapping[str, Any]) -> None:
    for name, (low, high) in BOUNDS.items():
        value = options[name]
        if value is not None and not low <= value <= high:
            raise CommandError(f"{name.replace('_', '-')}: {value} is not between {low} and {high}")
        if name.endswith("_minutes") and value % STEP_MINUTES:
            raise CommandError(f"{name.replace('_', '-')}: {value} is not a multiple of {STEP_MINUTES}")


def _read_file(path: str) -> NodeSeries:
    try:
        with open_text(path, "series") as lines:
            return read_series(lines, path)
    except InvalidInput as error:
        raise CommandError(str(error)) from error


def _study_settings(options: Mapping[str, Any]) -> StudySettings:
    boot = options["boot_minutes"] // STEP_MINUTES
    return StudySettings(
        reserve=ReserveSettings(
            unplanned_per_day=options["unplanned_per_day"], min_nodes=options["min_reserve"], lead_steps=boot
        ),
        limits=SleepLimits(
            min_awake=options["min_awake_minutes"] // STEP_MINUTES,
            min_asleep=options["min_asleep_minutes"] // STEP_MINUTES,
            max_wakes_per_day=options["max_wakes"],
            boot=boot,
        ),
        test_days=options["test_days"],
        forecast=options["forecast"],
    )


def _write_steps(path: str, nodes: NodeSeries, run: SleepRun) -> None:
    try:
        with open(path, "w", newline="") as lines:
            csv.writer(lines).writerows([("time", "active", "awake", "woken", "unplanned"), *step_rows(nodes, run)])
    except OSError as error:
        raise CommandError(f"steps: {error}") from error


def _report_lines(report: Mapping[str, Any]) -> list[str]:
    days = report["days"]
    lines = [
        f"{days['count']} days, {' to '.join(days['all'])}; measured on {' to '.join(days['test'])}; "
        f"forecast: {report['forecast'].replace('_', ' ')}",
        f"{'':<16}{'in use':>9}{'unplanned wakes/day':>22}{'asleep':>9}{'node wakes/day':>17}",
    ]
    rows = {"chosen": report, "rule": report["rule"], "none": report["none"], **report["forecasts"]}
    for name, figures in rows.items():
        in_use = "-" if figures["in_use"] is None else f"{figures['in_use']:.1%}"
        lines.append(
            f"{name.replace('_', ' '):<16}{in_use:>9}{figures['unplanned_wakes_per_day']:>22.2f}"
            f"{figures['asleep_mean']:>9.1f}{figures['node_wakes_per_day']:>17.1f}"
        )
    return lines
