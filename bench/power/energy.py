"""What the accounting of energy costs:  python bench/power/energy.py [--nodes N ...]

Fills a database with ten minutes of raw samples of a full cluster of nodes with 8 GPUs, and measures in one run:
  - parsing an exporter's page and writing its samples, with and without the counters of energy and node power;
  - the energy loop over ten minutes of samples, and how much of one core that is;
  - the energy of a month in a report, from rows of every hour.
It also prints how far the sums are from the counters.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.loops import start_database
from bench.scheduling.doors import machine

SIZES = {300: 480, 1_250: 2_000}  # nodes -> running jobs
SAMPLES, STEP_S, GPUS, WATTS = 41, 15, 8, 450.0
REPEATS = 5
ENERGY = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
VALUES = {
    **dict.fromkeys(("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_GPU_TEMP"), 60),
    **dict.fromkeys(("DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "DCGM_FI_DEV_ROW_REMAP_PENDING"), 0),
    "DCGM_FI_DEV_POWER_USAGE": WATTS,
    "DCGM_FI_PROF_SM_ACTIVE": 0.7,
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": 4,
    ENERGY: 10**12,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", choices=SIZES, default=list(SIZES))
    sizes = parser.parse_args().nodes
    print(machine())
    with ExitStack() as stack:
        start_database(stack)
        for nodes in sizes:
            measure(nodes, SIZES[nodes])


def measure(nodes: int, running: int) -> None:
    from bench.loops import clear_database, make_full_cluster
    from jobs.models import Allocation, Attempt, Cluster, Node, clock

    clear_database()
    cluster, _ = make_full_cluster(nodes, 0, running)
    Cluster.objects.filter(pk=cluster.pk).update(metrics_address="http://127.0.0.1:1/metrics")
    names = list(Node.objects.filter(cluster=cluster).order_by("pk").values_list("name", flat=True))
    print(f"\n{nodes:,} nodes, {nodes * GPUS:,} GPUs, {running:,} running jobs, load {os.getloadavg()[0]:.1f}")
    now = clock.now()
    Allocation.objects.update(held_at=now - timedelta(hours=1))
    Attempt.objects.update(promised_at=now - timedelta(hours=1))
    measure_samples(cluster, names, now)
    measure_loop(cluster, now)
    measure_report(cluster, now)


def page(names: Sequence[str]) -> str:
    """A page of an exporter with nine usual values of each GPU, its energy, and the power of the nodes."""
    lines = [
        f'{name}{{gpu="{gpu}",UUID="GPU-{node}-{gpu}",modelName="NVIDIA H100",hostname="{node}"}} {VALUES[name]}'
        for name in VALUES
        for node in names
        for gpu in range(GPUS)
    ]
    lines += [f'ipmi_dcmi_power_consumption_watts{{hostname="{node}"}} 4200' for node in names]
    return "\n".join(lines)


def measure_samples(cluster: Any, names: Sequence[str], now: datetime) -> None:
    from jobs.models import Sample
    from scheduling.backends import telemetry
    from scheduling.loops.telemetry import write_samples_once

    text = page(names)
    plain = "\n".join(line for line in text.split("\n") if ENERGY not in line and not line.startswith("ipmi"))
    times: dict[str, list[tuple[float, float]]] = {"without": [], "with": []}
    for repeat in range(REPEATS):
        for name, one in (("without", plain), ("with", text)):
            began = time.process_time()
            read = telemetry.parse(one)
            parsed = time.process_time()
            write_samples_once(cluster, read, now - timedelta(days=1, minutes=2 * repeat + (name == "with")))
            times[name].append((parsed - began, time.process_time() - parsed))
    Sample.objects.all().delete()
    for part, what in enumerate(("parse a page", "write its samples")):
        old, new = (min(one[part] for one in times[name]) * 1e3 for name in ("without", "with"))
        print(f"{what:22} {new:8.1f} ms of CPU every 15 s; without energy {old:.1f} ms, ratio {new / old:.2f}")


def measure_loop(cluster: Any, now: datetime) -> None:
    from django.db.models import Sum

    from jobs.models import EnergyHour, Node, Sample
    from scheduling.power.loops.energy import count_energy_once

    nodes = list(Node.objects.filter(cluster=cluster).order_by("pk"))
    began = now - timedelta(seconds=STEP_S * (SAMPLES - 1) + 75)
    rows = [
        Sample(
            node=node, at=began + timedelta(seconds=STEP_S * step), gpu_util=[90.0] * GPUS, gpu_power_w=[WATTS] * GPUS,
            gpu_energy_mj=[1e12 + 1000 * WATTS * STEP_S * step] * GPUS, node_power_w=4_200.0,
        )
        for step in range(SAMPLES) for node in nodes
    ]  # fmt: skip
    Sample.objects.bulk_create(rows, batch_size=2_000)
    took, spent = time.perf_counter(), time.process_time()
    steps = count_energy_once(cluster, now)
    wall_s, cpu_s = time.perf_counter() - took, time.process_time() - spent
    counted = EnergyHour.objects.aggregate(all=Sum("counter_j"))["all"]
    span_s = STEP_S * (SAMPLES - 1)
    print(
        f"energy loop, 10 min    {wall_s * 1e3:8.1f} ms, {cpu_s * 1e3:.1f} of our CPU: {cpu_s / span_s:.2%} of a core"
    )
    print(f"sums / counters        {counted / (len(nodes) * GPUS * WATTS * span_s):.6f} after {steps} steps")


def measure_report(cluster: Any, now: datetime) -> None:
    from django.db import connection

    from bench.loops import analyze_tables
    from jobs.models import EnergyHour
    from scheduling.power.reads.energy import energy_rows

    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO jobs_energyhour (cluster_id, start, attempt_id, counter_j, power_j, estimate_j, host_j, gpu_s)"
            " SELECT cluster_id, start - n * interval '1 hour', attempt_id, counter_j, 0, 0, host_j, gpu_s"
            " FROM jobs_energyhour, generate_series(2, 720) AS n WHERE start = (SELECT max(start) FROM jobs_energyhour)"
        )
    analyze_tables()
    began = time.perf_counter()
    found = energy_rows([cluster], now - timedelta(days=30), now)
    took_s = time.perf_counter() - began
    print(
        f"energy of 30 days      {took_s * 1e3:8.1f} ms for {len(found)} rows of {EnergyHour.objects.count():,} stored"
    )


if __name__ == "__main__":
    main()
