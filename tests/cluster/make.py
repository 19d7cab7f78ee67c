"""Small worlds with defaults: cluster "seren" of four nodes with eight GPUs."""

from __future__ import annotations

from typing import Any

from scheduling.simulator.play import PlayHands
from scheduling.simulator.troubles import Faults
from scheduling.simulator.values import Job, Picture, Request, plan_nodes
from scheduling.simulator.world import World

NOW = 1_800_000_000.0
NODES = tuple(f"seren-00{i}" for i in range(1, 5))


def picture(gpus: int = 8) -> Picture:
    return Picture(nodes=tuple(plan_nodes(NODES, gpus=gpus, gpu_model="a100", now=NOW)))


def world(*, faults: Faults | None = None, seed: int = 0) -> World:
    return World(picture(), PlayHands(seed=seed), NOW, faults=faults)


def request(*nodes: str, seconds: float = 100.0, end: str = "COMPLETED", **changed: Any) -> Request:
    plain: dict[str, Any] = {
        "name": "train",
        "user": "ada",
        "script": "#!/bin/bash\ntrue\n",
        "workdir": "/tmp",
        "environment": {"SIM_DURATION_S": str(seconds), "SIM_END": end, "ACME_KIND": "pretrain"},
        "required_nodes": nodes,
        "node_count": max(len(nodes), 1),
        "gpus_per_node": 4,
        "cpus_per_node": 8,
    }
    return Request(**{**plain, **changed})


def after(cluster: World, seconds: float, job: Job) -> Job:
    """The job as it stands some seconds after NOW."""
    cluster.advance(NOW + seconds)
    return cluster.jobs[job.id]
