"""Programs that run in pods: when they begin, what ends them, and what their pods see of it. Pure.

An execution belongs to one pod or to all pods of a gang. If a pod of a gang is lost, the rest of the gang fails some
seconds later with a network error, as the ranks of a real training do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from jobs.core.lifecycle import State
from scheduling.simulation.kubernetes.objects import JsonObject
from scheduling.simulation.kubernetes.values import ContainerEnd, Execution, PodRuntime
from scheduling.simulation.machines.clocks import with_current_speed
from scheduling.simulation.machines.fault_registry import FaultRegistry
from scheduling.simulation.machines.faults import ClusterFault, FaultImpact, FaultKind, FaultModel
from scheduling.simulation.machines.scripts.play import TERM_GRACE_S
from scheduling.simulation.machines.values import (
    KILL,
    TERM,
    JobEnd,
    JobExecutor,
    ProcessExit,
    SignalTarget,
    SimulatedJob,
    SimulatedNode,
)

from .gangs import attempt_key

PEER_LOSS_S = 3.0  # until the other ranks notice that one is gone
LOST_CODE = 137
ProgramDescription = Callable[[int, Sequence[tuple[JsonObject, PodRuntime]], Mapping[str, str], float], SimulatedJob]


@dataclass(frozen=True, kw_only=True)
class PodEnd:
    """A container that ended, for the kubelet of its pod."""

    uid: str
    end: ContainerEnd


class Executions:
    """Executions that have not ended."""

    def __init__(
        self,
        executions: Iterable[Execution],
        executor: JobExecutor,
        registry: FaultRegistry,
        model: FaultModel,
        plan_of: Callable[[str], Mapping[str, str]],
        describe: ProgramDescription,
    ) -> None:
        self._executor, self._registry, self._model, self._plan_of = executor, registry, model, plan_of
        self._describe = describe
        self._active = {one.id: one for one in executions}
        self._changed: dict[int, None] = {}
        self.lost_machines: list[str] = []  # machines that went down with a program

    def adopt_all(self, now: float) -> None:
        """Continue after a restart. Those that were being stopped get their signal again."""
        for one in self._active.values():
            self._executor.adopt(one.job, now)
            if len(one.stopping) == len(one.pods):
                self._executor.signal(one.job, TERM, now, SignalTarget.SHELL)

    def get(self, number: int) -> Execution | None:
        return self._active.get(number)

    @property
    def active(self) -> Iterable[Execution]:
        return self._active.values()

    def take_changes(self) -> dict[int, Execution | None]:
        changed, self._changed = self._changed, {}
        return {number: self._active.get(number) for number in changed}

    def begin(self, number: int, pods: Sequence[tuple[JsonObject, PodRuntime]], now: float) -> Execution:
        """Start the program of these pods, in order of rank."""
        plan = self._plan_of(attempt_key(pods[0][0]).rpartition(".")[0].rpartition(":")[2])
        job = self._describe(number, pods, plan, now)
        job = replace(job, state=State.RUNNING, blows=self._registry.impacts_at_start(job, now))
        execution = self._set(Execution(job=job, pods=tuple(runtime.uid for _, runtime in pods)))
        self._executor.start(job, now)
        return execution

    def stop_pod(self, number: int, uid: str, signal: int, now: float) -> bool:
        """Stop the program in one pod. Returns whether its end will be reported; otherwise it is gone now."""
        execution = self._active.get(number)
        if execution is None or uid not in execution.pods:
            return False
        stopping = tuple(one for one in execution.pods if one == uid or one in execution.stopping)
        execution = self._set(replace(execution, stopping=stopping))
        if len(stopping) < len(execution.pods):
            self._lose_pod(execution, uid, now)
            return False
        # TERM reaches the main process of a container only; KILL ends all of them
        target = SignalTarget.SHELL if signal == TERM else SignalTarget.ALL
        self._executor.signal(execution.job, signal, now, target)
        return signal == TERM

    def signal_pod(self, number: int, uid: str, signal: int, target: SignalTarget, now: float) -> None:
        """Send a signal to the processes of one pod, as somebody does in its container."""
        execution = self._active.get(number)
        if execution is None or uid not in execution.pods:
            return
        node = execution.job.nodes[execution.pods.index(uid)]
        self._executor.signal(replace(execution.job, nodes=(node,)), signal, now, target)

    def lose_machine(self, name: str, now: float) -> list[str]:
        """Stop everything on a machine at once; returns the pods that are gone with it."""
        lost = []
        for execution in [one for one in self._active.values() if name in one.job.nodes]:
            for uid, node in zip(execution.pods, execution.job.nodes, strict=True):
                if node == name:
                    lost.append(uid)
                    self.stop_pod(execution.id, uid, KILL, now)
        return lost

    def apply_fault(self, fault: ClusterFault, now: float) -> None:
        """Apply a fault to the programs that it hits."""
        for number in fault.jobs:
            if execution := self._active.get(number):
                self._strike(execution, self._model.impact_on_job(fault, number, now), now)

    def update_speed(self, execution: Execution, nodes: Mapping[str, SimulatedNode], now: float) -> None:
        """Go on with the speed that the clocks of its nodes allow."""
        job = with_current_speed(execution.job, nodes, now)
        if job is not execution.job:
            self._set(replace(execution, job=job))
            self._executor.apply_fault(job, now)

    def poll_ends(self, now: float) -> list[PodEnd]:
        """The containers that ended up to now."""
        return [end for job_end in self._executor.poll_ends(now) for end in self._pod_ends(job_end)]

    @property
    def next_end_at(self) -> float:
        return self._executor.next_end_at()

    def _pod_ends(self, job_end: JobEnd) -> list[PodEnd]:
        execution = self._active.pop(job_end.job_id, None)
        if execution is None:
            return []
        self._changed[execution.id] = None
        if job_end.broke:
            self._registry.note(job_end.broke, execution.id)
        if job_end.lost_node:
            self.lost_machines.append(job_end.lost_node)
            job_end = replace(job_end, state=State.FAILED, exit=ProcessExit(code=1))
        end = _container_end(execution, job_end)
        return [PodEnd(uid=uid, end=end) for uid in _reporting_pods(execution, job_end.lost_node)]

    def _lose_pod(self, execution: Execution, uid: str, now: float) -> None:
        node = execution.job.nodes[execution.pods.index(uid)]
        at = now + PEER_LOSS_S
        self._strike(execution, FaultImpact(kind=FaultKind.FABRIC, at=at, until=at, node=node), now)

    def _strike(self, execution: Execution, impact: FaultImpact, now: float) -> None:
        job = replace(execution.job, blows=(*execution.job.blows, impact))
        self._set(replace(execution, job=job))
        self._executor.apply_fault(job, now)

    def _set(self, execution: Execution) -> Execution:
        self._active[execution.id] = execution
        self._changed[execution.id] = None
        return execution


def _reporting_pods(execution: Execution, lost_node: str) -> list[str]:
    """The pods that see the end: not those that were stopped before it, and not those of a machine that is lost."""
    alone = len(execution.stopping) == len(execution.pods)
    places = zip(execution.pods, execution.job.nodes, strict=True)
    return [uid for uid, node in places if node != lost_node and (alone or uid not in execution.stopping)]


def _container_end(execution: Execution, job_end: JobEnd) -> ContainerEnd:
    code, reason = exit_of(job_end.state, job_end.exit)
    return ContainerEnd(
        code=code, reason=reason, started_at=execution.job.began_at, finished_at=max(job_end.at, execution.job.began_at)
    )


def exit_of(state: State, status: ProcessExit) -> tuple[int, str]:
    """The exit code and reason of a container, as its runtime reports them."""
    if state == State.OUT_OF_MEMORY:
        return 137, "OOMKilled"
    if state == State.NODE_FAIL:
        return LOST_CODE, "ContainerStatusUnknown"
    code = 128 + status.signal if status.signal else status.code
    return code, "Error" if code else "Completed"


def killed_end(runtime: PodRuntime, now: float, signal: int = TERM) -> ContainerEnd:
    """The end of a container that was told to stop."""
    at = now + (TERM_GRACE_S if signal == TERM else 0.0)
    return ContainerEnd(code=128 + signal, reason="Error", started_at=runtime.started_at, finished_at=at)
