"""What a policy is made of. A policy is a subclass in a file of its own; `policies` lists them by name.

Where the engine is compiled these rules are too, and a policy of plain Python works beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from mypy_extensions import mypyc_attr

from jobs.core.lifecycle import JobKind
from scheduling.engine.engine import Engine, EngineJob, RequestGroup
from scheduling.engine.settings import reject_unknown


@mypyc_attr(allow_interpreted_subclasses=True)
class PolicyRules:
    """An order, the way the line is walked, and what is learned on the way. One object serves one engine.

    one_line   everybody stands in one line, because the first that does not fit holds back all behind it.
    preempts   running jobs are ranked too, and may have to stop.
    plans      the engine keeps the expected ends, because somebody is promised a start.
    claims     owners take GPUs back from borrowers, who are told so in advance (`turns/claiming`); goes with `plans`.
    depth      how many are promised a start at once, where everybody is.
    """

    name: ClassVar[str]
    one_line: ClassVar[bool] = False
    preempts: ClassVar[bool] = False
    plans: ClassVar[bool] = False
    claims: ClassVar[bool] = False
    depth: ClassVar[int] = 1_000

    @classmethod
    def of(cls, settings: Mapping[str, object]) -> PolicyRules:
        """As an operator set it; most policies leave nothing to choose."""
        reject_unknown(settings)
        return cls()

    @property
    def queues_by_account(self) -> bool:
        """Whether accounts stand in lines of their own, because what they hold or have had decides."""
        return False

    @property
    def reserves(self) -> frozenset[JobKind]:
        """Quotas for these kinds are kept free for their owners."""
        return frozenset()

    def turn(self, engine: Engine, now: float) -> None:
        """How the line is walked: mostly just one of the functions in `turns`."""
        raise NotImplementedError

    def key(self, job: EngineJob, now: float) -> float:
        """Its place among those who wait: the smallest first, equal ones by submission."""
        return 0.0

    def band(self, job: EngineJob) -> int:
        """Lower goes first whatever the key (rules that claim only)."""
        return job.asked_band

    def cost(self, job: EngineJob, now: float) -> float:
        """The key without what only breaks ties, for a policy that takes its order from here: 0 or more."""
        return self.key(job, now)

    def rank(self, job: EngineJob, now: float) -> float:
        """Its place among those who run if it started now. Must not change while it runs, except at `next_change`."""
        return self.key(job, now)

    def next_rank_change(self, job: EngineJob, now: float) -> float | None:
        """When its rank changes by itself if it goes on running."""
        return None

    def changed(self, job: EngineJob, now: float) -> None:
        """That moment has come."""

    def share(self, ask: RequestGroup, engine: Engine, now: float) -> float:
        """What the account of these jobs has had or holds; the smallest goes first. It may only grow during a turn."""
        return 0.0

    def began(self, job: EngineJob, now: float) -> None:
        """A job of an account holds GPUs from now on (rules by account only)."""

    def left(self, job: EngineJob, now: float) -> None:
        """It gave them back."""

    def ended(self, job: EngineJob, now: float) -> None:
        """What can be learned from a job that has ended by itself; `since` is when its last run began."""

    def mean_error_s(self) -> float | None:
        """How far its predictions of run times were off, if it makes any."""
        return None
