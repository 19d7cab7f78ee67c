"""Evaluation campaigns:  python bench/evaluation.py [--cases N] [--json FILE]

1. The plan of a campaign of 500 checkpoints and 63 datasets: seconds on one core (goal 5) and the distance from the
   lower bound; also if datasets may not be divided.
2. Our order and CP-SAT, which solves small cases to optimality: 5 to 9 indivisible datasets on 2 to 4 GPUs, each with
   seconds on a GPU and a metric after it that runs in parallel. The gap is our makespan over the solver's; if the
   solver has not finished within its effort, over the lower bound that it has proven. The seeds are 0, 1, 2, …
3. The same for 10 to 40 datasets on 2 to 8 GPUs, over an arithmetic lower bound, which is loose if there are few
   datasets per GPU.
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

from scheduling.evaluation.rules.dispatch import DatasetTask
from scheduling.evaluation.rules.forecast import lower_bound_s, simulate_campaign
from scheduling.evaluation.rules.uncut_order import makespan_lower_bound_s
from scheduling.evaluation.rules.work import EvaluationSite, PhaseCosts, SliceCost, datasets

SOLVER_EFFORT = 3.0  # per case, in the solver's units: some seconds, the same on every machine
SMALL_CASES, LARGE_CASES = ((2, 3, 4), (5, 9)), ((2, 4, 6, 8), (10, 40))  # numbers of GPUs, range of datasets
NO_STARTUP_COST = PhaseCosts(start=0.0, checkpoint_gb=0.0)


def measure_plan(checkpoints: int, nodes: int, *, whole: bool = False) -> dict[str, Any]:
    phases, known, site = PhaseCosts.calibrate(), datasets(), EvaluationSite(nodes=nodes)
    costs = [(d, phases.cost(d, d.samples)) for d in known]
    tasks = [
        DatasetTask(checkpoint=c, dataset=n, samples=d.samples, parts=1 if whole else d.samples, prior=cost)
        for c in range(checkpoints)
        for n, (d, cost) in enumerate(costs)
    ]
    began = time.process_time()
    plan = simulate_campaign(tasks, [d.name for d in known], site, phases)
    took = time.process_time() - began
    bound = lower_bound_s(site, phases, [(t.parts, t.prior) for t in tasks], checkpoints=checkpoints)
    return {
        "checkpoints": checkpoints,
        "nodes": nodes,
        "cut": "no" if whole else "yes",
        "slices": plan.pieces,
        "plan_s": round(took, 2),
        "over_bound": round(plan.makespan_s / bound, 4),
    }


CaseSizes = tuple[tuple[int, ...], tuple[int, int]]


def random_case(seed: int, sizes: CaseSizes) -> tuple[list[tuple[int, int]], int]:
    dice = Random(seed)
    gpus, (fewest, most) = dice.choice(sizes[0]), sizes[1]
    count = dice.randint(fewest, most)
    return [(dice.randint(10, 400), dice.choice([0, 0, dice.randint(1, 300)])) for _ in range(count)], gpus


def planned_makespan_s(work: list[tuple[int, int]], gpus: int) -> float:
    tasks = [
        DatasetTask(
            checkpoint=0,
            dataset=n,
            samples=1,
            parts=1,
            prior=SliceCost(prepare=0.0, infer=float(infer), score=float(score)),
        )
        for n, (infer, score) in enumerate(work)
    ]
    site = EvaluationSite(nodes=1, gpus_per_node=gpus, scorers_per_node=len(work))
    return simulate_campaign(tasks, [str(n) for n in range(len(work))], site, NO_STARTUP_COST).makespan_s


def solver_gap(seed: int) -> tuple[float, bool]:
    """Return the gap, and whether the solver finished."""
    work, gpus = random_case(seed, SMALL_CASES)
    planned = planned_makespan_s(work, gpus)
    optimum, solved = solve_makespan(work, gpus, int(planned))
    return planned / optimum - 1, solved


def lower_bound_gap(seed: int) -> float:
    work, gpus = random_case(seed, LARGE_CASES)
    return planned_makespan_s(work, gpus) / makespan_lower_bound_s(work, gpus) - 1


def solve_makespan(work: list[tuple[int, int]], gpus: int, known: int) -> tuple[float, bool]:
    """Return the shortest makespan, at most the known one, by assigning datasets to GPUs. The longest metrics go first,
    because no other order on the same GPU ends earlier."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    end = model.new_int_var(0, known, "end")
    model.add(gpus * end >= sum(infer for infer, _ in work))
    busy: list[Any] = [0] * gpus
    for number, (infer, score) in enumerate(sorted(work, key=lambda one: -one[1])):
        onto = [model.new_bool_var(f"{number} on {gpu}") for gpu in range(min(gpus, number + 1))]
        model.add_exactly_one(onto)
        for gpu, is_enabled in enumerate(onto):
            busy[gpu] += infer * is_enabled
            model.add(busy[gpu] + score * is_enabled <= end)
    model.minimize(end)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_deterministic_time = SOLVER_EFFORT
    if solver.solve(model) == cp_model.OPTIMAL:
        return solver.objective_value, True
    return solver.best_objective_bound, False


def gap_summary(gaps: list[float]) -> dict[str, float]:
    ranked = sorted(gaps)
    quantiles = {f"p{percent}": ranked[int(percent / 100 * (len(ranked) - 1) + 0.5)] for percent in (90, 95)}
    return {"cases": len(ranked), "mean": mean(ranked), **quantiles, "worst": ranked[-1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=200, help="number of small cases for CP-SAT")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    machine = f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    print(machine)
    plans = [measure_plan(500, nodes) for nodes in (4, 36, 64)] + [
        measure_plan(500, nodes, whole=True) for nodes in (4, 64)
    ]
    print(f"\n{'checkpoints':>11}{'nodes':>7}{'cut':>5}{'slices':>9}{'plan, CPU s':>13}{'of bound':>10}   goal 5 s")
    for plan in plans:
        print("{checkpoints:>11}{nodes:>7}{cut:>5}{slices:>9}{plan_s:>13}{over_bound:>10}".format(**plan))
    cases = [solver_gap(seed) for seed in range(options.cases)]
    small = gap_summary([over for over, _ in cases]) | {"solved": sum(done for _, done in cases)}
    larger = gap_summary([lower_bound_gap(seed) for seed in range(options.cases)])
    words = "mean {mean:.2%}, p90 {p90:.2%}, p95 {p95:.2%}, worst {worst:.2%}"
    print(
        "\ncompared with CP-SAT, {cases} cases, {solved} solved to optimality: ".format(**small) + words.format(**small)
    )
    print("larger cases, {cases}, over the lower bound: ".format(**larger) + words.format(**larger))
    if options.json:
        planned = {"machine": machine, "plans": plans, "gap": small, "larger": larger}
        Path(options.json).write_text(json.dumps(planned, indent=2) + "\n")


if __name__ == "__main__":
    main()
