"""What a job loses when it is stopped before its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scheduling.engine.job import EngineJob


class PreemptionCosts:
    """The work since the last checkpoint, and a fixed cost per stop."""

    __slots__ = ("checkpoint_s", "fixed_s", "writes_checkpoints")

    def __init__(self, fixed_s: Callable[[EngineJob], float] | None, checkpoint_s: float | None) -> None:
        self.fixed_s = fixed_s  # None: nothing
        # The interval of checkpoints. 0: jobs save before they stop; None: `EngineJob.saved` says when they saved
        self.checkpoint_s = checkpoint_s
        self.writes_checkpoints: Sequence[bool] | None = None  # by job number; None: all jobs do

    def unsaved_work_s(self, job: EngineJob, now: float) -> float:
        """Seconds of work that are lost if the job stops now. Work since a request for a checkpoint is not counted,
        because the job is saving."""
        if self.checkpoint_s is None:
            return max(0.0, min(now, job.asked) - max(job.began, job.saved))
        if not self.checkpoint_s:
            return 0.0
        ran = now - job.began
        saves = self.writes_checkpoints is None or self.writes_checkpoints[job.number]
        return ran % self.checkpoint_s if saves else ran
