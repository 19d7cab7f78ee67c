"""Quota accounts: what teams and job arrays hold, and whether they may hold more. Counted in thousandths of a GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import dataclass

from jobs.core.gpu_shares import WHOLE_GPU, format_gpus, gpu_number
from jobs.core.lifecycle import JobKind
from jobs.core.slurm_notation import format_count
from scheduling.engine.cluster import QuotaView, RunningJob, WaitingJob


@dataclass(frozen=True, kw_only=True)
class QuotaRefusal:
    """`reason` is Slurm's term, `why` the sentence shown on pages."""

    reason: str
    why: str


@dataclass(frozen=True, kw_only=True)
class QuotaOwner:
    """The account that a job counts against. Equal requests on one account are admitted alike."""

    team: str
    kind: JobKind
    preemptible: bool = False
    array: str = ""
    array_limit: int | None = None

    @staticmethod
    def of(job: WaitingJob) -> QuotaOwner:
        return QuotaOwner(
            team=job.team,
            kind=job.kind,
            preemptible=job.preemptible,
            array=job.array,
            array_limit=job.array_limit,
        )


class QuotaUsage:
    """Thousandths of GPUs held per team and kind, checked against the quotas.

    Quotas for the kinds in `reserves` are more than limits: GPUs that their owners do not use stay free of jobs that
    cannot be preempted.
    """

    def __init__(
        self, quotas: Iterable[QuotaView] = (), running: Iterable[RunningJob] = (), reserves: Container[JobKind] = ()
    ) -> None:
        self._limits = {(quota.team, quota.kind): quota.gpus * WHOLE_GPU for quota in quotas}
        self._reserved = [key for key in self._limits if key[1] in reserves]
        self._held: Counter[tuple[str, JobKind | None]] = Counter()
        self._tasks: Counter[str] = Counter()
        for job in running:
            owner = QuotaOwner(team=job.team, kind=job.kind, preemptible=job.preemptible, array=job.array)
            self.add(owner, job.charged_milli, 1)

    def add(self, owner: QuotaOwner, milli: int, sign: int) -> None:
        """Count a job that started (sign 1) or released its GPUs (sign -1)."""
        if owner.array:
            self._tasks[owner.array] += sign
        # Preemptible jobs borrow idle GPUs, so they count against no quota
        if not owner.preemptible:
            self._held[owner.team, owner.kind] += sign * milli
            self._held[owner.team, None] += sign * milli

    def refuse(self, owner: QuotaOwner, milli: int, obtainable: int | None = None) -> QuotaRefusal | None:
        """Why the owner may not start this much more, or None.

        `obtainable` is the number of GPUs that are free or held by preemptible jobs; None if no quota is reserved.
        """
        if owner.array_limit is not None and self._tasks[owner.array] >= owner.array_limit:
            why = (
                f"Its array is limited to {format_count(owner.array_limit, 'running task')}, and the limit is reached."
            )
            return QuotaRefusal(reason="JobArrayTaskLimit", why=why)
        if owner.preemptible:
            return None
        for kind in (owner.kind, None):
            limit = self._limits.get((owner.team, kind))
            if limit is not None and (held := self._held[owner.team, kind]) + milli > limit:
                scope = f" for {kind}" if kind else ""
                why = (
                    f"Team {owner.team} holds {gpu_number(held)} of its {gpu_number(limit)} GPUs{scope};"
                    f" this job needs {gpu_number(milli)}."
                )
                if milli > limit:
                    why += " It can never start under this quota."
                return QuotaRefusal(reason="AssocGrpGRES", why=why)
        if obtainable is None or not self._reserved:
            return None
        return self._reserved_refusal(owner, milli, obtainable * WHOLE_GPU)

    def _reserved_refusal(self, owner: QuotaOwner, milli: int, obtainable: int) -> QuotaRefusal | None:
        """Refuse if the job needs GPUs that are reserved for other teams. Only preemptible jobs may borrow those."""
        if (owner.team, owner.kind) in self._reserved:
            return None
        unused_quotas = {key: self._limits[key] - self._held[key] for key in self._reserved}
        unused = sum(number for number in unused_quotas.values() if number > 0)
        if not unused or milli <= obtainable - unused:
            return None
        (team, kind), most_unused = max(unused_quotas.items(), key=lambda item: item[1])
        others = " and others" if unused > most_unused else ""
        why = (
            f"{format_gpus(unused)} {'is' if unused == WHOLE_GPU else 'are'} "
            f"reserved for {kind} jobs of team {team}{others}; "
            f"{gpu_number(max(0, obtainable - unused))} remain, and this job needs {gpu_number(milli)}."
            " A preemptible job may borrow them."
        )
        return QuotaRefusal(reason="ReqNodeNotAvail", why=why)
