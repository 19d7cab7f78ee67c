"""What a policy is made of. A policy is a subclass in a file of its own; `policies` lists them by name."""

from __future__ import annotations

from typing import ClassVar

from scheduling.engine.engine import Ask, Engine, Job


class Rules:
    """An order, the way the line is walked, and what is learned on the way. One object serves one engine.

    one_line   everybody stands in one line, because the first that does not fit holds back all behind it.
    preempts   running jobs are ranked too, and may have to stop.
    plans      the engine keeps the expected ends, because somebody is promised a start.
    by_account accounts stand in lines of their own, because what they hold or have had decides.
    """

    name: ClassVar[str]
    one_line: ClassVar[bool] = False
    preempts: ClassVar[bool] = False
    plans: ClassVar[bool] = False
    by_account: ClassVar[bool] = False

    @staticmethod
    def turn(engine: Engine, now: float) -> None:
        """Walk the line: one of the functions in `turns`."""
        raise NotImplementedError

    def key(self, job: Job, now: float) -> float:
        """Its place among those who wait: the smallest first, equal ones by submission."""
        return 0.0

    def rank(self, job: Job, now: float) -> float:
        """Its place among those who run if it started now. Must not change while it runs, except at `next_change`."""
        return self.key(job, now)

    def next_change(self, job: Job, now: float) -> float | None:
        """When its rank changes by itself if it goes on running."""
        return None

    def changed(self, job: Job, now: float) -> None:
        """That moment has come."""

    def share(self, ask: Ask, engine: Engine, now: float) -> float:
        """What the account of these jobs has had or holds; the smallest goes first. It may only grow during a turn."""
        return 0.0

    def began(self, job: Job, now: float) -> None:
        """A job of an account holds GPUs from now on (rules by account only)."""

    def left(self, job: Job, now: float) -> None:
        """It gave them back."""

    def ended(self, job: Job, now: float) -> None:
        """What can be learned from a job that has ended by itself; `since` is when its last run began."""

    def mean_error_s(self) -> float | None:
        """How far its predictions of run times were off, if it makes any."""
        return None
