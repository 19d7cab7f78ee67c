"""Small controllers with defaults: cluster "seren" of four nodes with eight GPUs each."""

from __future__ import annotations

from scheduling.simulation.machines.faults import FaultModel
from scheduling.simulation.machines.scripts.play import SimulatedExecutor
from scheduling.simulation.machines.values import SimulatedJob, build_nodes
from scheduling.simulation.slurm.controller import ClusterController
from scheduling.simulation.slurm.values import SimulatorSnapshot
from tests.scheduling.simulation.machines.make import NODES, NOW


def snapshot(gpus: int = 8) -> SimulatorSnapshot:
    return SimulatorSnapshot(nodes=tuple(build_nodes(NODES, gpus=gpus, gpu_model="a100", now=NOW)))


def controller(*, faults: FaultModel | None = None, seed: int = 0) -> ClusterController:
    return ClusterController(snapshot(), SimulatedExecutor(seed=seed), NOW, faults=faults)


def after(cluster: ClusterController, seconds: float, job: SimulatedJob) -> SimulatedJob:
    """The job some seconds after NOW."""
    cluster.advance_to(NOW + seconds)
    return cluster.jobs[job.id]
