"""The gang's training, step by step: step reports, checkpoints, and bad data. Pure; part of the simulation."""

from __future__ import annotations

from scheduling.simulation.drill import symptoms
from scheduling.simulation.drill.jobs import DrillCheckpoint, DrillJob
from scheduling.simulation.drill.simulation import DrillSimulation
from scheduling.simulation.drill.values import StepReport


class GangTraining:
    def __init__(self, stage: DrillSimulation, save_every: int) -> None:
        self.stage, self.save_every = stage, save_every
        self._pause_s = 0.0

    def begin(self, work: DrillJob, now: float) -> None:
        """Complete the first step."""
        self._pause_s = 0.0
        self.stage.tally.record_first_step(work.name, now)
        self._finish_step(work, now, self.stage.plan.step_s)

    def _schedule_next_step(self, work: DrillJob, now: float) -> None:
        plan, stage = self.stage.plan, self.stage
        step = work.step + 1
        if work.bug and step >= work.bug[0]:
            work.dying = True
            stage.fail_attempt(work, now, work.bug[1])
            return
        factor = max((factor for node, factor in stage.slow().items() if node in work.nodes), default=1.0)
        report = symptoms.step_report(plan, step, now, factor=factor, pause_s=self._pause_s, bad_loss=work.loss_defect)
        self._pause_s = 0.0
        if factor > 1:
            work.current_attempt.slows.append((now, now + report.seconds, factor))
        stage.plan_in_attempt(now + report.seconds, work, lambda job, t: self._finish_step(job, t, report.seconds))

    def _finish_step(self, work: DrillJob, now: float, seconds: float) -> None:
        stage, plan = self.stage, self.stage.plan
        if work.silent_since is not None:
            return
        work.step += 1
        work.loss_defect = work.loss_defect or work.data_defect(work.step)
        work.current_attempt.steps.append(work.step)
        work.current_attempt.times.append(now)
        report = symptoms.step_report(plan, work.step, now, factor=1.0, pause_s=0.0, bad_loss=work.loss_defect)
        stage.answer.on_step(
            work.name,
            StepReport(
                at=now, step=work.step, seconds=seconds, tokens=report.tokens, squares=report.squares, loss=report.loss,
                grad_norm=report.grad_norm,
            ),
        )  # fmt: skip
        if not work.running:
            return
        if work.step % self.save_every == 0:
            self._save_checkpoint(work, now)
        if work.step % plan.evaluate_steps == 0:
            stage.answer.on_section(work.name, "evaluation", now, now + plan.evaluate_s)
            stage.plan_in_attempt(now + plan.evaluate_s, work, self._schedule_next_step)
            return
        self._schedule_next_step(work, now)

    def _save_checkpoint(self, work: DrillJob, now: float) -> None:
        """Pause training for the stall. The checkpoint is complete when it is in remote storage."""
        plan = self.stage.plan
        saved = DrillCheckpoint(step=work.step, at=now, loss_defect=work.loss_defect)
        work.saved = [*work.saved[-40:], saved]
        work.current_attempt.stalls.append((now, now + plan.stall_s))
        self._pause_s += plan.stall_s

        def durable(_work: DrillJob, later: float) -> None:
            saved.whole, saved.at = True, later

        self.stage.plan_in_attempt(now + plan.persist_s, work, durable)
