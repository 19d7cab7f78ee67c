"""The strategies that Acme is compared with: no automation, and a requeue after every failure. Pure."""

from __future__ import annotations

from scheduling.simulation.drill.simulation import DrillSimulation
from scheduling.simulation.drill.values import FailedAttempt, StepReport

PLATFORM_REQUEUE_STATES = frozenset({"NODE_FAIL"})  # requeued by the cluster itself


class ManualRecovery:
    """No recovery: an operator must handle everything that the cluster does not requeue itself."""

    name = "off"

    def __init__(self, stage: DrillSimulation) -> None:
        self.stage = stage

    def on_step(self, job: str, report: StepReport) -> None:
        """An operator notices a wrong loss when looking at the curve."""
        if self.stage.works[job].loss_defect:
            self._call_operator(job, report.at)

    def on_section(self, job: str, name: str, begin: float, end: float) -> None:
        return

    def on_start(self, job: str, now: float) -> None:
        return

    def on_end(self, attempt: FailedAttempt, now: float) -> None:
        if attempt.state in PLATFORM_REQUEUE_STATES:
            self._requeue(attempt, now)
        else:
            self._call_operator(attempt.job, now)

    def run_checks(self, now: float) -> None:
        return

    def _requeue(self, attempt: FailedAttempt, now: float) -> None:
        newest = self.stage.works[attempt.job].newest(None)
        self.stage.restart(attempt.job, newest.step if newest else None, at=now)

    def _call_operator(self, job: str, now: float) -> None:
        self.stage.call_operator(job, now)


class RequeueAlways(ManualRecovery):
    """Restart after every failure, from the newest complete checkpoint, without diagnosis and without node tests.

    An operator is called when a job has ended three times without a new step.
    """

    name = "requeue"

    def __init__(self, stage: DrillSimulation) -> None:
        super().__init__(stage)
        self._furthest: dict[str, tuple[int, int]] = {}

    def on_end(self, attempt: FailedAttempt, now: float) -> None:
        step, again = self._furthest.get(attempt.job, (-1, 0))
        further = attempt.step is not None and attempt.step > step
        self._furthest[attempt.job] = (max(step, attempt.step or 0), 1 if further else again + 1)
        if self._furthest[attempt.job][1] >= 3:
            self._call_operator(attempt.job, now)
        if self._furthest[attempt.job][1] <= 20:
            self._requeue(attempt, now)
