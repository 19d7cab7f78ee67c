"""GPUs that are held and not used: whose they are, and what would help. Pure.

A GPU is idle in an interval whose mean utilisation is below `IDLE_BELOW` percent. What no exporter measured is neither
used nor idle; it is in `held_h` alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jobs.core.lifecycle import JobKind

IDLE_BELOW = 5.0
MIN_IDLE_H = 1.0  # GPU-hours; below it nobody is told anything
MIN_IDLE_SHARE = 0.10
MAX_WORST_JOBS = 3


@dataclass(frozen=True, kw_only=True)
class JobGpuUse:
    """One job in a period."""

    public_id: str
    name: str
    user: str
    team: str
    kind: str
    gpus: int
    never_used: int  # of its GPUs: measured, and idle in every interval
    held_h: float
    measured_h: float
    idle_h: float


@dataclass(frozen=True, kw_only=True)
class UserGpuWaste:
    """One person in a period."""

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
    JobKind.DEBUG: "It waits for somebody: end it when you leave, or give it a shorter time limit.",
    JobKind.EVALUATION: "Loading and scoring need no GPU: stage the model once, and score in a job without GPUs.",
    JobKind.PRETRAIN: "Look at what happens between its steps: start-up, loading of data, checkpoints that stop it.",
    JobKind.OTHER: (
        "See in its log what it waits for; where it needs no GPU for long, do that part in a job without one."
    ),
}


def waste_per_user(uses: Iterable[JobGpuUse]) -> list[UserGpuWaste]:
    """Who left the most idle first."""
    found: dict[str, list[JobGpuUse]] = defaultdict(list)
    for use in uses:
        found[use.user].append(use)
    return sorted((_user_waste(user, own) for user, own in found.items()), key=lambda one: (-one.idle_h, one.user))


def _user_waste(user: str, uses: Sequence[JobGpuUse]) -> UserGpuWaste:
    worst = sorted((use for use in uses if use.idle_h > 0), key=lambda use: (-use.idle_h, use.public_id))[
        :MAX_WORST_JOBS
    ]
    measured, idle = sum(use.measured_h for use in uses), sum(use.idle_h for use in uses)
    matters = idle >= MIN_IDLE_H and idle >= MIN_IDLE_SHARE * measured
    return UserGpuWaste(
        user=user,
        teams=sorted({use.team for use in uses}),
        jobs=len(uses),
        held_h=sum(use.held_h for use in uses),
        measured_h=measured,
        idle_h=idle,
        worst=worst,
        advice=advice(worst[0]) if matters else "",
    )


def advice(use: JobGpuUse) -> str:
    """Of the job that wasted the most."""
    if use.never_used == use.gpus:
        return "It never used a GPU: ask for none, or find out why it does not see them."
    if use.never_used:
        return f"It used {use.gpus - use.never_used} of its {use.gpus} GPUs: ask for as many as it uses."
    training = {JobKind.SFT: JobKind.PRETRAIN, JobKind.MLLM: JobKind.PRETRAIN}
    kind = JobKind(use.kind)
    return ADVICE_BY_KIND[training.get(kind, kind)]
