"""GPUs that are held and not used: whose they are, and what would help. Pure.

A GPU is idle in an interval whose mean utilisation is below `IDLE_BELOW` percent. What no exporter measured is neither
used nor idle; it is in `held_h` alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jobs.lifecycle import Kind

IDLE_BELOW = 5.0
WORTH_A_WORD_H = 1.0  # GPU-hours; below it nobody is told anything
WORTH_A_SHARE = 0.10
MOST_NAMED = 3


@dataclass(frozen=True, kw_only=True)
class Use:
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
class Waste:
    """One person in a period."""

    user: str
    teams: Sequence[str]
    jobs: int
    held_h: float
    measured_h: float
    idle_h: float
    worst: Sequence[Use]
    advice: str

    @property
    def share(self) -> float | None:
        return 100 * self.idle_h / self.measured_h if self.measured_h else None


BY_KIND = {
    Kind.DEBUG: "It waits for somebody: end it when you leave, or give it a shorter time limit.",
    Kind.EVALUATION: "Loading and scoring need no GPU: stage the model once, and score in a job without GPUs.",
    Kind.PRETRAIN: "Look at what happens between its steps: start-up, loading of data, checkpoints that stop it.",
    Kind.OTHER: "See in its log what it waits for; where it needs no GPU for long, do that part in a job without one.",
}


def per_user(uses: Iterable[Use]) -> list[Waste]:
    """Who left the most idle first."""
    found: dict[str, list[Use]] = defaultdict(list)
    for use in uses:
        found[use.user].append(use)
    return sorted((_waste(user, own) for user, own in found.items()), key=lambda one: (-one.idle_h, one.user))


def _waste(user: str, uses: Sequence[Use]) -> Waste:
    worst = sorted((use for use in uses if use.idle_h > 0), key=lambda use: (-use.idle_h, use.public_id))[:MOST_NAMED]
    measured, idle = sum(use.measured_h for use in uses), sum(use.idle_h for use in uses)
    matters = idle >= WORTH_A_WORD_H and idle >= WORTH_A_SHARE * measured
    return Waste(
        user=user,
        teams=sorted({use.team for use in uses}),
        jobs=len(uses),
        held_h=sum(use.held_h for use in uses),
        measured_h=measured,
        idle_h=idle,
        worst=worst,
        advice=advice(worst[0]) if matters else "",
    )


def advice(use: Use) -> str:
    """Of the job that wasted the most."""
    if use.never_used == use.gpus:
        return "It never used a GPU: ask for none, or find out why it does not see them."
    if use.never_used:
        return f"It used {use.gpus - use.never_used} of its {use.gpus} GPUs: ask for as many as it uses."
    training = {Kind.SFT: Kind.PRETRAIN, Kind.MLLM: Kind.PRETRAIN}
    kind = Kind(use.kind)
    return BY_KIND[training.get(kind, kind)]
