"""Precision and recall of the node health checks:  python bench/node_health.py [--hours H]

The simulated cluster fails far more often than a real one. Its telemetry page is scraped every 15 s, stored and judged
as on live clusters, without a database. A finding on a node without a countable fault, or after its end, is false. The
telemetry is simulated, so this shows that each kind of fault is detected and noise is not; real counters are noisier.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter, deque
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "acmeweb.settings")

import django

django.setup()

from failures.actions import node_telemetry  # noqa: E402
from failures.detection import node_health as detect  # noqa: E402
from failures.detection.findings import Severity  # noqa: E402
from jobs.models import Node  # noqa: E402
from scheduling.backends import telemetry  # noqa: E402
from scheduling.loops import telemetry as sample  # noqa: E402
from scheduling.simulation.machines import dcgm_exporter  # noqa: E402
from scheduling.simulation.machines.faults import FaultKind, FaultModel  # noqa: E402
from scheduling.simulation.machines.scripts.play import SimulatedExecutor  # noqa: E402
from scheduling.simulation.machines.values import build_nodes  # noqa: E402
from scheduling.simulation.slurm.controller import ClusterController  # noqa: E402
from scheduling.simulation.slurm.values import SimulatorSnapshot  # noqa: E402

START_TIME_S, SCRAPE_INTERVAL_S = 1_800_000_000.0, 15.0
VISIBLE_BREAKAGES = {
    FaultKind.OFF_BUS,
    FaultKind.ECC,
    FaultKind.NVLINK,
    FaultKind.FABRIC,
    FaultKind.SLOW,
    FaultKind.DEATH,
}
GPU_BREAKAGES = {
    FaultKind.ECC,
    FaultKind.NVLINK,
    FaultKind.FABRIC,
    FaultKind.SLOW,
}  # visible in telemetry; the other kinds only by missing data
FINDING_LIFETIME_S = node_telemetry.SAMPLE_WINDOW.total_seconds() + 60


def make_faulty_cluster(count, per_node_day, seed):
    names = [f"seren-{number:03}" for number in range(count)]
    executor = SimulatedExecutor(seed=seed)
    faults = FaultModel(per_node_day=per_node_day, seed=seed)
    return ClusterController(
        SimulatorSnapshot(nodes=tuple(build_nodes(names, gpus=8, gpu_model="a100", now=START_TIME_S))),
        executor,
        START_TIME_S,
        faults=faults,
    ), executor


def record_samples(world, executor, now, rows, nodes):
    page = dcgm_exporter.exporter_page(
        dcgm_exporter.simulated_samples(world, executor.play, seed=1, now=now), dcgm_exporter.nic_ports(world, now=now)
    )
    seen, at = telemetry.parse(page), datetime.fromtimestamp(now, UTC)
    by_node = {}
    for gpu in seen.gpus:
        by_node.setdefault(gpu.node, []).append(gpu)
    for name, gpus in by_node.items():
        rows[name].append(sample.node_sample(nodes[name], gpus, seen.nics_down.get(name, ()), at))


def measure_node_health(count, hours, per_node_day, seed):
    world, executor = make_faulty_cluster(count, per_node_day, seed)
    nodes = {name: Node(name=name) for name in world.nodes}
    rows = {name: deque(maxlen=int(node_telemetry.SAMPLE_WINDOW.total_seconds() / SCRAPE_INTERVAL_S)) for name in nodes}
    lasting, said, false, found = set(), 0, [], Counter()
    for look in range(int(hours * 3600 / SCRAPE_INTERVAL_S)):
        now = START_TIME_S + look * SCRAPE_INTERVAL_S
        world.advance_to(now)
        record_samples(world, executor, now, rows, nodes)
        for name, seen in rows.items():
            if not seen:
                continue
            findings = [
                one
                for one in detect.node_health_findings(node_telemetry.build_reading(name, list(seen)), now)
                if one.severity is not Severity.NOTE
            ]
            findings = [one for one in findings if "telemetry" not in one.why]
            if findings and name not in lasting:
                said += 1
                near = [
                    one for one in world.faults if one.node == name and one.at <= now and one.kind in VISIBLE_BREAKAGES
                ]
                near = [one for one in near if now - max(one.at, min(one.until, now)) <= FINDING_LIFETIME_S]
                false += [] if near else [findings[0].why]
            (lasting.add if findings else lasting.discard)(name)
            for one in world.faults:
                if (
                    findings
                    and one.node == name
                    and one.kind in GPU_BREAKAGES
                    and 0 <= now - one.at <= FINDING_LIFETIME_S
                ):
                    found[one.number] = 1
    due = [one for one in world.faults if one.kind in GPU_BREAKAGES and one.at < now - FINDING_LIFETIME_S]
    missed = Counter(str(one.kind) for one in due if one.number not in found)
    return {"said": said, "false": false, "due": len(due), "missed": missed, "node_days": count * hours / 24}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=6.0)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--per-node-day", type=float, default=12.0)
    options = parser.parse_args()
    result = measure_node_health(options.nodes, options.hours, options.per_node_day, options.seed)
    right = result["said"] - len(result["false"])
    print(f"{options.nodes} nodes, {options.hours:g} h, seed {options.seed}: {result['said']} alarms, {right} right,")
    seen, missed = result["due"] - sum(result["missed"].values()), dict(result["missed"]) or "none"
    print(f"{seen} of {result['due']} faults detected; missed: {missed}")
    print("\n".join(result["false"]))


if __name__ == "__main__":
    main()
