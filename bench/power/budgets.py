"""More nodes under the same power budget:  python bench/power/budgets.py [--jobs N] [--node-watts W] [--step-s S]

Draws jobs of Seren, submits them at 130 % of their rate to 130 % of its nodes, and runs the schedule under the budget
of the nodes that Seren has: their number times the rated power of one (6,500 W for eight A100, which is about the
highest of AcmeTrace's samples) or another value of `--node-watts`. Prints, for the same jobs and power profiles: no
cap, static caps, POLCA's rule, the same with one more step, and the rule of live clusters, which continues a rise of
the power for two seconds. `scheduling/whatif/replay/power/profiles.py` names the sources
of the profiles.

The goals of the rules: no excursion above the budget longer than 2 s, high-priority jobs less than 1 % and
low-priority jobs (evaluation, debug) less than 5 % slower. Slowdown is the time on GPUs for the work, by GPU time.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.scheduling.doors import machine
from scheduling.power.rules.caps import GRADUAL_STEPS, NO_CAP, POLCA_PERCENTS, CapSettings, polca_steps, static_cap
from scheduling.power.rules.gpu_clocks import PowerFleet
from scheduling.whatif.replay.acme_trace import PUBLISHED_CLUSTERS, draw_trace
from scheduling.whatif.replay.power.budget_run import Actuator, BudgetRun, PowerJobs, run_budget
from scheduling.whatif.replay.power.report import power_jobs
from scheduling.whatif.replay.power.setting import PowerSetting
from scheduling.whatif.replay.run import ReplaySetting, run_policy

LEAD_S = 2.0  # as on live clusters
GOAL_EXCURSION_S, GOAL_HIGH, GOAL_LOW = 2.0, 0.01, 0.05
MORE = 130  # percent of the nodes


def main() -> int:
    options = arguments()
    site = PUBLISHED_CLUSTERS["seren"]
    nodes = site.nodes * MORE // 100
    setting = ReplaySetting(nodes=nodes, load=options.load, best_effort=(), seed=options.seed, power=PowerSetting())
    replayed = run_policy(draw_trace(site, "seren", jobs=options.jobs, seed=options.seed), options.policy, setting)
    jobs, fleet, budget_w = power_jobs(replayed), setting.power_fleet, site.nodes * options.node_watts
    until_s = float(replayed.trace.submit_s[-1])
    print(
        f"{len(jobs.start_s):,} jobs of {until_s / 86_400:.1f} days on {nodes} nodes at {options.load} % of their rate"
    )
    print(f"budget {budget_w / 1e6:.3f} MW; {machine()}")
    fixed = {"no cap": NO_CAP, **{f"static {mhz} MHz": static_cap(mhz) for mhz in options.static_mhz}}
    live = CapSettings(steps=polca_steps(POLCA_PERCENTS), lead_s=LEAD_S)
    rules = {"POLCA": CapSettings(), "gradual": CapSettings(steps=GRADUAL_STEPS), "POLCA, rise": live}
    missed = []
    actuator = Actuator(latency_s=options.latency_s, failure_rate=options.failure_rate, seed=options.seed)
    for name, caps in {**fixed, **rules}.items():
        began = time.perf_counter()
        run = run_budget(jobs, fleet, budget_w, caps, actuator=actuator, step_s=options.step_s, until_s=until_s)
        print_run(name, run, jobs, fleet, time.perf_counter() - began)
        missed += [name] if name in rules and not reaches_goals(run, jobs) else []
    print(f"goals missed by: {', '.join(missed) or 'none of the rules'}")
    return 1 if missed else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--jobs", type=int, default=20_000, help="of Seren's 663,813 in 184 days")
    add("--load", type=int, default=MORE, help="percent of the rate at which Seren's jobs are submitted")
    add("--policy", default="fifo-skip", help="a policy without preemption")
    add("--node-watts", type=float, default=6_500.0, help="budget per node that Seren has")
    add("--static-mhz", type=int, nargs="+", default=[1305, 1110])
    add("--step-s", type=float, default=1.0, help="between two readings")
    add("--latency-s", type=float, default=1.0, help="until a command takes effect")
    add("--failure-rate", type=float, default=0.0, help="of commands, by job")
    add("--seed", type=int, default=0)
    return parser.parse_args()


def slowdown(run: BudgetRun, jobs: PowerJobs, *, low: bool) -> float:
    """The time on GPUs for the work, above 1, by GPU time."""
    chosen = jobs.is_low == low
    worked = float(jobs.gpus[chosen] @ run.worked_s[chosen])
    return float(jobs.gpus[chosen] @ run.held_s[chosen]) / worked - 1 if worked else 0.0


def slow_percentile(run: BudgetRun, jobs: PowerJobs, *, low: bool) -> float:
    """The 99th percentile of the slowdown over jobs that did any work."""
    chosen = (jobs.is_low == low) & (run.worked_s > 0)
    return float(np.percentile(run.held_s[chosen] / run.worked_s[chosen] - 1, 99)) if chosen.any() else 0.0


def reaches_goals(run: BudgetRun, jobs: PowerJobs) -> bool:
    high, low = slowdown(run, jobs, low=False), slowdown(run, jobs, low=True)
    return bool(run.longest_excursion_s <= GOAL_EXCURSION_S + 1e-6 and high < GOAL_HIGH and low < GOAL_LOW)


def print_run(name: str, run: BudgetRun, jobs: PowerJobs, fleet: PowerFleet, took_s: float) -> None:
    hours = run.end_s / 3600
    levels = " ".join(f"{seconds / 3600:.2f}" for seconds in run.level_s[1:]) or "-"
    slow = ", ".join(
        f"{name} {slowdown(run, jobs, low=low):.2%} (p99 {slow_percentile(run, jobs, low=low):.1%})"
        for name, low in (("high", False), ("low", True))
    )
    print(
        f"{name:16}peak {run.peak_w / run.budget_w:.1%}, {len(run.excursions)} excursions, longest "
        f"{run.longest_excursion_s:.1f} s, {run.above_s:.0f} s in all; slower: {slow}; starts "
        f"{max(0.0, np.nanmean(run.started_s - jobs.start_s)):.1f} s later; {run.energy_kwh:,.0f} kWh, "
        f"{run.energy_kwh * 1000 / hours / fleet.nodes:,.0f} W per node; hours at each step: {levels}; "
        f"{run.stepped_s / 3600:.1f} of {hours:.1f} h in steps; {took_s:.1f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
