"""The base class of policies. A policy is a subclass in a file of its own; `policies` lists them by name.

If the engine is compiled, these rules are compiled too. Policies in plain Python still work with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from mypy_extensions import mypyc_attr

from jobs.core.lifecycle import JobKind
from scheduling.engine.engine import Engine
from scheduling.engine.history import SchedulingHistory
from scheduling.engine.job import EngineJob, RequestGroup
from scheduling.engine.settings import reject_unknown


def whole_second(at: float) -> float:
    """The first whole second at or after this time, when the turn of a live cluster notices it."""
    return float(math.ceil(round(at, 3)))


@mypyc_attr(allow_interpreted_subclasses=True)
class PolicyRules:
    """A queue order, a way to walk the queue, and what is learned from ended jobs. One instance serves one engine.

    single_queue  all jobs wait in one queue, because the first job that does not fit blocks all behind it
    preempts      running jobs are ranked too, and may have to stop; on live clusters only those that agreed to it
    plans         the engine tracks expected ends, because jobs get reservations
    claims        owners preempt borrowers, which get notice in advance (`turns/claiming`); requires `plans`
    depth         the maximum number of reservations at once, if every job gets one
    uses_trees    the order uses run times predicted by trees, where there are any
    packs         jobs may share whole GPUs; only in replays
    engine_class  the engine that the rules need
    weighs_service  `attained` counts GPU time by the speed of its GPU model, not only its length
    has_opportunistic  jobs of the kinds `best_effort` count as borrowers, although nobody preempts them
    """

    name: ClassVar[str]
    single_queue: ClassVar[bool] = False
    preempts: ClassVar[bool] = False
    plans: ClassVar[bool] = False
    claims: ClassVar[bool] = False
    depth: ClassVar[int] = 1_000
    uses_trees: ClassVar[bool] = False
    packs: ClassVar[bool] = False
    engine_class: ClassVar[type[Engine]] = Engine
    has_opportunistic: ClassVar[bool] = False
    weighs_service: ClassVar[bool] = False

    @classmethod
    def of(cls, settings: Mapping[str, object]) -> PolicyRules:
        """The rules with the settings of an operator. Most policies have no settings."""
        reject_unknown(settings)
        return cls()

    @classmethod
    def check_libraries(cls) -> None:
        """Raise `MissingLibrary` if the policy needs a library that is not installed."""

    @property
    def queues_by_account(self) -> bool:
        """Whether each account has its own queues, because the resources it holds or has used determine the order."""
        return False

    @property
    def reserves(self) -> frozenset[JobKind]:
        """The kinds of jobs whose quotas stay free for their owners."""
        return frozenset()

    @property
    def needs_run_times(self) -> bool:
        """Whether the order is meaningless without run times learned from ended jobs."""
        return False

    def refuse_live(self) -> None:
        """Raise `InvalidPolicySettings` if these settings need what a live cluster does not record."""

    def load_history(self, history: SchedulingHistory, now: float) -> None:
        """Start from this history instead of an empty one. Called before any job is added to the engine."""

    def load_profiles(self, profiles: Any) -> None:
        """Start from these `SharingProfiles` of jobs. Called before the engine is made; only with `packs`."""

    def turn(self, engine: Engine, now: float) -> None:
        """Walk the queue and start jobs; usually one of the functions in `turns`."""
        raise NotImplementedError

    def key(self, job: EngineJob, now: float) -> float:
        """The place among waiting jobs: the smallest first, ties by submission."""
        return 0.0

    def band(self, job: EngineJob) -> int:
        """Lower goes first regardless of the key. Used only with `claims`."""
        return job.submitted_band

    def cost(self, job: EngineJob, now: float) -> float:
        """The key without its tie-breaker, 0 or more, for a policy that uses this order as a component."""
        return self.key(job, now)

    def rank(self, job: EngineJob, now: float) -> float:
        """The place among running jobs if it started now. Must not change while it runs, except at
        `next_rank_change`.
        """
        return self.key(job, now)

    def next_rank_change(self, job: EngineJob, now: float) -> float | None:
        """When the rank changes by itself if the job keeps running; None if never."""
        return None

    def on_rank_change(self, job: EngineJob, now: float) -> None:
        """Called at the time that `next_rank_change` returned."""

    def restore(self, job: EngineJob) -> None:
        """Set what the rules keep in a job from its `attained` service, for a job that was queued or ran before."""

    def service(self, job: EngineJob, seconds: float) -> float:
        """What so many seconds of the present run add to the `attained` service."""
        gpu_s = job.group.charged_gpus * seconds
        return gpu_s / job.slowdown if self.weighs_service else gpu_s

    def restore_rank(self, job: EngineJob, now: float) -> None:
        """Set the `key` of a job that has run since `began`: its rank then, changed at `next_rank_change`."""
        job.key = self.rank(job, job.began)
        while (at := self.next_rank_change(job, job.since)) is not None and (at := whole_second(at)) <= now:
            job.attained += self.service(job, at - job.since)
            job.since = at
            self.on_rank_change(job, at)
            job.key = self.rank(job, at)

    def share(self, group: RequestGroup, engine: Engine, now: float) -> float:
        """What the account of these jobs has used or holds; the smallest goes first. It may only grow during a turn."""
        return 0.0

    def on_job_start(self, job: EngineJob, now: float) -> None:
        """Called when a job takes GPUs; only with `queues_by_account`."""

    def on_job_release(self, job: EngineJob, now: float) -> None:
        """Called when a job releases its GPUs; only with `queues_by_account`."""

    def on_job_end(self, job: EngineJob, now: float) -> None:
        """Called when a job has ended by itself, to learn from it. `since` is the start of its last run."""

    def mean_error_s(self) -> float | None:
        """The mean error of the policy's run time predictions; None if it makes none."""
        return None
