"""The faults of a cluster: past and active ones, and the jobs that they hit. Pure except for its own list."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from .failure_reasons import TRAINING_KINDS
from .faults import GPU_FAULTS, PERSISTENT_FAULTS, ClusterFault, FaultImpact, FaultKind, FaultModel
from .values import SimulatedJob, SimulatedNode

MAX_FAULTS = 5_000  # only the newest faults are kept


class FaultRegistry:
    def __init__(self, faults: Iterable[ClusterFault], model: FaultModel) -> None:
        self._known_faults = {fault.number: fault for fault in faults}
        self._model = model
        self._changed: dict[int, None] = {}
        self._lasting = {
            number: None for number, fault in self._known_faults.items() if fault.kind in PERSISTENT_FAULTS
        }

    @property
    def faults(self) -> tuple[ClusterFault, ...]:
        return tuple(self._known_faults.values())

    def take_changes(self) -> tuple[ClusterFault, ...]:
        changed, self._changed = self._changed, {}
        return tuple(self._known_faults[number] for number in changed if number in self._known_faults)

    def begin(
        self, kind: FaultKind, running: Iterable[SimulatedJob], now: float, *, node: SimulatedNode | None, gpu: int
    ) -> ClusterFault:
        """Start a fault and determine which of the running jobs it hits."""
        fault = self._new_fault(kind, now, node, gpu)
        hit = tuple(job.id for job in running if self._affects_job(fault, job))
        return self._store_fault(replace(fault, jobs=hit[:1] if kind in (FaultKind.HANG, FaultKind.LOSS) else hit))

    def begin_in_job(
        self, kind: FaultKind, job: SimulatedJob, now: float, *, node: SimulatedNode | None
    ) -> ClusterFault:
        """Start a fault that hits this job only, whatever else runs on its nodes."""
        return self._store_fault(replace(self._new_fault(kind, now, node, -1), jobs=(job.id,)))

    def _new_fault(self, kind: FaultKind, now: float, node: SimulatedNode | None, gpu: int) -> ClusterFault:
        number = self._next_number()
        if kind in GPU_FAULTS and gpu < 0 and node:
            gpu = self._model.gpu(number, node.gpus)
        until = now + self._model.fault_duration_s(number, kind)
        name = "" if kind == FaultKind.STORAGE or node is None else node.name
        gpu = gpu if kind in GPU_FAULTS else -1
        return ClusterFault(number=number, kind=kind, at=now, until=until, node=name, gpu=gpu)

    def note(self, blow: FaultImpact, job_id: int) -> None:
        """Record a machine fault that one job's own failure implies; it hits no other job."""
        if not any(job_id in fault.jobs and fault.kind == blow.kind for fault in self._known_faults.values()):
            self._store_fault(
                ClusterFault(
                    number=self._next_number(),
                    kind=blow.kind,
                    at=blow.at,
                    until=blow.at,
                    node=blow.node,
                    gpu=blow.gpu,
                    jobs=(job_id,),
                )
            )

    def impacts_at_start(self, job: SimulatedJob, now: float) -> tuple[FaultImpact, ...]:
        """The impacts of active faults on a job that starts now."""
        impacts = []
        for fault in self._active_faults(now):
            if self._affects_job(fault, job):
                self._store_fault(replace(fault, jobs=(*fault.jobs, job.id)))
                impacts.append(self._model.impact_on_job(fault, job.id, now))
        return tuple(impacts)

    def keeps_asleep(self, node: str, now: float) -> bool:
        """Whether a fault keeps the node from booting."""
        return any(fault.kind == FaultKind.NO_WAKE and fault.node == node for fault in self._active_faults(now))

    def heal_node(self, node: str, now: float) -> None:
        """End the node's faults, because an operator repaired it."""
        for fault in self._active_faults(now):
            if fault.node == node:
                self._store_fault(replace(fault, until=now))

    def _active_faults(self, now: float) -> list[ClusterFault]:
        """Faults that are active now. Only lasting kinds are searched, because every job start asks for them."""
        known = [self._known_faults[number] for number in self._lasting if number in self._known_faults]
        lasting = [fault for fault in known if fault.until > now]
        self._lasting = dict.fromkeys(fault.number for fault in lasting)
        return lasting

    def _affects_job(self, fault: ClusterFault, job: SimulatedJob) -> bool:
        if fault.kind == FaultKind.STORAGE:
            return self._model.storage_fault_hits_job(fault.number, job.id)
        if fault.node not in job.nodes:
            return False
        gpus = sum(map(len, job.gpus.values()))
        match fault.kind:
            case FaultKind.FABRIC:
                return len(job.nodes) > 1
            case FaultKind.HANG:
                return gpus > 1
            case FaultKind.LOSS:
                return job.request.environment.get("ACME_KIND") in {str(kind) for kind in TRAINING_KINDS}
            case FaultKind.NVLINK:
                return gpus > 1 and fault.gpu in job.gpus.get(fault.node, ())
            case FaultKind.DEATH | FaultKind.NO_WAKE:
                return False  # the controller ends the node's jobs itself
        return fault.gpu in job.gpus.get(fault.node, ())

    def _next_number(self) -> int:
        return max(self._known_faults, default=0) + 1

    def _store_fault(self, fault: ClusterFault) -> ClusterFault:
        self._known_faults[fault.number] = fault
        self._changed[fault.number] = None
        if fault.kind in PERSISTENT_FAULTS:
            self._lasting[fault.number] = None
        if len(self._known_faults) > MAX_FAULTS:
            del self._known_faults[min(self._known_faults)]
        return fault
