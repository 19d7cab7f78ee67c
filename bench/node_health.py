"""What node health finds in a machine room that breaks, and what it makes up:  python bench/node_health.py [--hours H]

The simulated cluster breaks far more often than a real one, and its telemetry page is scraped every 15 s, stored and
judged as on live clusters (`telemetry.parse`, `sample`, `health.reading`, `detect.nodes.health`), without a database.
What is found on a node where nothing broke that can be counted, or nothing any more, is false. What is shown is ours,
so this says that each way to break is read out of the page and that noise is not; real counters are noisier.
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

from failures.detect import nodes as detect  # noqa: E402
from failures.detect.findings import Severity  # noqa: E402
from jobs.models import Node  # noqa: E402
from scheduling.backends import telemetry  # noqa: E402
from scheduling.loops import health, sample  # noqa: E402
from scheduling.simulator import exporter  # noqa: E402
from scheduling.simulator.play import PlayHands  # noqa: E402
from scheduling.simulator.troubles import Breakage, Faults  # noqa: E402
from scheduling.simulator.values import Picture, plan_nodes  # noqa: E402
from scheduling.simulator.world import World  # noqa: E402

BEGAN, LOOK_S = 1_800_000_000.0, 15.0
SHOWS = {Breakage.OFF_BUS, Breakage.ECC, Breakage.NVLINK, Breakage.FABRIC, Breakage.SLOW, Breakage.DEATH}
GPU_TROUBLE = {Breakage.ECC, Breakage.NVLINK, Breakage.FABRIC, Breakage.SLOW}  # told by the page; the others by silence
REMEMBERED_S = health.WINDOW.total_seconds() + 60


def room(count, per_node_day, seed):
    names = [f"seren-{number:03}" for number in range(count)]
    hands = PlayHands(seed=seed)
    faults = Faults(per_node_day=per_node_day, seed=seed)
    return World(
        Picture(nodes=tuple(plan_nodes(names, gpus=8, gpu_model="a100", now=BEGAN))), hands, BEGAN, faults=faults
    ), hands


def looked(world, hands, now, rows, nodes):
    page = exporter.page(exporter.simulated(world, hands.play, seed=1, now=now), exporter.ports(world, now=now))
    seen, at = telemetry.parse(page), datetime.fromtimestamp(now, UTC)
    by_node = {}
    for gpu in seen.gpus:
        by_node.setdefault(gpu.node, []).append(gpu)
    for name, gpus in by_node.items():
        rows[name].append(sample.sample_of(nodes[name], gpus, seen.nics_down.get(name, ()), at))


def measured(count, hours, per_node_day, seed):
    world, hands = room(count, per_node_day, seed)
    nodes = {name: Node(name=name) for name in world.nodes}
    rows = {name: deque(maxlen=int(health.WINDOW.total_seconds() / LOOK_S)) for name in nodes}
    lasting, said, false, found = set(), 0, [], Counter()
    for look in range(int(hours * 3600 / LOOK_S)):
        now = BEGAN + look * LOOK_S
        world.advance(now)
        looked(world, hands, now, rows, nodes)
        for name, seen in rows.items():
            if not seen:
                continue
            told = [
                one for one in detect.health(health.reading(name, list(seen)), now) if one.severity is not Severity.NOTE
            ]
            told = [one for one in told if "telemetry" not in one.why]
            if told and name not in lasting:
                said += 1
                near = [one for one in world.troubles if one.node == name and one.at <= now and one.kind in SHOWS]
                near = [one for one in near if now - max(one.at, min(one.until, now)) <= REMEMBERED_S]
                false += [] if near else [told[0].why]
            (lasting.add if told else lasting.discard)(name)
            for one in world.troubles:
                if told and one.node == name and one.kind in GPU_TROUBLE and 0 <= now - one.at <= REMEMBERED_S:
                    found[one.number] = 1
    due = [one for one in world.troubles if one.kind in GPU_TROUBLE and one.at < now - REMEMBERED_S]
    missed = Counter(str(one.kind) for one in due if one.number not in found)
    return {"said": said, "false": false, "due": len(due), "missed": missed, "node_days": count * hours / 24}


def main():
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--hours", type=float, default=6.0)
    asked.add_argument("--nodes", type=int, default=8)
    asked.add_argument("--seed", type=int, default=1)
    asked.add_argument("--per-node-day", type=float, default=12.0)
    given = asked.parse_args()
    got = measured(given.nodes, given.hours, given.per_node_day, given.seed)
    right = got["said"] - len(got["false"])
    print(f"{given.nodes} nodes, {given.hours:g} h, seed {given.seed}: {got['said']} times not well, {right} rightly,")
    seen, missed = got["due"] - sum(got["missed"].values()), dict(got["missed"]) or "none"
    print(f"{seen} of {got['due']} troubles seen; missed: {missed}")
    print("\n".join(got["false"]))


if __name__ == "__main__":
    main()
