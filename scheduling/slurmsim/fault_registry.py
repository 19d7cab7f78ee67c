"""The faults of a cluster: past and active ones, and the jobs that they hit. Pure except for its own list."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from .failure_reasons import TRAINING_KINDS
from .faults import GPU_FAULTS, PERSISTENT_FAULTS, ClusterFault, FaultImpact, FaultKind, FaultModel
from .values import SlurmJob, SlurmNode

MAX_FAULTS = 5_000  # only the newest faults are kept


class FaultRegistry:
    def __init__(self, troubles: Iterable[ClusterFault], faults: FaultModel) -> None:
        self._troubles = {trouble.number: trouble for trouble in troubles}
        self._faults = faults
        self._changed: dict[int, None] = {}
        self._lasting = {
            number: None for number, trouble in self._troubles.items() if trouble.kind in PERSISTENT_FAULTS
        }

    @property
    def troubles(self) -> tuple[ClusterFault, ...]:
        return tuple(self._troubles.values())

    def take_changes(self) -> tuple[ClusterFault, ...]:
        changed, self._changed = self._changed, {}
        return tuple(self._troubles[number] for number in changed if number in self._troubles)

    def begin(
        self, kind: FaultKind, running: Iterable[SlurmJob], now: float, *, node: SlurmNode | None, gpu: int
    ) -> ClusterFault:
        """Start a fault and determine which of the running jobs it hits."""
        number = self._next_number()
        if kind in GPU_FAULTS and gpu < 0 and node:
            gpu = self._faults.gpu(number, node.gpus)
        until = now + self._faults.fault_duration_s(number, kind)
        name = "" if kind == FaultKind.STORAGE or node is None else node.name
        gpu = gpu if kind in GPU_FAULTS else -1
        trouble = ClusterFault(number=number, kind=kind, at=now, until=until, node=name, gpu=gpu)
        hit = tuple(job.id for job in running if self._affects_job(trouble, job))
        return self._store_fault(replace(trouble, jobs=hit[:1] if kind in (FaultKind.HANG, FaultKind.LOSS) else hit))

    def note(self, blow: FaultImpact, job_id: int) -> None:
        """Record a machine fault that one job's own failure implies; it hits no other job."""
        if not any(job_id in trouble.jobs and trouble.kind == blow.kind for trouble in self._troubles.values()):
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

    def impacts_at_start(self, job: SlurmJob, now: float) -> tuple[FaultImpact, ...]:
        """The impacts of active faults on a job that starts now."""
        impacts = []
        for trouble in self._active_faults(now):
            if self._affects_job(trouble, job):
                self._store_fault(replace(trouble, jobs=(*trouble.jobs, job.id)))
                impacts.append(self._faults.impact_on_job(trouble, job.id, now))
        return tuple(impacts)

    def heal_node(self, node: str, now: float) -> None:
        """End the node's faults, because an operator repaired it."""
        for trouble in self._active_faults(now):
            if trouble.node == node:
                self._store_fault(replace(trouble, until=now))

    def _active_faults(self, now: float) -> list[ClusterFault]:
        """Faults that are active now. Only lasting kinds are searched, because every job start asks for them."""
        known = [self._troubles[number] for number in self._lasting if number in self._troubles]
        lasting = [trouble for trouble in known if trouble.until > now]
        self._lasting = dict.fromkeys(trouble.number for trouble in lasting)
        return lasting

    def _affects_job(self, trouble: ClusterFault, job: SlurmJob) -> bool:
        if trouble.kind == FaultKind.STORAGE:
            return self._faults.storage_fault_hits_job(trouble.number, job.id)
        if trouble.node not in job.nodes:
            return False
        gpus = sum(map(len, job.gpus.values()))
        match trouble.kind:
            case FaultKind.FABRIC:
                return len(job.nodes) > 1
            case FaultKind.HANG:
                return gpus > 1
            case FaultKind.LOSS:
                return job.request.environment.get("ACME_KIND") in {str(kind) for kind in TRAINING_KINDS}
            case FaultKind.NVLINK:
                return gpus > 1 and trouble.gpu in job.gpus.get(trouble.node, ())
            case FaultKind.DEATH:
                return False  # the controller ends the node's jobs itself
        return trouble.gpu in job.gpus.get(trouble.node, ())

    def _next_number(self) -> int:
        return max(self._troubles, default=0) + 1

    def _store_fault(self, trouble: ClusterFault) -> ClusterFault:
        self._troubles[trouble.number] = trouble
        self._changed[trouble.number] = None
        if trouble.kind in PERSISTENT_FAULTS:
            self._lasting[trouble.number] = None
        if len(self._troubles) > MAX_FAULTS:
            del self._troubles[min(self._troubles)]
        return trouble
