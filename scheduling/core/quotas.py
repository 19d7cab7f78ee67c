"""Quotas of teams and what they hold of them, as pages show it. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from jobs.core.gpu_shares import charged_milli, gpu_number
from jobs.core.lifecycle import JobKind
from scheduling.engine.cluster import ClusterSnapshot, QuotaView

TeamKind = tuple[str, JobKind | None]
TeamModel = tuple[str, JobKind | None, str]  # with a GPU model


@dataclass(kw_only=True)
class QuotaUse:
    """GPUs of a team."""

    held_milli: int = 0  # thousandths of GPUs, like the others
    borrowed_milli: int = 0  # of preemptible jobs
    waiting_milli: int = 0

    @property
    def held(self) -> float:
        """The number of GPUs, like the others."""
        return gpu_number(self.held_milli)

    @property
    def borrowed(self) -> float:
        return gpu_number(self.borrowed_milli)

    @property
    def waiting(self) -> float:
        return gpu_number(self.waiting_milli)

    def add(self, other: QuotaUse) -> None:
        self.held_milli += other.held_milli
        self.borrowed_milli += other.borrowed_milli
        self.waiting_milli += other.waiting_milli


@dataclass(frozen=True, kw_only=True)
class QuotaBarPart:
    """A part of a quota bar; `start` and `share` in percent."""

    name: str
    tone: str
    gpus: float
    start: float
    share: float


@dataclass(frozen=True, kw_only=True)
class QuotaAccount:
    """A quota or team with its use. An empty `team` is all teams hidden from the reader. `owned` None: no quota
    applies.
    """

    team: str
    kind: JobKind | None = None
    owned: int | None = None
    reserved: bool = False
    use: QuotaUse = field(default_factory=QuotaUse)
    teams: int = 1
    gpu_model: str = ""

    @property
    def left(self) -> float:
        return gpu_number(max(0, charged_milli(self.owned or 0, -self.use.held_milli)))

    @property
    def note(self) -> str:
        """What the quota is for: the number of teams of a combined account, or the kind of jobs and the GPU model."""
        return str(self.teams) if self.teams > 1 else " ".join(filter(None, (self.kind, self.gpu_model)))

    @property
    def use_text(self) -> str:
        """What follows the number of allocated GPUs."""
        texts = [" allocated, no quota" if self.owned is None else f" of {self.owned} allocated"]
        texts += [f"{self.left} reserved"] if self.reserved and self.left else []
        texts += [f"{self.use.borrowed} borrowed"] if self.use.borrowed else []
        texts += [f"{self.use.waiting} requested"] if self.use.waiting else []
        return ", ".join(texts)

    @property
    def bar_length(self) -> float:
        return max(self.owned or 0, self.use.held) + self.use.borrowed

    def parts(self, most: float) -> list[QuotaBarPart]:
        """The parts of the bar. `most` is the scale shared by all bars of a cluster, so they can be compared."""
        idle = ("reserved", "waiting") if self.reserved else ("unused quota", "quiet")
        lengths = (("held", "running", self.use.held), (*idle, self.left), ("borrowed", "starting", self.use.borrowed))
        parts, start = [], 0.0
        for name, tone, gpus in lengths:
            parts.append(
                QuotaBarPart(name=name, tone=tone, gpus=gpus, start=100 * start / most, share=100 * gpus / most)
            )
            start += gpus
        return [part for part in parts if part.gpus]


def accounts(
    quotas: Iterable[QuotaView],
    uses: Mapping[TeamKind, QuotaUse],
    reserves: Collection[JobKind],
    sees: Callable[[str], bool],
    model_uses: Mapping[TeamModel, QuotaUse] = MappingProxyType({}),
) -> list[QuotaAccount]:
    """One account per quota, then teams without one, then quotas for GPU models. Teams that the reader may not see form
    one account, without their quotas for models.
    """
    quotas = list(quotas)
    limits = {(quota.team, quota.kind): quota.gpus for quota in quotas if not quota.gpu_model}
    keys = [*sorted(limits, key=lambda key: (key[0], key[1] or "")), *_teams_without_quota(uses, limits)]
    shown = [
        QuotaAccount(
            team=team,
            kind=kind,
            owned=limits.get((team, kind)),
            reserved=kind in reserves,
            use=uses.get((team, kind)) or QuotaUse(),
        )
        for team, kind in keys
        if sees(team)
    ]
    shown += [_model_account(quota, model_uses) for quota in quotas if quota.gpu_model and sees(quota.team)]
    hidden = sorted({team for team, _ in keys if not sees(team)})
    return [*shown, *([_combined_account(hidden, uses, limits)] if hidden else [])]


def _model_account(quota: QuotaView, uses: Mapping[TeamModel, QuotaUse]) -> QuotaAccount:
    use = uses.get((quota.team, quota.kind, quota.gpu_model)) or QuotaUse()
    return QuotaAccount(team=quota.team, kind=quota.kind, gpu_model=quota.gpu_model, owned=quota.gpus, use=use)


def model_quota_uses(picture: ClusterSnapshot) -> Mapping[TeamModel, QuotaUse]:
    """GPUs held and borrowed, by team, kind and GPU model; only of teams with a quota for a model. What waits is not
    counted, because a job may accept several models.
    """
    teams = {quota.team for quota in picture.quotas if quota.gpu_model}
    uses: defaultdict[TeamModel, QuotaUse] = defaultdict(QuotaUse)
    for job in picture.running:
        if job.team in teams:
            milli, model = job.charged_milli, picture.gpu_model(job)
            use = QuotaUse(borrowed_milli=milli) if job.preemptible else QuotaUse(held_milli=milli)
            for kind in (job.kind, None):
                uses[job.team, kind, model].add(use)
    return dict(uses)


def quota_uses(picture: ClusterSnapshot) -> Mapping[TeamKind, QuotaUse]:
    """GPUs held, borrowed and waiting, by team and kind; kind None for the whole team."""
    uses: defaultdict[TeamKind, QuotaUse] = defaultdict(QuotaUse)
    for job in picture.running:
        milli = job.charged_milli
        use = QuotaUse(borrowed_milli=milli) if job.preemptible else QuotaUse(held_milli=milli)
        for kind in (job.kind, None):
            uses[job.team, kind].add(use)
    waiting: Counter[TeamKind] = Counter()  # tens of thousands of jobs may wait, but of few teams and kinds
    for request in picture.waiting:
        waiting[request.team, request.kind] += request.need.charged_milli
    for (team, sort), milli in waiting.items():
        for kind in (sort, None):
            uses[team, kind].waiting_milli += milli
    return dict(uses)  # several threads read it, and reading a missing key would change a defaultdict


def _teams_without_quota(uses: Iterable[TeamKind], limits: Collection[TeamKind]) -> list[TeamKind]:
    teams = {team for team, _ in uses} - {team for team, _ in limits}
    return [(team, None) for team in sorted(teams)]


def _combined_account(
    teams: Collection[str], uses: Mapping[TeamKind, QuotaUse], limits: Mapping[TeamKind, int]
) -> QuotaAccount:
    """All hidden teams as one account. For each team its overall quota counts, else the sum of those for kinds."""
    use, owned = QuotaUse(), 0
    for team in teams:
        use.add(uses.get((team, None)) or QuotaUse())
        kinds = sum(gpus for (owner, kind), gpus in limits.items() if owner == team and kind)
        owned += limits.get((team, None), kinds)
    return QuotaAccount(team="", owned=owned or None, use=use, teams=len(teams))
