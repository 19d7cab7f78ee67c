"""What runs in the pods of a cluster: simulated programs, or processes of this machine. Both have the same parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from scheduling.simulation.machines.dcgm_exporter import gpu_uuid
from scheduling.simulation.machines.scripts.play import SimulatedExecutor, SimulatedRun
from scheduling.simulation.machines.values import EffectRecorder, JobExecutor, SimulatedJob

from .cluster import KubernetesCluster
from .exec_sessions import ContainerCommands, SimulatedCommands
from .kubelets.executions import ProgramDescription
from .kubelets.gangs import Gang, execution_job, gang_of, gang_of_one
from .objects import JsonObject
from .options import ServerOptions
from .pod_logs import LoggedPod, PodLogWriter
from .processes import PodProcesses, PodPrograms, ProcessCommands, ProcessLogs
from .values import PodRuntime

PodsOf = Callable[[int], Sequence[LoggedPod]]


class PodLogs(Protocol):
    def write(self, now: float) -> None:
        """Write what is due or new."""
        ...

    def remove(self, runtime: PodRuntime) -> None:
        """Delete the logs of a pod that was deleted."""
        ...


@dataclass(frozen=True, kw_only=True)
class Programs:
    executor: JobExecutor
    describe: ProgramDescription
    gang_of: Callable[[JsonObject], Gang]
    commands: Callable[[KubernetesCluster, Callable[[], float]], ContainerCommands]
    logs: PodLogs
    run_of_job: Callable[[SimulatedJob], SimulatedRun]  # for telemetry


def simulated_programs(options: ServerOptions, seed: int, effects: EffectRecorder, pods_of: PodsOf) -> Programs:
    logs = PodLogWriter(options.log_root / "pods", pods_of)
    executor = _simulator(options, seed, effects, logs)
    return Programs(
        executor=executor,
        describe=execution_job,
        gang_of=gang_of,
        commands=lambda cluster, clock: SimulatedCommands(cluster, partial(gpu_uuid, seed), clock),
        logs=logs,
        run_of_job=executor.run_of_job,
    )


def process_programs(options: ServerOptions, seed: int, effects: EffectRecorder, pods_of: PodsOf) -> Programs:
    """Processes. The telemetry of their GPUs is still that of simulated programs of their kind."""
    (options.state / "raw").mkdir(exist_ok=True)
    logs = ProcessLogs(options.state, options.log_root / "pods", pods_of)
    return Programs(
        executor=PodProcesses(options.state, logs, effects),
        describe=PodPrograms(options.state).describe,
        gang_of=gang_of_one,
        commands=lambda cluster, clock: ProcessCommands(cluster, options.state),
        logs=logs,
        run_of_job=SimulatedExecutor(seed=seed, speed=options.speed).run_of_job,
    )


def _simulator(options: ServerOptions, seed: int, effects: EffectRecorder, logs: PodLogWriter) -> SimulatedExecutor:
    return SimulatedExecutor(
        seed=seed, speed=options.speed, trial_speed=options.trial_speed, stage=logs, effects=effects
    )
