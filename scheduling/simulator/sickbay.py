"""The troubles of a cluster: which there were, which last, and which jobs they hit. Pure but for its own list."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from .reasons import TRAINING
from .troubles import LASTING, OF_A_GPU, Blow, Breakage, Faults, Trouble
from .values import Job, Node

MOST_KEPT = 5_000  # of years of troubles, the newest


class Sickbay:
    def __init__(self, troubles: Iterable[Trouble], faults: Faults) -> None:
        self._troubles = {trouble.number: trouble for trouble in troubles}
        self._faults = faults
        self._changed: dict[int, None] = {}
        self._lasting = {number: None for number, trouble in self._troubles.items() if trouble.kind in LASTING}

    @property
    def troubles(self) -> tuple[Trouble, ...]:
        return tuple(self._troubles.values())

    def take_changes(self) -> tuple[Trouble, ...]:
        changed, self._changed = self._changed, {}
        return tuple(self._troubles[number] for number in changed if number in self._troubles)

    def begin(self, kind: Breakage, running: Iterable[Job], now: float, *, node: Node | None, gpu: int) -> Trouble:
        """Something breaks; it says itself which of the running jobs it hits."""
        number = self._next()
        if kind in OF_A_GPU and gpu < 0 and node:
            gpu = self._faults.gpu(number, node.gpus)
        until = now + self._faults.lasts_s(number, kind)
        name = "" if kind == Breakage.STORAGE or node is None else node.name
        gpu = gpu if kind in OF_A_GPU else -1
        trouble = Trouble(number=number, kind=kind, at=now, until=until, node=name, gpu=gpu)
        hit = tuple(job.id for job in running if self._hits(trouble, job))
        return self._keep(replace(trouble, jobs=hit[:1] if kind in (Breakage.HANG, Breakage.LOSS) else hit))

    def note(self, blow: Blow, job_id: int) -> None:
        """What a job brought along: it broke under this one, and hits nobody else."""
        if not any(job_id in trouble.jobs and trouble.kind == blow.kind for trouble in self._troubles.values()):
            self._keep(
                Trouble(
                    number=self._next(),
                    kind=blow.kind,
                    at=blow.at,
                    until=blow.at,
                    node=blow.node,
                    gpu=blow.gpu,
                    jobs=(job_id,),
                )
            )

    def waiting_for(self, job: Job, now: float) -> tuple[Blow, ...]:
        """The blows of a job that begins where something is broken already."""
        found = []
        for trouble in self._still_there(now):
            if self._hits(trouble, job):
                self._keep(replace(trouble, jobs=(*trouble.jobs, job.id)))
                found.append(self._faults.blow(trouble, job.id, now))
        return tuple(found)

    def heal(self, node: str, now: float) -> None:
        """Somebody repaired the node and says so."""
        for trouble in self._still_there(now):
            if trouble.node == node:
                self._keep(replace(trouble, until=now))

    def _still_there(self, now: float) -> list[Trouble]:
        """Few of many: asked at each start of a job."""
        known = [self._troubles[number] for number in self._lasting if number in self._troubles]
        lasting = [trouble for trouble in known if trouble.until > now]
        self._lasting = dict.fromkeys(trouble.number for trouble in lasting)
        return lasting

    def _hits(self, trouble: Trouble, job: Job) -> bool:
        if trouble.kind == Breakage.STORAGE:
            return self._faults.hits_reader(trouble.number, job.id)
        if trouble.node not in job.nodes:
            return False
        gpus = sum(map(len, job.gpus.values()))
        match trouble.kind:
            case Breakage.FABRIC:
                return len(job.nodes) > 1
            case Breakage.HANG:
                return gpus > 1
            case Breakage.LOSS:
                return job.request.environment.get("ACME_KIND") in {str(kind) for kind in TRAINING}
            case Breakage.NVLINK:
                return gpus > 1 and trouble.gpu in job.gpus.get(trouble.node, ())
            case Breakage.DEATH:
                return False  # the controller ends its jobs itself
        return trouble.gpu in job.gpus.get(trouble.node, ())

    def _next(self) -> int:
        return max(self._troubles, default=0) + 1

    def _keep(self, trouble: Trouble) -> Trouble:
        self._troubles[trouble.number] = trouble
        self._changed[trouble.number] = None
        if trouble.kind in LASTING:
            self._lasting[trouble.number] = None
        if len(self._troubles) > MOST_KEPT:
            del self._troubles[min(self._troubles)]
        return trouble
