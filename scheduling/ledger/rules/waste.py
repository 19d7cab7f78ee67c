"""GPUs that are held but not used: by which users, and what would help. Pure.

A GPU is idle in an interval with a mean utilization below `IDLE_BELOW` percent. Intervals without measurements are
neither used nor idle; they count in `held_h` only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jobs.core.lifecycle import JobKind

IDLE_BELOW = 5.0
MIN_IDLE_H = 1.0  # GPU-hours; users below this get no advice
MIN_IDLE_SHARE = 0.10
MAX_WORST_JOBS = 3


@dataclass(frozen=True, kw_only=True)
class JobGpuUse:
    """The GPU use of one job in a period."""

    public_id: str
    name: str
    kind: str
    gpus: int
    never_used: int  # number of its GPUs that were measured and idle in every interval
    measured_h: float
    idle_h: float


@dataclass(frozen=True, kw_only=True)
class TeamGpuUse:
    """The GPU use of one user in one team in a period. `worst` are the jobs with the most idle GPU-hours."""

    user: str
    team: str
    jobs: int
    held_h: float
    measured_h: float
    idle_h: float
    worst: Sequence[JobGpuUse] = ()


@dataclass(frozen=True, kw_only=True)
class UserGpuWaste:
    """The GPU use of one user in a period."""

    user: str
    teams: Sequence[str]
    jobs: int
    held_h: float
    measured_h: float
    idle_h: float
    worst: Sequence[JobGpuUse]
    advice: str

    @property
    def share(self) -> float | None:
        return 100 * self.idle_h / self.measured_h if self.measured_h else None


ADVICE_BY_KIND = {
    JobKind.DEBUG: "Interactive session: end it when you leave, or set a shorter time limit.",
    JobKind.EVALUATION: "Loading and scoring need no GPUs: stage the model once, and score in a job without GPUs.",
    JobKind.PRETRAIN: "Check the time between steps: start-up, data loading, blocking checkpoints.",
    JobKind.OTHER: ("Check in its log what it waits for. Run long parts that need no GPU in a job without GPUs."),
}


def waste_per_user(uses: Iterable[TeamGpuUse]) -> list[UserGpuWaste]:
    """The waste of each user, the most idle GPU-hours first."""
    by_user: dict[str, list[TeamGpuUse]] = defaultdict(list)
    for use in uses:
        by_user[use.user].append(use)
    return sorted(
        (_user_waste(user, user_uses) for user, user_uses in by_user.items()),
        key=lambda waste: (-waste.idle_h, waste.user),
    )


def _user_waste(user: str, uses: Sequence[TeamGpuUse]) -> UserGpuWaste:
    wasteful = sorted((job for use in uses for job in use.worst), key=lambda job: (-job.idle_h, job.public_id))
    measured, idle = sum(use.measured_h for use in uses), sum(use.idle_h for use in uses)
    matters = idle >= MIN_IDLE_H and idle >= MIN_IDLE_SHARE * measured
    return UserGpuWaste(
        user=user,
        teams=sorted({use.team for use in uses}),
        jobs=sum(use.jobs for use in uses),
        held_h=sum(use.held_h for use in uses),
        measured_h=measured,
        idle_h=idle,
        worst=wasteful[:MAX_WORST_JOBS],
        advice=advice(wasteful[0]) if matters else "",
    )


def advice(use: JobGpuUse) -> str:
    """Advice based on the job that wasted the most."""
    if use.never_used == use.gpus:
        return "It never used a GPU: request none, or find out why it cannot see them."
    if use.never_used:
        return f"It used {use.gpus - use.never_used} of its {use.gpus} GPUs: request as many as it uses."
    training = {JobKind.SFT: JobKind.PRETRAIN, JobKind.MLLM: JobKind.PRETRAIN}
    kind = JobKind(use.kind)
    return ADVICE_BY_KIND[training.get(kind, kind)]
