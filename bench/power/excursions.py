"""How long live power stays above a budget:  python bench/power/excursions.py [--trials N]

Runs a simulated cluster of eight nodes with jobs on all of them, in real time. In each trial the power rises to 110 %
of a budget at a random moment, which is done by lowering the limit of the budget, and the time until the measured power
of the machines is below the limit is taken: from the moment, by reading the exporter ten times a second, so with a
resolution of a tenth of a second. Both ways run the same loops:

    every 15 s      the samples of the telemetry are the only readings, and the loop of caps runs every 5 s
    every second    the loop of caps runs every second and reads the power from the exporter

Clocks are set over HTTP at once; a site's command takes its own time, which adds to both. So does the interval in which
an exporter measures; the simulated one shows its machines as they are.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.loops import start_database
from bench.scheduling.doors import machine

NODES, STEP, NO_LIMIT_W = 8, 1.1, 10**9
POLL_S, LONGEST_S = 0.1, 90.0
LONG = {"environment": {"SIM_DURATION_S": "86400", "SIM_END": "COMPLETED"}, "nodes": 1, "gpus_per_node": 8}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(machine())
    with ExitStack() as stack:
        start_database(stack)
        room = Room.open(stack)
        for name, loops in (("every 15 s", room.sampled()), ("every second", room.read_each_second())):
            dice = random.Random(options.seed)
            lengths = [room.excursion(loops, dice) for _ in range(options.trials)]
            print(
                f"{name:14}longest excursion {max(lengths):5.1f} s, median {statistics.median(lengths):5.1f} s, "
                f"{len(lengths)} trials"
            )


@dataclass
class Loops:
    """Functions with their intervals in seconds, run in this process when they are due."""

    each: list[tuple[float, Callable[[], object]]]
    _due: dict[int, float] = field(default_factory=dict)

    def run_due(self) -> None:
        for number, (interval_s, run) in enumerate(self.each):
            if time.monotonic() >= self._due.get(number, 0.0):
                self._due[number] = time.monotonic() + interval_s
                run()


class Room:
    """A simulated cluster whose nodes all have jobs, and its budget."""

    def __init__(self, cluster: Any, metrics: str) -> None:
        self.cluster, self.metrics = cluster, metrics

    @classmethod
    def open(cls, stack: ExitStack) -> Room:
        from jobs.models import Cluster
        from scheduling.models import PowerBudget
        from tests import make
        from tests.scheduling.simulation.slurm.running import ClusterProcess

        home = stack.enter_context(tempfile.TemporaryDirectory(prefix="acme-bench-"))
        process = stack.enter_context(ClusterProcess(Path(home), "--nodes", str(NODES)))
        metrics = f"{process.address}/metrics"
        cluster = make.cluster(nodes=0, policy="fifo", address=process.address, log_root=str(process.log_root))
        fields = {"token_file": str(process.state / "token"), "is_bundled": True, "api_user": "root"}
        Cluster.objects.filter(pk=cluster.pk).update(metrics_address=metrics, **fields)
        room = cls(Cluster.objects.get(pk=cluster.pk), metrics)
        room.start_jobs()
        PowerBudget.objects.create(cluster=cluster, scope="cluster", limit_w=NO_LIMIT_W, mode="act")
        return room

    def start_jobs(self) -> None:
        from jobs.models import Attempt, Node
        from scheduling.clusters.connections import connect
        from scheduling.loops.turn import run_turn
        from tests import make

        def turn_until(done: Callable[[], bool]) -> None:
            began = time.monotonic()
            while not done():
                run_turn(self.cluster.pk, "bench", connect)
                assert time.monotonic() - began < 120, "The jobs do not run."

        turn_until(lambda: Node.objects.count() == NODES)
        make.jobs(*[{"kind": "pretrain", **LONG} for _ in range(NODES)], cluster=self.cluster)
        turn_until(lambda: Attempt.objects.live().filter(confirmed_at__isnull=False).count() == NODES)
        turn_until(lambda: self.watts() > NODES * 3000)
        self.cluster.refresh_from_db()  # its product

    def watts(self) -> float:
        """What the machines draw now, as the loop adds it up."""
        from scheduling.backends.power_page import read_power
        from scheduling.power.rules.measured_power import NodeReading, measured_power

        rows = [
            NodeReading(gpus=8, at_s=0.0, gpu_power_w=[*one.gpu_w.values()], node_power_w=one.node_w)
            for one in read_power(self.metrics).values()
        ]
        power = measured_power(rows)
        return power.watts if power else 0.0

    def sampled(self) -> Loops:
        from jobs.models import clock
        from scheduling.backends.telemetry import read_exporter
        from scheduling.clusters.node_clocks import set_clocks
        from scheduling.loops.telemetry import read_telemetry_once
        from scheduling.power.loops.caps import cap_power_once

        return Loops(
            [
                (15.0, lambda: read_telemetry_once(self.cluster, read_exporter)),
                (5.0, lambda: cap_power_once(self.cluster, set_clocks, clock.now())),
            ]
        )

    def read_each_second(self) -> Loops:
        from scheduling.backends.power_page import read_power
        from scheduling.clusters.node_clocks import set_clocks
        from scheduling.power.loops.caps import read_and_cap_once

        return Loops([(1.0, lambda: read_and_cap_once(self.cluster, set_clocks, read_power))])

    def excursion(self, loops: Loops, dice: random.Random) -> float:
        """Seconds from the moment in which the limit becomes too small until the power is below it."""
        self.release(loops)
        self.run_for(loops, dice.uniform(0.0, 15.0))
        limit_w = round(self.watts() / STEP)
        self.set_limit(limit_w)
        began = time.monotonic()
        while self.watts() > limit_w:
            loops.run_due()
            time.sleep(POLL_S)
            assert time.monotonic() - began < LONGEST_S, "The caps do not work."
        return time.monotonic() - began

    def release(self, loops: Loops) -> None:
        from jobs.models import NodeClock
        from scheduling.models import PowerBudget

        self.set_limit(NO_LIMIT_W)
        PowerBudget.objects.update(level=0)
        while NodeClock.objects.open().exists():
            loops.run_due()
            time.sleep(POLL_S)

    def run_for(self, loops: Loops, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            loops.run_due()
            time.sleep(POLL_S)

    def set_limit(self, watts: int) -> None:
        from scheduling.models import PowerBudget

        PowerBudget.objects.update(limit_w=watts)


if __name__ == "__main__":
    main()
