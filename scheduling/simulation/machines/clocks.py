"""Clocks of the GPUs of simulated nodes, and what they do to the jobs there. Pure.

A job runs at the speed of its slowest node, because its ranks wait for each other. A node that boots has its highest
clock again. Power and speed follow `scheduling.power.rules.clock_curves`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from scheduling.power.rules.clock_curves import model_speed

from .values import SimulatedJob, SimulatedNode, SpeedChange

MIN_CLOCK_MHZ, MAX_CLOCK_MHZ = 100, 10_000  # that a request may name


def lowered_clocks(nodes: Iterable[SimulatedNode]) -> dict[str, int]:
    """The clocks of the nodes that do not have their highest."""
    return {node.name: node.clock_mhz for node in nodes if node.clock_mhz is not None}


def with_current_speed(job: SimulatedJob, nodes: Mapping[str, SimulatedNode], now: float) -> SimulatedJob:
    """The job with a new speed, if its nodes have other clocks than before; otherwise the same object."""
    speed = min((_speed_on(job, nodes[name]) for name in job.nodes), default=1.0)
    known = job.speeds[-1].speed if job.speeds else 1.0
    return job if speed == known else replace(job, speeds=(*job.speeds, SpeedChange(at=now, speed=speed)))


def _speed_on(job: SimulatedJob, node: SimulatedNode) -> float:
    return model_speed(node.clock_mhz, node.gpu_model) if job.gpus.get(node.name) else 1.0
