"""Replay a trace under one or more policies and compare them. Needs no database and no server.

manage.py simulate trace.csv.gz --policy fifo,sjf,easy --nodes 80
manage.py simulate acme:seren --jobs 100000 --policy fifo-skip,srtf --json report.json
"""

from __future__ import annotations

import csv
import gc
import json
import resource
import sys
import time
from argparse import RawDescriptionHelpFormatter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from jobs.traces.files import read
from jobs.traces.trace import BadTrace, Trace
from scheduling.engine.placement import PLACEMENTS
from scheduling.engine.policies import RULES
from scheduling.simulator import acme, report
from scheduling.simulator.run import COSTS, Setting, run

QUIET_S = 2.0  # no progress bar before this


class Command(BaseCommand):
    help = __doc__ or ""
    requires_system_checks: list[str] = []

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        return super().create_parser(prog_name, subcommand, formatter_class=RawDescriptionHelpFormatter, **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        known = ", ".join(RULES)
        parser.add_argument(
            "trace", help="a trace file (CSV, SWF, sacct, JSON; also gz, zst), acme:seren or acme:kalos"
        )
        parser.add_argument("--policy", default="fifo", help=f"one or more, by commas: {known}")
        parser.add_argument("--placement", default="consolidate", choices=(*PLACEMENTS, "count"))
        parser.add_argument("--preemption-cost", default="none", choices=COSTS)
        parser.add_argument("--nodes", type=int, help="nodes of the cluster (acme: as many as it had)")
        parser.add_argument("--gpus-per-node", type=int, default=8)
        parser.add_argument("--cpus-per-node", type=int, default=0, help="count CPUs too; without it jobs need GPUs")
        parser.add_argument("--vcs", metavar="FILE", help="CSV vc,nodes: jobs of a virtual cluster stay in its nodes")
        parser.add_argument("--jobs", type=int, help="acme: how many jobs to draw")
        parser.add_argument("--seed", type=int, default=0, help="acme: of the draw")
        parser.add_argument("--json", metavar="FILE", help="write the report there; - writes it to stdout alone")

    def handle(self, *, trace: str, policy: str, **given: Any) -> None:
        policies = [name.strip() for name in policy.split(",") if name.strip()]
        unknown = [name for name in policies if name not in RULES]
        if unknown or not policies:
            raise CommandError(f"policy: {', '.join(unknown) or 'nothing'} is none of {', '.join(RULES)}")
        history, nodes = self._history(trace, given)
        setting = _setting(nodes, given)
        self._warn_rows(history)
        summaries = [self._one(history, name, setting) for name in policies]
        self._tell(summaries, given["json"])

    def _history(self, trace: str, given: dict[str, Any]) -> tuple[Trace, int | None]:
        site_name = trace.removeprefix("acme:")
        if site_name == trace:
            try:
                return read(trace), given["nodes"]
            except BadTrace as error:
                raise CommandError(str(error)) from error
        if (site := acme.SITES.get(site_name)) is None:
            raise CommandError(f"trace: acme:{site_name} is none of {', '.join(f'acme:{name}' for name in acme.SITES)}")
        if given["jobs"] is not None and given["jobs"] < 1:
            raise CommandError("jobs: must be at least 1")
        drawn = acme.drawn(site, site_name, jobs=given["jobs"], seed=given["seed"])
        return drawn, given["nodes"] or site.nodes

    def _one(self, history: Trace, policy: str, setting: Setting) -> dict[str, Any]:
        bar = _Bar(policy, len(history)) if sys.stderr.isatty() else None
        # The engine makes no cycles; searching for some costs a third of a long run
        gc.collect()
        gc.disable()
        began = time.perf_counter()
        try:
            done = run(history, policy, setting, bar)
            draft = report.summary(done, wall_s=0, peak_rss_mb=0)
        finally:
            gc.enable()
            if bar:
                bar.clear()
        wall = time.perf_counter() - began
        draft |= {"wall_s": wall, "events_per_s": done.events / wall, "peak_rss_mb": _peak_rss_mb()}
        load = report.offered_load(done)
        if load > 1:
            self.stderr.write(f"{policy}: jobs ask for {load:.0%} of the GPUs while they come: the queue only grows.")
        for name, count in draft["set_aside"].items():
            if count and name != "bad_rows":
                self.stderr.write(f"{policy}: {count} jobs set aside: {name.replace('_', ' ')}.")
        return draft

    def _warn_rows(self, history: Trace) -> None:
        if history.bad_count:
            self.stderr.write(f"{history.source}: {history.bad_count} rows are no jobs that ran; the first are:")
            for bad in history.bad[:5]:
                self.stderr.write(f"  {bad}")
        if not len(history):
            raise CommandError(f"{history.source} holds no job that ran.")

    def _tell(self, summaries: list[dict[str, Any]], target: str | None) -> None:
        text = json.dumps({"runs": summaries}, indent=2, allow_nan=False)
        if target == "-":
            self.stdout.write(text)
            return
        self.stdout.write(report.table(summaries))
        if target:
            try:
                Path(target).write_text(text + "\n")
            except OSError as error:
                raise CommandError(f"json: {error}") from error


def _setting(nodes: int | None, given: dict[str, Any]) -> Setting:
    pools = _pools(given["vcs"]) if given["vcs"] else {}
    if not pools and nodes is None:
        raise CommandError("nodes: say how many nodes the cluster has (--nodes), or give --vcs")
    for name, value in (("nodes", sum(pools.values()) or nodes), ("gpus-per-node", given["gpus_per_node"])):
        if not value or value < 1:
            raise CommandError(f"{name}: must be at least 1")
    return Setting(
        nodes=nodes or sum(pools.values()),
        gpus_per_node=given["gpus_per_node"],
        placement=given["placement"],
        preemption_cost=given["preemption_cost"],
        cpus_per_node=given["cpus_per_node"],
        pools=pools,
    )


def _pools(path: str) -> dict[str, int]:
    try:
        with open(path, newline="") as lines:
            rows = list(csv.DictReader(lines))
        return {row["vc"]: int(row["nodes"]) for row in rows}
    except OSError as error:
        raise CommandError(f"vcs: {error}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise CommandError(f"vcs: {path} must be a CSV with the columns vc,nodes: {error}") from error


def _peak_rss_mb() -> float:
    """Of the whole process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class _Bar:
    """On a terminal, once a run takes longer than one likes to wait without a word."""

    def __init__(self, policy: str, jobs: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._policy, self._jobs, self._clock = policy, jobs, clock
        self._began, self._shown = clock(), False

    def __call__(self, come: int) -> None:
        past = self._clock() - self._began
        if past > QUIET_S:
            part = come / max(1, self._jobs)
            left = past / part - past if part else 0
            bar = "█" * int(part * 30)
            sys.stderr.write(f"\r{self._policy:<12}{bar:<30} {part:4.0%} of {self._jobs:,} jobs, {left:.0f} s left ")
            self._shown = True

    def clear(self) -> None:
        if self._shown:
            sys.stderr.write("\r" + " " * 78 + "\r")
