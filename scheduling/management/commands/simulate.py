"""Replay a trace under one or more policies and compare them. Needs no database and no server.

manage.py simulate trace.csv.gz --policy fifo,sjf,easy --nodes 80
manage.py simulate acme:seren --jobs 100000 --policy fifo-skip,srtf --json report.json
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from argparse import RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from jobs.traces.files import read_trace
from jobs.traces.trace import BadTrace, Trace
from scheduling.engine.cluster import QuotaView
from scheduling.engine.policies import POLICY_RULES
from scheduling.engine.rules import PolicyRules
from scheduling.engine.settings import MissingLibrary
from scheduling.replay import acme_trace, plots, report, requests
from scheduling.replay.requests import InvalidReplaySetting
from scheduling.replay.run import PREEMPTION_COSTS, PolicyRun, ReplaySetting
from scheduling.replay.timed_runs import measure_run

USER_ERRORS = (InvalidReplaySetting, BadTrace, MissingLibrary, plots.PlotsUnavailable)
PROGRESS_DELAY_S = 2.0  # no progress bar before this


class Command(BaseCommand):
    help = __doc__ or ""
    requires_system_checks: list[str] = []

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        return super().create_parser(prog_name, subcommand, formatter_class=RawDescriptionHelpFormatter, **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        known = ", ".join(POLICY_RULES)
        add = parser.add_argument
        add("trace", help="a trace file (CSV, SWF, sacct, JSON, Parquet; also gz, zst), acme:seren or acme:kalos")
        add("--policy", default="fifo", help=f"one or more, by commas: {known}")
        add("--placement", default="consolidate", choices=requests.PLACEMENT_NAMES)
        add("--preemption-cost", default="none", choices=PREEMPTION_COSTS, help="helios: 7, 30 or 60 s by width")
        add("--nodes", type=int, help="nodes of the cluster (acme: as many as it had)")
        add("--gpus-per-node", type=int, default=8)
        add("--nodes-per-leaf", type=int, default=0, help="nodes on one leaf switch; without it all are on one")
        add("--cpus-per-node", type=int, default=0, help="count CPUs too; without it jobs need GPUs")
        add("--memory-per-node-mb", type=int, default=0, help="count memory too")
        add(
            "--vcs", metavar="FILE", help="CSV vc,nodes: jobs of a virtual cluster stay in its nodes (cells: have them)"
        )
        add(
            "--faults",
            default="",
            metavar="RATES",
            help="rates for the usual ones, or name=number by commas: nodes break",
        )
        add("--checkpoint-s", type=float, default=0.0, help="jobs save so often; without it who is stopped saves first")
        add(
            "--best-effort",
            metavar="KINDS",
            help="acme: kinds of work that borrow, by commas (evaluation); '' for none",
        )
        add("--quota", metavar="FILE", help="CSV team,kind,gpus: what teams may hold; no kind means all of them")
        add("--policy-settings", metavar="JSON", help='an object for a policy: \'{"acme": {"order": "sjf"}}\'')
        add("--noise", default="none", help="errors of expected run times: none, helios, or a log-normal's sigma")
        add("--jobs", type=int, help="acme: how many jobs to draw")
        add("--seed", type=int, default=0, help="of the draw, the faults and the noise")
        add("--json", metavar="FILE", help="write the report there; - writes it to stdout alone")
        add("--plots", metavar="DIR", help="draw the queueing delays and the utilisation there, as SVG and PNG")

    def handle(self, *, trace: str, policy: str, **given: Any) -> None:
        try:
            policies = requests.parse_policies(policy)
            history, nodes = self._load_trace(trace, given)
            setting = _replay_setting(nodes, given, _quotas(given["quota"], policies, history))
            special = requests.parse_policy_settings(given["policy_settings"] or "{}", policies)
            if given["plots"]:
                plots.check_plots(given["plots"])
            self._warn_bad_rows(history)
            runs, summaries = [], []
            for name in policies:
                done, told = self._run_policy(history, name, replace(setting, policy_settings=special.get(name, {})))
                runs.append(done)
                summaries.append(told)
        except USER_ERRORS as error:
            raise CommandError(str(error)) from error
        self._write_report(summaries, given["json"])
        self._write_distances(trace, history, given["json"])
        if given["plots"]:
            plots.draw(runs, Path(given["plots"]))

    def _load_trace(self, trace: str, given: dict[str, Any]) -> tuple[Trace, int | None]:
        site_name = trace.removeprefix("acme:")
        if site_name == trace:
            return read_trace(trace), given["nodes"]
        if (site := acme_trace.PUBLISHED_CLUSTERS.get(site_name)) is None:
            known = ", ".join(f"acme:{name}" for name in acme_trace.PUBLISHED_CLUSTERS)
            raise CommandError(f"trace: acme:{site_name} is none of {known}")
        if given["jobs"] is not None and given["jobs"] < 1:
            raise CommandError("jobs: must be at least 1")
        drawn = acme_trace.draw_trace(site, site_name, jobs=given["jobs"], seed=given["seed"])
        return drawn, site.nodes if given["nodes"] is None else given["nodes"]

    def _run_policy(self, history: Trace, policy: str, setting: ReplaySetting) -> tuple[PolicyRun, dict[str, Any]]:
        bar = _ProgressBar(policy, len(history)) if sys.stderr.isatty() else None
        try:
            done, told = measure_run(history, policy, setting, bar)
        except USER_ERRORS:
            raise
        except Exception as error:
            raise CommandError(policy_error_text(POLICY_RULES[policy], error)) from error
        finally:
            if bar:
                bar.clear()
        load = report.offered_load(done)
        if load > 1:
            self.stderr.write(f"{policy}: jobs ask for {load:.0%} of the GPUs while they come: the queue only grows.")
        for name, count in told["set_aside"].items():
            if count and name != "bad_rows":
                self.stderr.write(f"{policy}: {count} jobs set aside: {name.replace('_', ' ')}.")
        return done, told

    def _warn_bad_rows(self, history: Trace) -> None:
        if history.bad_count:
            self.stderr.write(f"{history.source}: {history.bad_count} rows are no jobs that ran; the first are:")
            for bad in history.bad[:5]:
                self.stderr.write(f"  {bad}")
        if not len(history):
            raise CommandError(f"{history.source} holds no job that ran.")

    def _write_report(self, summaries: Sequence[dict[str, Any]], target: str | None) -> None:
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

    def _write_distances(self, trace: str, history: Trace, target: str | None) -> None:
        """Drawn jobs are only worth something if they are like the published ones."""
        if (
            site := acme_trace.PUBLISHED_CLUSTERS.get(trace.removeprefix("acme:"))
            if trace.startswith("acme:")
            else None
        ):
            out = self.stderr if target == "-" else self.stdout
            out.write("\nfrom the published curves, in percentage points at the widest gap:")
            for distance in acme_trace.distances(history, site):
                out.write(f"  {distance}")


def policy_error_text(rules: type[PolicyRules], error: Exception) -> str:
    """One sentence for whoever writes a policy; Django's `--traceback` tells the whole way."""
    way = traceback.extract_tb(error.__traceback__)
    if isinstance(error, NotImplementedError) and way[-1].name == "turn":
        return f"policy {rules.name}: it has no `turn`, which says how the line is walked"
    own = rules.__module__.replace(".", "/") + ".py"
    at = next((step for step in reversed(way) if step.filename.endswith(own)), way[-1])
    what = f"{type(error).__name__}: {error}".removesuffix(": ")
    return f"policy {rules.name}: {what}, in `{at.name}` ({at.filename}:{at.lineno}); --traceback tells more"


