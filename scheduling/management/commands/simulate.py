"""Replay a trace under one or more policies and compare them. Needs no database and no server.

manage.py simulate trace.csv.gz --policy fifo,sjf,easy --nodes 80
manage.py simulate trace.csv.gz --policy easy,my_module:MyPolicy --nodes 80
manage.py simulate acme:seren --jobs 100000 --policy fifo-skip,srtf --json report.json
manage.py simulate acme:seren --jobs 20000 --policy fifo,easy --power-budget-kw 1400 --price-per-kwh 0.2 --sleep
manage.py simulate trace.csv.gz --policy easy --nodes 12 --gpu-types h100=4,a100=8 --gpu-speeds speeds.csv
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

from acmeweb.common.errors import InvalidField, InvalidInput
from jobs.traces.files import read_trace
from jobs.traces.trace import Trace
from scheduling.engine.cluster import QuotaView
from scheduling.engine.engine import PolicyRules
from scheduling.engine.settings import MissingLibrary
from scheduling.management.text_files import open_text
from scheduling.whatif.replay import acme_trace, plots, report, requests
from scheduling.whatif.replay.job_profiles import table_rows
from scheduling.whatif.replay.policies import REPLAY_POLICIES, policy_rules
from scheduling.whatif.replay.run import PREEMPTION_COSTS, PolicyRun, ReplaySetting
from scheduling.whatif.replay.timed_runs import measure_run

USER_ERRORS = (InvalidField, InvalidInput, MissingLibrary)
PROGRESS_DELAY_S = 2.0  # no progress bar before this


class Command(BaseCommand):
    help = __doc__ or ""
    requires_system_checks: list[str] = []

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        return super().create_parser(prog_name, subcommand, formatter_class=RawDescriptionHelpFormatter, **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        names = ", ".join(REPLAY_POLICIES)
        add = parser.add_argument
        add("trace", help="a trace file (CSV, SWF, sacct, JSON, Parquet; also gz, zst), acme:seren or acme:kalos")
        add("--policy", default="fifo", help=f"one or more policies, separated by commas: {names}, or module:Class")
        add("--placement", default="consolidate", choices=requests.PLACEMENT_NAMES)
        add(
            "--preemption-cost",
            default="none",
            choices=PREEMPTION_COSTS,
            help="helios: 7, 30 or 60 s, depending on job size",
        )
        add("--nodes", type=int, help="number of nodes (acme: the published number)")
        add("--gpus-per-node", type=int, default=8)
        add("--nodes-per-leaf", type=int, default=0, help="nodes per leaf switch (default: all nodes on one switch)")
        add("--cpus-per-node", type=int, default=0, help="CPUs per node (default: CPUs are not counted)")
        add("--memory-per-node-mb", type=int, default=0, help="memory per node (default: memory is not counted)")
        add(
            "--gpu-types",
            metavar="MODEL=NODES,…",
            help="GPU models and their numbers of nodes, such as h100=4,a100=8 (default: all GPUs are equal)",
        )
        add(
            "--gpu-model",
            default="",
            metavar="MODEL|MODEL",
            help="models that jobs accept, in order of preference; run times are those on the first (default: all)",
        )
        add(
            "--gpu-speeds",
            metavar="FILE",
            help="CSV pattern,gpu_model,speed: how fast jobs are on each model, by the name of the job",
        )
        add(
            "--vcs",
            metavar="FILE",
            help="CSV vc,nodes: virtual clusters and their nodes; their jobs run on these nodes only",
        )
        add(
            "--faults",
            default="",
            metavar="RATES",
            help="node failures: rates, or name=number pairs separated by commas",
        )
        add(
            "--checkpoint-s",
            type=float,
            default=0.0,
            help="checkpoint interval (default: jobs save when they are preempted)",
        )
        add(
            "--best-effort",
            metavar="KINDS",
            help="acme: preemptible kinds that may borrow, separated by commas (evaluation); '' for none",
        )
        add("--quota", metavar="FILE", help="CSV team,kind,gpus[,gpu_model]: quotas of teams; empty means all")
        add("--policy-settings", metavar="JSON", help='settings by policy: \'{"acme": {"order": "sjf"}}\'')
        add("--noise", default="none", help="error of run time estimates: none, helios, or a log-normal's sigma")
        add(
            "--load",
            type=int,
            default=100,
            metavar="PERCENT",
            help="arrival rate: 150 submits the same jobs in two thirds of the time (default: 100)",
        )
        add(
            "--profiles",
            metavar="FILE",
            help="CSV name,gpu_percent,memory_mb[,score]: how jobs of a name use a GPU, for policies that let jobs"
            " share GPUs",
        )
        add(
            "--pair-speeds",
            metavar="FILE",
            help="CSV name1,name2,speed1,speed2: how fast two jobs run on the same GPUs (default: estimated from the"
            " utilization)",
        )
        add("--draw-profiles", action="store_true", help="give each job a random profile; --seed makes it repeatable")
        add("--energy", action="store_true", help="report energy and peak power, with simulated nodes of 8 A100")
        add(
            "--power-budget-kw",
            type=float,
            metavar="KW",
            help="jobs start only while the predicted power of all nodes stays below; implies --energy",
        )
        add("--price-per-kwh", type=float, metavar="PRICE", help="report the cost of energy; implies --energy")
        add("--sleep", action="store_true", help="report what sleeping nodes would save; implies --energy")
        add("--jobs", type=int, help="acme: number of synthetic jobs")
        add("--seed", type=int, default=0, help="seed of the jobs, the faults and the noise")
        add("--json", metavar="FILE", help="write the report to FILE; with - only the report is written, to stdout")
        add("--plots", metavar="DIR", help="write charts of queue waits and utilization to DIR, as SVG and PNG")

    def handle(self, *, trace: str, policy: str, **options: Any) -> None:
        try:
            policies = requests.parse_policies(policy)
            history, nodes = self._load_trace(trace, options)
            setting = _replay_setting(nodes, options, _quotas(options["quota"], policies, history))
            requests.check_power_policies(policies, setting)
            requests.check_packing_policies(policies, setting)
            requests.check_speed_policies(policies, setting)
            requests.check_profiled_jobs(setting, history)
            special = requests.parse_policy_settings(options["policy_settings"] or "{}", policies)
            if options["plots"]:
                plots.check_plots(options["plots"])
            self._warn_bad_rows(history)
            runs, summaries = [], []
            for name in policies:
                run, summary = self._run_policy(history, name, replace(setting, policy_settings=special.get(name, {})))
                runs.append(run)
                summaries.append(summary)
        except USER_ERRORS as error:
            raise CommandError(str(error)) from error
        self._write_report(summaries, options["json"])
        self._write_distances(trace, history, options["json"])
        if options["plots"]:
            plots.draw(runs, Path(options["plots"]))

    def _load_trace(self, trace: str, options: dict[str, Any]) -> tuple[Trace, int | None]:
        site_name = trace.removeprefix("acme:")
        if site_name == trace:
            return read_trace(trace), options["nodes"]
        if (site := acme_trace.PUBLISHED_CLUSTERS.get(site_name)) is None:
            known = ", ".join(f"acme:{name}" for name in acme_trace.PUBLISHED_CLUSTERS)
            raise CommandError(f"trace: acme:{site_name} is not one of {known}")
        if options["jobs"] is not None and options["jobs"] < 1:
            raise CommandError("jobs: must be at least 1")
        drawn = acme_trace.draw_trace(site, site_name, jobs=options["jobs"], seed=options["seed"])
        return drawn, site.nodes if options["nodes"] is None else options["nodes"]

    def _run_policy(self, history: Trace, policy: str, setting: ReplaySetting) -> tuple[PolicyRun, dict[str, Any]]:
        bar = _ProgressBar(policy, len(history)) if sys.stderr.isatty() else None
        try:
            run, summary = measure_run(history, policy, setting, bar)
        except USER_ERRORS:
            raise
        except Exception as error:
            raise CommandError(policy_error_text(policy_rules(policy), error)) from error
        finally:
            if bar:
                bar.clear()
        load = report.offered_load(run)
        if load > 1:
            self.stderr.write(
                f"{policy}: the jobs request {load:.0%} of the GPUs on average, so the queue grows without limit."
            )
        for name, count in summary["set_aside"].items():
            if count and name != "bad_rows":
                self.stderr.write(f"{policy}: {count} jobs skipped: {name.replace('_', ' ')}.")
        return run, summary

    def _warn_bad_rows(self, history: Trace) -> None:
        if history.bad_count:
            self.stderr.write(
                f"{history.source}: {history.bad_count} rows are not jobs that ran and were skipped. The first ones:"
            )
            for bad in history.bad[:5]:
                self.stderr.write(f"  {bad}")
        if not len(history):
            raise CommandError(f"{history.source} contains no job that ran.")

    def _write_report(self, summaries: Sequence[dict[str, Any]], target: str | None) -> None:
        text = json.dumps({"runs": summaries}, indent=2, allow_nan=False)
        self._write_text(text, report.table(summaries), target)

    def _write_text(self, text: str, table: str, target: str | None) -> None:
        if target == "-":
            self.stdout.write(text)
            return
        self.stdout.write(table)
        if target:
            try:
                Path(target).write_text(text + "\n")
            except OSError as error:
                raise CommandError(f"json: {error}") from error

    def _write_distances(self, trace: str, history: Trace, target: str | None) -> None:
        """Write how much the synthetic jobs differ from the published distributions."""
        if (
            site := acme_trace.PUBLISHED_CLUSTERS.get(trace.removeprefix("acme:"))
            if trace.startswith("acme:")
            else None
        ):
            out = self.stderr if target == "-" else self.stdout
            out.write("\nmaximum distance from the published curves, in percentage points:")
            for distance in acme_trace.distances(history, site):
                out.write(f"  {distance}")


def policy_error_text(rules: type[PolicyRules], error: Exception) -> str:
    """Return one sentence for the author of a policy. Django's `--traceback` shows the complete traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, NotImplementedError) and frames[-1].name == "turn":
        return f"policy {rules.name}: it does not define `turn`, which decides the order of the queue"
    own = rules.__module__.replace(".", "/") + ".py"
    at = next((step for step in reversed(frames) if step.filename.endswith(own)), frames[-1])
    what = f"{type(error).__name__}: {error}".removesuffix(": ")
    return f"policy {rules.name}: {what}, in `{at.name}` ({at.filename}:{at.lineno}); use --traceback for details"


