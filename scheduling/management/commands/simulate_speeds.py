"""Replay jobs whose speed depends on their GPUs, under policies for widths and for rounds. Needs no database and no
server.

manage.py simulate_speeds jobs.csv speeds.csv --nodes A100=4x8 --policy 'widths tiresias,widths pollux'
manage.py simulate_speeds jobs.csv speeds.csv --nodes V100=4x4,K80=8x4 --policy 'rounds las,rounds las-aware,widths sia'

JOBS.csv has the columns submit_s,model,gpus,steps and optionally deadline_s, on the clock of submit_s. SPEEDS.csv has
the columns model,gpu_type,gpus,steps_per_s: how fast a job of the model is on so many GPUs of one type. Between two
numbers of GPUs the speed is interpolated. docs/zoo.md says which published scheduler each policy represents.
"""

from __future__ import annotations

import json
import time
from argparse import RawDescriptionHelpFormatter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from django.core.management.base import BaseCommand, CommandError, CommandParser

from acmeweb.common.errors import InvalidInput
from scheduling.engine.settings import MissingLibrary
from scheduling.management.text_files import open_text
from scheduling.research import speed_replays as runs
from scheduling.research.speed_policies import parse_policies, policy_lines, widths_of
from scheduling.research.workload import (
    Workload,
    check_models,
    check_pairs,
    parse_nodes,
    read_jobs,
    read_pairs,
    read_speeds,
)

Read = TypeVar("Read")


class Command(BaseCommand):
    help = __doc__ or ""
    requires_system_checks: list[str] = []

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        epilog = "\n".join(["policies, by what they need to know:", "", *policy_lines()])
        style = {"formatter_class": RawDescriptionHelpFormatter, "epilog": epilog}
        return super().create_parser(prog_name, subcommand, **style, **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        add = parser.add_argument
        add("jobs", metavar="JOBS.csv", help="CSV submit_s,model,gpus,steps[,deadline_s]")
        add("speeds", metavar="SPEEDS.csv", help="CSV model,gpu_type,gpus,steps_per_s")
        add("--nodes", required=True, metavar="TYPE=NODESxGPUS", help="nodes of each GPU type, separated by commas")
        add("--policy", required=True, metavar="POLICIES", help="one or more, separated by commas; see below")
        add(
            "--pair-speeds",
            metavar="FILE",
            help="CSV model1,model2,speed1,speed2: how fast two models run on the same GPUs, as fractions of their"
            " speeds when they run alone",
        )
        add("--round-s", type=float, help="time between two decisions (default: widths 60, rounds 360)")
        add("--restart-s", type=float, help="widths: how long a change of GPUs stops a job (default: 30)")
        add("--json", metavar="FILE", help="write the report to FILE; with - only the report is written, to stdout")

    def handle(self, *, nodes: str, policy: str, **options: Any) -> None:
        try:
            policies = parse_policies(policy)
            workload = _read_workload(options)
            setting = _setting(nodes, policies, options)
            runs.check_replay(workload, policies, setting)
            report = {"runs": [_timed_run(workload, name, setting) for name in policies]}
        except (ValueError, MissingLibrary) as error:
            raise CommandError(str(error)) from error
        self._write(report, options["json"])

    def _write(self, report: dict[str, Any], target: str | None) -> None:
        text = json.dumps(report, indent=2, allow_nan=False)
        if target == "-":
            self.stdout.write(text)
            return
        self.stdout.write("\n".join(_table_lines(report["runs"])))
        if target:
            try:
                Path(target).write_text(text + "\n")
            except OSError as error:
                raise CommandError(f"json: {target}: {error.strerror}.") from error


def _read_workload(options: dict[str, Any]) -> Workload:
    jobs, speeds = _read(options["jobs"], read_jobs), _read(options["speeds"], read_speeds)
    check_models(jobs, speeds)
    pairs = _read(options["pair_speeds"], read_pairs) if options["pair_speeds"] else None
    if pairs:
        check_pairs(pairs, speeds)
    return Workload(jobs=jobs, speeds=speeds, pairs=pairs)


def _read(path: str, reader: Callable[[Iterable[str], str], Read]) -> Read:
    with open_text(path) as lines:
        return reader(lines, path)


def _setting(nodes: str, policies: Sequence[str], options: dict[str, Any]) -> runs.SpeedSetting:
    if options["restart_s"] is not None and not widths_of(policies):
        raise InvalidInput("restart_s: has an effect only with policies for widths.")
    restart_s = runs.RESTART_S if options["restart_s"] is None else options["restart_s"]
    return runs.SpeedSetting(cluster=parse_nodes(nodes), round_s=options["round_s"], restart_s=restart_s)


def _timed_run(workload: Workload, policy: str, setting: runs.SpeedSetting) -> runs.Figures:
    began = time.perf_counter()
    return runs.run_policy(workload, policy, setting) | {"wall_s": time.perf_counter() - began}


def _table_lines(found: Sequence[runs.Figures]) -> list[str]:
    """A text table with one row per policy."""
    runs_cells = [dict(_cells(run, any(run["deadlines"] for run in found))) for run in found]
    rows = [list(runs_cells[0]), *(list(cells.values()) for cells in runs_cells)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]


def _cells(run: runs.Figures, with_deadlines: bool) -> Iterator[tuple[str, str]]:
    yield "policy", run["policy"]
    yield "jobs", f"{run['jobs']:,}"
    for key in ("mean", "p50", "p90", "max"):
        yield f"completion s {key}", f"{run['completion_s'][key]:,.0f}" if run["completion_s"] else "-"
    yield "makespan h", f"{run['makespan_s'] / 3600:,.2f}"
    yield "GPUs used %", f"{run['gpu_utilization'] * 100:.1f}"
    yield "restarts", "-" if run["restarts"] is None else f"{run['restarts']:,}"
    if with_deadlines:
        yield "deadlines met", f"{run['deadlines_met']:,} of {run['deadlines']:,}"
        yield "refused", f"{run['refused']:,}"
    yield "wall s", f"{run['wall_s']:.2f}"
