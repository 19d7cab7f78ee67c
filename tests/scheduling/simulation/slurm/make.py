"""Small controllers with defaults: cluster "seren" of four nodes with eight GPUs each."""

from __future__ import annotations

from typing import Any

from scheduling.simulation.slurm.controller import ClusterController
from scheduling.simulation.slurm.faults import FaultModel
from scheduling.simulation.slurm.scripts.play import SimulatedExecutor
from scheduling.simulation.slurm.values import SimulatorSnapshot, SlurmJob, SlurmJobRequest, build_nodes

NOW = 1_800_000_000.0
NODES = tuple(f"seren-00{i}" for i in range(1, 5))


def snapshot(gpus: int = 8) -> SimulatorSnapshot:
    return SimulatorSnapshot(nodes=tuple(build_nodes(NODES, gpus=gpus, gpu_model="a100", now=NOW)))


def controller(*, faults: FaultModel | None = None, seed: int = 0) -> ClusterController:
    return ClusterController(snapshot(), SimulatedExecutor(seed=seed), NOW, faults=faults)


def request(*nodes: str, seconds: float = 100.0, end: str = "COMPLETED", **changed: Any) -> SlurmJobRequest:
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
    return SlurmJobRequest(**{**plain, **changed})


def after(cluster: ClusterController, seconds: float, job: SlurmJob) -> SlurmJob:
    """The job some seconds after NOW."""
    cluster.advance_to(NOW + seconds)
    return cluster.jobs[job.id]
