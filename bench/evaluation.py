"""Evaluation campaigns:  python bench/evaluation.py [--cases N] [--json FILE]

1. A campaign of 500 checkpoints and 63 datasets, planned: seconds on one core (goal 5) and how far the plan is from the
   lower bound.
2. The line beside CP-SAT, which solves small cases to the end: datasets that may not be cut, each with seconds on a GPU
   and a metric after it that runs beside. The gap is the makespan over the solver's; where it has not come to the end
   within its effort, over what it has proven that nobody can beat. The seeds are 0, 1, 2, …
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path
from random import Random
from statistics import mean
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from scheduling.evaluation.bound import lower_bound_s
from scheduling.evaluation.line import Task
from scheduling.evaluation.plan import foresee
from scheduling.evaluation.work import Cost, Phases, Site, datasets

EFFORT = 3.0  # of the solver for a case, in its own units: some seconds, the same on every machine
NO_START = Phases(start=0.0, weights_gb=0.0)


def planned(checkpoints: int, nodes: int) -> dict[str, Any]:
    phases, known, site = Phases.anchored(), datasets(), Site(nodes=nodes)
    tasks = [
        Task(checkpoint=c, dataset=n, samples=d.samples, prior=phases.cost(d, d.samples))
        for c in range(checkpoints)
        for n, d in enumerate(known)
    ]
    began = time.process_time()
    plan = foresee(tasks, [d.name for d in known], site, phases)
    took = time.process_time() - began
    bound = lower_bound_s(site, phases, [(t.samples, t.prior) for t in tasks], checkpoints=checkpoints)
    return {
        "checkpoints": checkpoints,
        "nodes": nodes,
        "slices": plan.pieces,
        "plan_s": round(took, 2),
        "over_bound": round(plan.makespan_s / bound, 4),
    }


def gap(seed: int) -> tuple[float, bool]:
    """And whether the solver came to the end."""
    dice = Random(seed)
    gpus = dice.choice([2, 3, 4])
    work = [(dice.randint(10, 400), dice.choice([0, 0, dice.randint(1, 300)])) for _ in range(dice.randint(5, 9))]
    tasks = [
        Task(
            checkpoint=0, dataset=n, samples=1, parts=1, prior=Cost(prepare=0.0, infer=float(infer), score=float(score))
        )
        for n, (infer, score) in enumerate(work)
    ]
    site = Site(nodes=1, gpus_per_node=gpus, scorers_per_node=len(work))
    ours = foresee(tasks, [str(n) for n in range(len(work))], site, NO_START).makespan_s
    least, solved = best(work, gpus, int(ours))
    return ours / least - 1, solved


def best(work: list[tuple[int, int]], gpus: int, known: int) -> tuple[float, bool]:
    """The shortest makespan there is, at most the one that is known: who runs when, and its metric afterwards on a CPU
    of its own."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    horizon = known
    end = model.new_int_var(-(-sum(infer for infer, _ in work) // gpus), horizon, "end")
    spans = []
    for number, (infer, score) in enumerate(work):
        start = model.new_int_var(0, horizon, f"start{number}")
        spans.append(model.new_fixed_size_interval_var(start, infer, f"span{number}"))
        model.add(end >= start + infer + score)
    model.add_cumulative(spans, [1] * len(spans), gpus)
    model.minimize(end)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_deterministic_time = EFFORT
    if solver.solve(model) == cp_model.OPTIMAL:
        return solver.objective_value, True
    return solver.best_objective_bound, False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=200, help="small cases for CP-SAT")
    parser.add_argument("--json", metavar="FILE")
    given = parser.parse_args()
    machine = f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    print(machine)
    plans = [planned(500, nodes) for nodes in (4, 36, 64)]
    print(f"\n{'checkpoints':>11}{'nodes':>7}{'slices':>9}{'plan, CPU s':>13}{'of bound':>10}   goal 5 s")
    for plan in plans:
        print("{checkpoints:>11}{nodes:>7}{slices:>9}{plan_s:>13}{over_bound:>10}".format(**plan))
    cases = [gap(seed) for seed in range(given.cases)]
    gaps, solved = sorted(over for over, _ in cases), sum(done for _, done in cases)
    shown = {
        "cases": len(gaps),
        "solved": solved,
        "mean": mean(gaps),
        "p90": gaps[int(0.9 * len(gaps))],
        "worst": gaps[-1],
    }
    print(f"\nbeside CP-SAT, {shown['cases']} cases, {solved} solved to the end: mean {shown['mean']:.1%}, ", end="")
    print(f"p90 {shown['p90']:.1%}, worst {shown['worst']:.1%}")
    if given.json:
        Path(given.json).write_text(json.dumps({"machine": machine, "plans": plans, "gap": shown}, indent=2) + "\n")


if __name__ == "__main__":
    main()