def _replay_setting(nodes: int | None, options: dict[str, Any], quotas: Sequence[QuotaView]) -> ReplaySetting:
    same = (
        *("gpus_per_node", "placement", "preemption_cost", "cpus_per_node", "memory_per_node_mb", "nodes_per_leaf"),
        *("faults", "noise", "seed", "checkpoint_s", "best_effort", "load"),
    )
    pools = _pools(options["vcs"]) if options["vcs"] else None
    return requests.replay_setting(
        nodes=nodes,
        vcs=pools,
        quotas=quotas,
        power=requests.power_setting(**{name: options[name] for name in requests.POWER_NAMES}),
        profiles=requests.profile_table(
            profiles=_rows("profiles", options["profiles"]),
            pair_speeds=_rows("pair_speeds", options["pair_speeds"]),
            draw_profiles=options["draw_profiles"],
        ),
        gpu_types=requests.gpu_types(
            options["gpu_types"], options["gpu_model"], _rows("gpu_speeds", options["gpu_speeds"])
        ),
        **{name: options[name] for name in same},
    )


def _pools(path: str) -> dict[str, int]:
    with open_text(path, "vcs") as lines:
        return requests.parse_virtual_clusters(lines, path)


def _rows(field: str, path: str | None) -> list[dict[str, object]]:
    if not path:
        return []
    with open_text(path, field) as lines:
        return table_rows(field, lines, path)


def _quotas(path: str | None, policies: Sequence[str], history: Trace) -> list[QuotaView]:
    if not path:
        return []
    requests.check_quota_policies(policies)
    with open_text(path, "quota") as lines:
        return requests.parse_quotas(lines, path, set(history.pools.words))


class _ProgressBar:
    """A progress bar on the terminal, shown for runs that take longer than `PROGRESS_DELAY_S`."""

    def __init__(self, policy: str, jobs: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._policy, self._jobs, self._clock = policy, jobs, clock
        self._began, self._shown = clock(), False

    def __call__(self, submitted: int) -> None:
        past = self._clock() - self._began
        if past > PROGRESS_DELAY_S:
            part = submitted / max(1, self._jobs)
            remaining = past / part - past if part else 0
            bar = "█" * int(part * 30)
            sys.stderr.write(
                f"\r{self._policy:<12}{bar:<30} {part:4.0%} of {self._jobs:,} jobs, {remaining:.0f} s left "
            )
            self._shown = True

    def clear(self) -> None:
        if self._shown:
            sys.stderr.write("\r" + " " * 78 + "\r")
