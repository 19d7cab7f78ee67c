"""What keeps a job from starting, as data with a sentence. The first of a job's blockers is what lists show.

`sees` says of a team whether whoever reads may know its jobs. To everybody else they are "a job of another team": a
sentence that is kept with a job is read by its team, so it is written for that team.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from jobs.core.lifecycle import RECOVERING

if TYPE_CHECKING:
    from scheduling.engine.cluster import WaitingJob

CanSeeTeam = Callable[[str], bool]


class BlockerKind(StrEnum):
    HOLD = "hold"
    BEGIN = "begin"
    DEPENDENCY = "dependency"
    QUOTA = "quota"
    ARRAY = "array"
    RESERVATION = "reservation"
    MAINTENANCE = "maintenance"
    CAPACITY = "capacity"
    TOPOLOGY = "topology"
    PRIORITY = "priority"


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Who has what this job lacks: a job, or all jobs of teams that the reader may not see."""

    gpus: int
    jobs: int = 1
    job: str = ""
    title: str = ""
    team: str = ""  # empty: other teams
    ends_at: datetime | None = None  # at its limit


@dataclass(frozen=True, kw_only=True)
class Blocker:
    """`reason` is Slurm's word, `why` the sentence. `gpus` is how many are missing, over the quota, or ahead."""

    kind: BlockerKind
    reason: str
    why: str
    gpus: int = 0
    nodes: int = 0
    jobs: int = 0
    holders: tuple[Holder, ...] = ()


def has_gate(job: WaitingJob, now: datetime) -> bool:
    """Whether `gates` names anything."""
    return bool(job.hold or job.waits_for or (job.begin_at and job.begin_at > now))


def gate_blockers(job: WaitingJob, now: datetime) -> Iterator[Blocker]:
    """What keeps it back whatever is free."""
    if job.hold == "admin":
        yield Blocker(kind=BlockerKind.HOLD, reason="JobHeldAdmin", why=job.why or "An operator holds it.")
    elif job.hold:
        reason = RECOVERING if job.reason == RECOVERING else "JobHeldUser"
        yield Blocker(kind=BlockerKind.HOLD, reason=reason, why=job.why or "Its owner holds it.")
    if job.begin_at and job.begin_at > now:
        why = f"It may begin at {job.begin_at:%Y-%m-%d %H:%M:%S} UTC."
        yield Blocker(kind=BlockerKind.BEGIN, reason="BeginTime", why=why)
    if job.waits_for:
        more = f" and {len(job.waits_for) - 3} more" if len(job.waits_for) > 3 else ""
        why = f"It waits for the end of {', '.join(job.waits_for[:3])}{more}."
        yield Blocker(kind=BlockerKind.DEPENDENCY, reason="Dependency", why=why, jobs=len(job.waits_for))


def job_label(job: str, team: str, sees: CanSeeTeam) -> str:
    return job if sees(team) else "a job of another team"


def capitalize_first(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