def _replay_setting(nodes: int | None, given: dict[str, Any], quotas: Sequence[QuotaView]) -> ReplaySetting:
    same = (
        *("gpus_per_node", "placement", "preemption_cost", "cpus_per_node", "memory_per_node_mb", "nodes_per_leaf"),
        *("faults", "noise", "seed", "checkpoint_s", "best_effort"),
    )
    pools = _pools(given["vcs"]) if given["vcs"] else None
    return requests.replay_setting(
        nodes=nodes,
        vcs=pools,
        quotas=quotas,
        **{name: given[name] for name in same},
    )


def _pools(path: str) -> dict[str, int]:
    try:
        with open(path, newline="") as lines:
            return requests.parse_virtual_clusters(lines, path)
    except (OSError, UnicodeError) as error:
        raise CommandError(f"vcs: {error}") from error


def _quotas(path: str | None, policies: Sequence[str], history: Trace) -> list[QuotaView]:
    if not path:
        return []
    requests.check_quota_policies(policies)
    try:
        with open(path, newline="") as lines:
            return requests.parse_quotas(lines, path, set(history.pools.words))
    except (OSError, UnicodeError) as error:
        raise CommandError(f"quota: {error}") from error


class _ProgressBar:
    """On a terminal, once a run takes longer than one likes to wait without a word."""

    def __init__(self, policy: str, jobs: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._policy, self._jobs, self._clock = policy, jobs, clock
        self._began, self._shown = clock(), False

    def __call__(self, come: int) -> None:
        past = self._clock() - self._began
        if past > PROGRESS_DELAY_S:
            part = come / max(1, self._jobs)
            left = past / part - past if part else 0
            bar = "█" * int(part * 30)
            sys.stderr.write(f"\r{self._policy:<12}{bar:<30} {part:4.0%} of {self._jobs:,} jobs, {left:.0f} s left ")
            self._shown = True

    def clear(self) -> None:
        if self._shown:
            sys.stderr.write("\r" + " " * 78 + "\r")
