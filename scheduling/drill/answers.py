"""What Acme is compared with, on the same stage: nothing automatic, and always the same. Pure."""

from __future__ import annotations

from scheduling.drill.simulation import DrillSimulation
from scheduling.drill.values import FailedAttempt, StepReport

PLATFORM_REQUEUE_STATES = frozenset({"NODE_FAIL"})  # what a cluster starts again by itself


class ManualRecovery:
    """No recovery: whatever the cluster does not start again by itself waits for a person."""

    name = "off"

    def __init__(self, stage: DrillSimulation) -> None:
        self.stage = stage

    def beat(self, job: str, beat: StepReport) -> None:
        """A loss that goes wrong is seen when somebody looks at the curve."""
        if self.stage.works[job].loss_defect:
            self._call_operator(job, beat.at)

    def section(self, job: str, name: str, begin: float, end: float) -> None:
        return

    def started(self, job: str, now: float) -> None:
        return

    def ended(self, seen: FailedAttempt, now: float) -> None:
        if seen.state in PLATFORM_REQUEUE_STATES:
            self._requeue(seen, now)
        else:
            self._call_operator(seen.job, now)

    def run_checks(self, now: float) -> None:
        return

    def _requeue(self, seen: FailedAttempt, now: float) -> None:
        newest = self.stage.works[seen.job].newest(None)
        self.stage.restart(seen.job, newest.step if newest else None, at=now)

    def _call_operator(self, job: str, now: float) -> None:
        self.stage.call_operator(job, now)


class RequeueAlways(ManualRecovery):
    """Every end is started again at once, from the newest checkpoint that is whole. Nobody is asked, no node is tested;
    a person is called when a job has ended three times without a step."""

    name = "requeue"

    def __init__(self, stage: DrillSimulation) -> None:
        super().__init__(stage)
        self._furthest: dict[str, tuple[int, int]] = {}

    def ended(self, seen: FailedAttempt, now: float) -> None:
        step, again = self._furthest.get(seen.job, (-1, 0))
        further = seen.step is not None and seen.step > step
        self._furthest[seen.job] = (max(step, seen.step or 0), 1 if further else again + 1)
        if self._furthest[seen.job][1] >= 3:
            self._call_operator(seen.job, now)
        if self._furthest[seen.job][1] <= 20:
            self._requeue(seen, now)
