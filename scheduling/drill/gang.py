"""The gang's training, step by step: what it reports, saves, and meets in its data. Pure; part of the stage."""

from __future__ import annotations

from scheduling.drill import symptoms
from scheduling.drill.stage import Stage
from scheduling.drill.values import Beat
from scheduling.drill.works import Checkpoint, Work


class Gang:
    def __init__(self, stage: Stage, save_every: int) -> None:
        self.stage, self.save_every = stage, save_every
        self._pause_s = 0.0

    def begin(self, work: Work, now: float) -> None:
        """Its first step is done."""
        self._pause_s = 0.0
        self.stage.tally.stepped(work.name, now)
        self._done(work, now, self.stage.plan.step_s)

    def _next(self, work: Work, now: float) -> None:
        plan, stage = self.stage.plan, self.stage
        step = work.step + 1
        if work.bug and step >= work.bug[0]:
            work.dying = True
            stage.die(work, now, work.bug[1])
            return
        factor = max((factor for node, factor in stage.slow().items() if node in work.nodes), default=1.0)
        beat = symptoms.beat(plan, step, now, factor=factor, pause_s=self._pause_s, bad_loss=work.tainted)
        self._pause_s = 0.0
        if factor > 1:
            work.life.slows.append((now, now + beat.seconds, factor))
        stage.agenda.at(now + beat.seconds, stage.unless_moved(work, lambda one, t: self._done(one, t, beat.seconds)))

    def _done(self, work: Work, now: float, seconds: float) -> None:
        stage, plan = self.stage, self.stage.plan
        if work.silent_since is not None:
            return
        work.step += 1
        work.tainted = work.tainted or work.met(work.step)
        work.life.steps.append(work.step)
        work.life.times.append(now)
        beat = symptoms.beat(plan, work.step, now, factor=1.0, pause_s=0.0, bad_loss=work.tainted)
        stage.answer.beat(
            work.name,
            Beat(
                at=now, step=work.step, seconds=seconds, tokens=beat.tokens, squares=beat.squares, loss=beat.loss,
                grad_norm=beat.grad_norm,
            ),
        )  # fmt: skip
        if not work.running:
            return
        if work.step % self.save_every == 0:
            self._save(work, now)
        if work.step % plan.evaluate_steps == 0:
            stage.answer.section(work.name, "evaluation", now, now + plan.evaluate_s)
            stage.agenda.at(now + plan.evaluate_s, stage.unless_moved(work, self._next))
            return
        self._next(work, now)

    def _save(self, work: Work, now: float) -> None:
        """Training stands still for the stall; what is written is whole when it lies in remote storage."""
        plan = self.stage.plan
        saved = Checkpoint(step=work.step, at=now, tainted=work.tainted)
        work.saved = [*work.saved[-40:], saved]
        work.life.stalls.append((now, now + plan.stall_s))
        self._pause_s += plan.stall_s

        def durable(_work: Work, later: float) -> None:
            saved.whole, saved.at = True, later

        self.stage.agenda.at(now + plan.persist_s, self.stage.unless_moved(work, durable))
