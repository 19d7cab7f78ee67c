"""What teams and arrays hold, and whether they may hold more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from jobs.lifecycle import Kind
from jobs.notation import count
from scheduling.engine.cluster import QuotaView, RunningJob, WaitingJob


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """`reason` is Slurm's word, `why` the sentence a page shows."""

    reason: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Owner:
    """Whose account a job goes on; jobs that ask for the same on one account are admitted alike."""

    team: str
    kind: Kind
    preemptible: bool = False
    array: str = ""
    array_limit: int | None = None

    @staticmethod
    def of(job: WaitingJob) -> Owner:
        return Owner(
            team=job.team,
            kind=job.kind,
            preemptible=job.preemptible,
            array=job.array,
            array_limit=job.array_limit,
        )


class Books:
    def __init__(self, quotas: Iterable[QuotaView] = (), running: Iterable[RunningJob] = ()) -> None:
        self._limits = {(quota.team, quota.kind): quota.gpus for quota in quotas}
        self._held: Counter[tuple[str, Kind | None]] = Counter()
        self._tasks: Counter[str] = Counter()
        for job in running:
            owner = Owner(team=job.team, kind=job.kind, preemptible=job.preemptible, array=job.array)
            self.add(owner, job.gpus, 1)

    def add(self, owner: Owner, gpus: int, sign: int) -> None:
        """A job of theirs began (1) or left (-1)."""
        if owner.array:
            self._tasks[owner.array] += sign
        # Preemptible work borrows what others leave idle: it counts against nobody's quota
        if not owner.preemptible:
            self._held[owner.team, owner.kind] += sign * gpus
            self._held[owner.team, None] += sign * gpus

    def refuse(self, owner: Owner, gpus: int) -> Refusal | None:
        if owner.array_limit is not None and self._tasks[owner.array] >= owner.array_limit:
            why = f"Of its array, {count(owner.array_limit, 'task')} may run at once, and so many do."
            return Refusal(reason="JobArrayTaskLimit", why=why)
        if owner.preemptible:
            return None
        for kind in (owner.kind, None):
            limit, held = self._limits.get((owner.team, kind)), self._held[owner.team, kind]
            if limit is not None and held + gpus > limit:
                scope = f" for {kind}" if kind else ""
                why = f"Team {owner.team} holds {held} of its {limit} GPUs{scope}; this job needs {gpus}."
                if gpus > limit:
                    why += " It can never start under this quota."
                return Refusal(reason="AssocGrpGRES", why=why)
        return None
