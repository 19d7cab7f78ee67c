"""Quota accounts: what teams and job arrays hold, and whether they may hold more. Counted in thousandths of a GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass

from jobs.core.gpu_shares import WHOLE_GPU, format_gpus, gpu_number
from jobs.core.lifecycle import JobKind
from jobs.core.slurm_notation import format_count
from scheduling.engine.cluster import QuotaView, RunningJob, WaitingJob

QUOTA_REASON = "AssocGrpGRES"


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
    """Thousandths of GPUs held per team, kind and GPU model, checked against the quotas.

    A quota for a GPU model keeps jobs of the team from further GPUs of this model; they may start on another one that
    they accept. So it is not among the refusals of `refuse`, and the engine bars the nodes instead (`full_models`).

    Quotas for the kinds in `reserves` are more than limits: GPUs that their owners do not use stay free of jobs that
    cannot be preempted.
    """

    def __init__(
        self,
        quotas: Sequence[QuotaView] = (),
        running: Iterable[RunningJob] = (),
        reserves: Container[JobKind] = (),
        model_of: Callable[[RunningJob], str] | None = None,
    ) -> None:
        """`model_of` says which GPU model a running job holds; needed if a quota names one."""
        self._limits = {(quota.team, quota.kind): quota.gpus * WHOLE_GPU for quota in quotas if not quota.gpu_model}
        self._model_limits: dict[str, dict[tuple[JobKind | None, str], int]] = {}  # by team
        for quota in quotas:
            if quota.gpu_model:
                self._model_limits.setdefault(quota.team, {})[quota.kind, quota.gpu_model] = quota.gpus * WHOLE_GPU
        self._reserved = [key for key in self._limits if key[1] in reserves]
        self._held: Counter[tuple[str, JobKind | None]] = Counter()
        self._held_of_model: Counter[tuple[str, JobKind | None, str]] = Counter()
        self._tasks: Counter[str] = Counter()
        for job in running:
            owner = QuotaOwner(team=job.team, kind=job.kind, preemptible=job.preemptible, array=job.array)
            model = model_of(job) if model_of and self.limits_models(owner) else ""
            self.add(owner, job.charged_milli, 1, model)

    def limits_models(self, owner: QuotaOwner | None) -> bool:
        """Whether a quota of the owner names a GPU model."""
        return bool(self._model_limits) and owner is not None and owner.team in self._model_limits

    def full_models(self, owner: QuotaOwner, milli: int) -> list[str]:
        """The GPU models of which the owner may not hold this much more."""
        return [] if owner.preemptible else [model for model, _ in self._exceeded(owner, milli)]

    def model_refusal(self, owner: QuotaOwner, milli: int, model: str) -> str:
        """The sentence for a model of `full_models`."""
        kind = next(kind for full, kind in self._exceeded(owner, milli) if full == model)
        return _full_text(
            owner.team,
            kind,
            held=self._held_of_model[owner.team, kind, model],
            limit=self._model_limits[owner.team][kind, model],
            milli=milli,
            model=model,
        )

    def _exceeded(self, owner: QuotaOwner, milli: int) -> Iterator[tuple[str, JobKind | None]]:
        for (kind, model), limit in self._model_limits.get(owner.team, {}).items():
            if kind in (None, owner.kind) and self._held_of_model[owner.team, kind, model] + milli > limit:
                yield model, kind

    def add(self, owner: QuotaOwner, milli: int, sign: int, model: str = "") -> None:
        """Count a job that started (sign 1) or released its GPUs (sign -1). `model` matters only to `limits_models`."""
        if owner.array:
            self._tasks[owner.array] += sign
        # Preemptible jobs borrow idle GPUs, so they count against no quota
        if not owner.preemptible:
            self._held[owner.team, owner.kind] += sign * milli
            self._held[owner.team, None] += sign * milli
            if model:
                self._held_of_model[owner.team, owner.kind, model] += sign * milli
                self._held_of_model[owner.team, None, model] += sign * milli

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
                why = _full_text(owner.team, kind, held=held, limit=limit, milli=milli)
                return QuotaRefusal(reason=QUOTA_REASON, why=why)
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


def _full_text(team: str, kind: JobKind | None, *, held: int, limit: int, milli: int, model: str = "") -> str:
    """Why a quota keeps a job from starting: what the team holds of it, and what the job needs."""
    scope = f" for {kind}" if kind else ""
    gpus = f"{model} GPUs" if model else "GPUs"
    why = f"Team {team} holds {gpu_number(held)} of its {gpu_number(limit)} {gpus}{scope}; this job needs"
    why += f" {gpu_number(milli)}."
    return f"{why} It can never start under this quota." if milli > limit else why
