"""What a replay in rounds is about: jobs with speeds per GPU type, GPUs by type, and shares of time. Plain values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from jobs.traces.trace import Floats, Ints

Indices = npt.NDArray[np.intp]
ALONE = -1


@dataclass(frozen=True, kw_only=True)
class GpuTypes:
    """The GPUs of a cluster by model. The first type is the one that jobs prefer if the policy sees no difference."""

    names: tuple[str, ...]
    counts: Floats

    @property
    def total(self) -> float:
        return float(self.counts.sum())

    @property
    def parts(self) -> Floats:
        """The part of each type of all GPUs."""
        return self.counts / self.total


@dataclass(frozen=True, kw_only=True)
class Speeds:
    """Steps per second of each class of jobs on each GPU type; 0 where it cannot run.

    `shared[a, b, type]` is the speed of a job of class a while a job of class b uses the same GPUs. None: never shared.
    """

    alone: Floats  # class × type
    shared: Floats | None = None


@dataclass(frozen=True, kw_only=True)
class RoundJobs:
    """Jobs as columns of equal length, in order of submission. A job's number is its row."""

    submit_s: Floats
    steps: Floats
    classes: Ints  # row of `Speeds.alone`
    gpus: Ints


@dataclass(frozen=True, kw_only=True)
class RoundView:
    """Everything that a policy may look at: the jobs that have not ended, as columns, and the GPUs."""

    now: float
    types: GpuTypes
    speeds: Speeds
    numbers: Indices  # of the jobs, in order of submission
    classes: Ints
    gpus: Ints
    age_s: Floats
    remaining: Floats  # steps

    @property
    def job_speeds(self) -> Floats:
        return self.speeds.alone[self.classes]


@dataclass(frozen=True, kw_only=True)
class TimeShares:
    """The fraction of time that jobs should run on each GPU type. A row is one job, or two that share their GPUs.

    `first` and `second` are positions in the view; `second` is ALONE for a row of one job.
    """

    first: Indices
    second: Indices
    fractions: Floats  # row × type

    @staticmethod
    def alone(fractions: Floats) -> TimeShares:
        """One row for each job of the view."""
        return TimeShares(
            first=np.arange(len(fractions)), second=np.full(len(fractions), ALONE), fractions=np.asarray(fractions)
        )

    def with_pairs(self, first: Indices, second: Indices, fractions: Floats) -> TimeShares:
        return TimeShares(
            first=np.concatenate([self.first, first]),
            second=np.concatenate([self.second, second]),
            fractions=np.concatenate([self.fractions, fractions]),
        )


class RoundPolicy:
    """Decides how jobs share the GPUs. One object serves one replay and may remember what it decided."""

    name: str
    # Whether it tells GPU types apart. If not, rounds fill the types in random order, because no job prefers one
    aware = True

    def shares(self, view: RoundView) -> TimeShares:
        raise NotImplementedError
