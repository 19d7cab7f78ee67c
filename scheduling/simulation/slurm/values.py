"""The values of a controller besides its jobs and nodes: timing, state, changes and errors. Frozen."""

from __future__ import annotations

from dataclasses import dataclass

from scheduling.simulation.machines.faults import ClusterFault
from scheduling.simulation.machines.values import SimulatedJob, SimulatedNode

# Slurm's error numbers
BAD_CONFIGURATION, UNKNOWN_JOB, UNKNOWN_NODE, JOB_ALREADY_ENDED, BAD_NODE_STATE = 2014, 2017, 2018, 2021, 2028
BAD_FAULT = 2030  # not Slurm's: Slurm cannot inject faults


class SlurmError(Exception):
    """A request that the controller rejects, with Slurm's error number."""

    def __init__(self, number: int, words: str) -> None:
        super().__init__(words)
        self.number, self.words = number, words


@dataclass(frozen=True, kw_only=True)
class ControllerTiming:
    """Durations of the controller's own work."""

    configure_s: float = 1.0
    complete_s: float = 0.5  # the epilog: GPUs are held somewhat longer than the job runs
    kill_wait_s: float = 5.0
    min_job_age_s: float = 300.0  # how long an ended job is remembered; default as in Slurm's MinJobAge
    suspend_s: float = 10.0  # from POWERING_DOWN to POWERED_DOWN: Slurm's SuspendTimeout
    boot_s: float = 60.0
    resume_timeout_s: float = 300.0  # a node that has not booted by then is DOWN: Slurm's ResumeTimeout


@dataclass(frozen=True, kw_only=True)
class ControllerState:
    """State besides jobs, nodes and faults that must survive a restart, so that no id and no fault is drawn twice."""

    next_id: int = 1
    faults: int = 0
    next_fault_at: float = 0.0
    offset_s: float = 0.0  # by how much the reported wall clock is ahead of the true time


@dataclass(frozen=True, kw_only=True)
class SimulatorSnapshot:
    """The whole state of a cluster, as stored and restored."""

    nodes: tuple[SimulatedNode, ...]
    jobs: tuple[SimulatedJob, ...] = ()
    faults: tuple[ClusterFault, ...] = ()
    clock: ControllerState = ControllerState()


@dataclass(frozen=True, kw_only=True)
class StateChanges:
    """Changes since the last call, as complete values, so that writing them twice is harmless."""

    jobs: tuple[SimulatedJob, ...] = ()
    nodes: tuple[SimulatedNode, ...] = ()
    forgotten: tuple[SimulatedJob, ...] = ()  # in their last state
    faults: tuple[ClusterFault, ...] = ()
    clock: ControllerState | None = None

    def __bool__(self) -> bool:
        return bool(self.jobs or self.nodes or self.forgotten or self.faults or self.clock)
