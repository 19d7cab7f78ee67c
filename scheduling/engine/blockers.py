"""What keeps a job from starting, as data with a sentence. Lists show the first blocker of a job.

`sees` returns whether the reader may know the jobs of a team. For every other reader they are "a job of another team".
Sentences that are stored with a job are read by its team, so they are written for that team.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from jobs.core.gpu_shares import GpuNumber

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
    """What holds the resources that this job lacks: one job, or all jobs of teams that the reader may not see."""

    gpus: GpuNumber
    jobs: int = 1
    job: str = ""
    title: str = ""
    team: str = ""  # empty: other teams
    ends_at: datetime | None = None  # when it reaches its time limit
    expected_end_at: datetime | None = None  # according to its predicted run time


@dataclass(frozen=True, kw_only=True)
class Blocker:
    """`reason` is Slurm's term, `why` the sentence. `gpus` counts GPUs that are missing, over the quota, or requested
    by the jobs ahead. `power_budgets` names those that leave too little, also where the sentence leaves some out.
    """

    kind: BlockerKind
    reason: str
    why: str
    gpus: GpuNumber = 0
    nodes: int = 0
    jobs: int = 0
    holders: tuple[Holder, ...] = ()
    power_budgets: tuple[str, ...] = ()


def job_label(job: str, team: str, sees: CanSeeTeam) -> str:
    """The name of the job, or a neutral label for readers that may not see its team."""
    return job if sees(team) else "a job of another team"


def capitalize_first(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def approximate_duration(seconds: float) -> str:
    """A rounded duration such as `about 2 h`."""
    for unit, size in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size or (size < 86_400 and seconds >= size):
            return f"about {round(seconds / size)} {unit}"
    return "a moment"
