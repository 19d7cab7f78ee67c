"""Placements compared with the optimum:  python bench/scheduling/placement.py [--cases N] [--json FILE]

Small cases that CP-SAT solves to optimality: a few nodes with CPUs and memory, and a queue that does not fit
completely. Every placement walks the queue in order and takes what fits (skipping FIFO, one turn); the solver picks the
jobs and places that fill the most GPUs. The gap is the share of those GPUs that stays empty. The order is not the
placement's choice, so the gap of "any order" is the solver's; `in order` is the optimum for the same jobs taken
greedily.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scheduling.engine.cluster import NodeView, ResourceRequest
from scheduling.engine.engine import Engine
from scheduling.engine.job import EngineJob
from scheduling.engine.placements import PLACEMENTS, PlacementContext
from scheduling.engine.placements.exact import solve_placements
from scheduling.engine.placements.gradient import Fragmentation
from scheduling.engine.policies import POLICY_RULES
from scheduling.engine.resources import ALL_NODES, NodeResources

PLACEMENT_NAMES = [name for name in PLACEMENTS if name not in ("cells", "pack")]


def random_case(seed):
    dice = Random(seed)
    nodes = [
        NodeView(id=n, name=f"n{n}", gpus=8, free_gpus=tuple(range(dice.choice([3, 4, 6, 8, 8]))),
                 free_cpus=96, free_memory_mb=1000, leaf=f"l{n // 2}")
        for n in range(6)
    ]  # fmt: skip
    requests = []
    for _ in range(dice.randint(8, 14)):
        gpus = dice.choice([1, 1, 1, 2, 2, 4, 8])
        need = ResourceRequest(
            gpus=gpus, cpus=gpus * dice.choice([4, 8, 12, 20]), memory_mb=gpus * dice.choice([50, 120, 200])
        )
        requests.append(ResourceRequest(nodes=2, gpus=4, cpus=32) if dice.random() < 0.15 else need)
    return nodes, requests


def place_greedily(nodes, requests, name):
    usual = dict.fromkeys(requests, 1.0)
    engine = Engine(
        NodeResources(nodes),
        POLICY_RULES["fifo-skip"](),
        placement=PLACEMENTS[name](PlacementContext(typical_requests=usual)),
    )
    for number, need in enumerate(requests):
        engine.submit(EngineJob(number, engine.request_group(need), 0, 10, 10), 0)
    began = time.perf_counter()
    engine.decide(0)
    took = time.perf_counter() - began
    placed = sum(job.gpus for job in engine.started_jobs)
    return placed, Fragmentation(usual).of_all_nodes(engine.resources), took


def compare_placements(cases):
    figures = {name: {"gap": 0.0, "worst": 0.0, "met": 0, "fragments": 0.0, "ms": 0.0} for name in PLACEMENT_NAMES}
    for seed in range(cases):
        nodes, requests = random_case(seed)
        best = solve_placements(
            NodeResources(nodes), [(need, ALL_NODES) for need in requests], budget=5.0, all_of_them=False
        )
        most = sum(need.total_gpus for need, places in zip(requests, best, strict=True) if places)
        for name, sums in figures.items():
            placed, fragments, took = place_greedily(nodes, requests, name)
            gap = 1 - placed / most
            sums["gap"] += gap / cases
            sums["worst"] = max(sums["worst"], gap)
            sums["met"] += gap < 1e-9
            sums["fragments"] += fragments / cases
            sums["ms"] += took * 1000 / cases
    return figures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    figures = compare_placements(options.cases)
    print(f"{options.cases} cases of 6 nodes, 8 to 14 jobs; {platform.processor() or platform.machine()}")
    print(f"{'placement':<14}{'mean gap %':>11}{'worst %':>9}{'met':>6}{'fragments':>11}{'ms a turn':>11}")
    for name, one in sorted(figures.items(), key=lambda pair: pair[1]["gap"]):
        print(f"{name:<14}{one['gap'] * 100:>11.2f}{one['worst'] * 100:>9.1f}{one['met']:>6}", end="")
        print(f"{one['fragments']:>11.2f}{one['ms']:>11.2f}")
    if options.json:
        Path(options.json).write_text(json.dumps(figures, indent=2) + "\n")
