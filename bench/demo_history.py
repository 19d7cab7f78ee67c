"""Compare the demo's history with the figures of the study:  python bench/demo_history.py [--cluster NAME] [--days N]

Simulates the history without a database and prints each figure beside the published one, with the standard error of
the sample. The published figures are capped at the largest job that the demo's cluster accepts.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import django

sys.path.insert(0, str(Path(__file__).parent.parent))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "acmeweb.settings")

NODES = {"seren": 32, "kalos": 34}  # of the demo


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=float, default=30.0)
    parser.add_argument("--cluster", choices=["seren", "kalos"], default="seren")
    parser.add_argument("--seed", type=int)
    options = parser.parse_args()
    django.setup()
    from scheduling.simulation.demo.sites import history_settings
    from scheduling.simulation.drill.history import SiteHistory, simulate_history
    from scheduling.simulation.drill.history_figures import compare_failures, compare_jobs

    nodes = NODES[options.cluster]
    settings = history_settings(options.cluster, days=options.days, nodes=nodes, gpus_per_node=8, seed=options.seed)
    began, cpu = time.perf_counter(), time.process_time()
    *_, history = simulate_history(settings)
    assert isinstance(history, SiteHistory)
    print(f"simulated in {time.perf_counter() - began:.0f} s ({time.process_time() - cpu:.0f} s of CPU time)")
    print(f"{len(history.jobs)} jobs, {len(history.failures)} failures, {len(history.campaigns)} campaigns\n")
    print(f"{'figure':24} {'of':14} {'history':>9} {'study':>9} {'error':>7} {'deviation':>9}")
    for row in [*compare_jobs(history, settings.most_gpus), *compare_failures(history)]:
        figures = f"{row.history:9.1f} {row.study:9.1f} {row.error:7.2f} {row.deviation:9.1f}"
        print(f"{row.figure:24} {row.subject:14} {figures}")


if __name__ == "__main__":
    main()
