"""What the training jobs of a history reported: loss, learning rate and tokens over time, and checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import Any, NamedTuple

from jobs.core.attempt_end import TRAINING_KINDS
from jobs.models import Checkpoint
from scheduling.simulation.demo.history.values import HistoryPlace, PlacedAttempt
from scheduling.simulation.drill.job_logs import run_of_job, step_of_program
from scheduling.simulation.drill.values import DrillPlan
from scheduling.simulation.machines.scripts.training_runs import TrainingRun

POINT_INTERVAL_S = 60.0
MIN_POINTS, MAX_POINTS = 8, 150
EARLY_POINTS = 1.5  # an exponent: a loss falls fastest at first, so the first points lie closer together
NOISE = 0.004
FAILED_LOSS_FACTOR = 3.0
UPLOAD_TIME, SAVE_STALL_S = timedelta(seconds=40), 2.0  # of an asynchronous save
LOSS_CAUSES = frozenset({"loss_nan", "loss"})


class StepPoint(NamedTuple):
    """Values of `StepMetrics` at one time."""

    at: datetime
    step: int
    tokens: int
    loss: float
    grad_norm: float
    learning_rate: float
    step_time_s: float
    mfu: float


PROGRESS_COLUMNS = ("attempt_id", *StepPoint._fields)
NEWEST_COLUMNS = (*PROGRESS_COLUMNS, "updated_at", "steps_total")


@dataclass(frozen=True, kw_only=True)
class TrainingRows:
    """What one attempt reported."""

    attempt_id: int
    points: list[StepPoint]
    steps_total: int
    checkpoints: list[Checkpoint]

    @property
    def newest(self) -> tuple[Any, ...]:
        """The row of `LatestProgress`."""
        return self.attempt_id, *self.points[-1], self.points[-1].at, self.steps_total


def training_rows(placed: Sequence[PlacedAttempt], place: HistoryPlace, plan: DrillPlan) -> Iterator[TrainingRows]:
    """Yield the rows of each attempt that made steps."""
    for attempt in placed:
        life, work = attempt.life, attempt.work
        if work.kind not in TRAINING_KINDS or life.first_step is None or attempt.ended <= life.first_step:
            continue
        run = run_of_job(work, plan)
        assert run is not None  # of a training kind
        points = list(_points(attempt, run, life.first_step, place))
        yield TrainingRows(
            attempt_id=attempt.row.pk,
            points=points,
            steps_total=max(run.last_step, points[-1].step),
            checkpoints=list(_checkpoints(attempt, run, place)),
        )


def _checkpoints(attempt: PlacedAttempt, run: TrainingRun, place: HistoryPlace) -> Iterator[Checkpoint]:
    """Yield the good checkpoints of an attempt. One that was saved again later belongs to the later attempt."""
    newest = {saved.step: saved for saved in attempt.work.saved if saved.whole and not saved.loss_defect}
    for saved in newest.values():
        if attempt.life.promised <= saved.at <= attempt.ended:
            step, at = step_of_program(run, saved.step), place.at(saved.at)
            yield Checkpoint(
                job=attempt.job, attempt=attempt.row, step=step, path=f"{attempt.job.checkpoint_dir}/step-{step}",
                saved_at=at, durable_at=at + UPLOAD_TIME, stall_s=SAVE_STALL_S,
            )  # fmt: skip


def _points(attempt: PlacedAttempt, run: TrainingRun, began: float, place: HistoryPlace) -> Iterator[StepPoint]:
    dice, ran_s = Random(f"progress:{attempt.row.key}"), attempt.ended - began
    count = max(MIN_POINTS, min(MAX_POINTS, round(ran_s / POINT_INTERVAL_S)))
    first_step = step_of_program(run, attempt.life.base)
    for number in range(1, count + 1):
        at_s = ran_s * (number / count) ** EARLY_POINTS
        step = first_step + round(at_s / run.step_s)
        diverges = number == count and attempt.life.cause in LOSS_CAUSES
        loss = run.expected_loss(step) * (1 + NOISE * dice.uniform(-1, 1)) * (FAILED_LOSS_FACTOR if diverges else 1)
        slow = 1 + 0.02 * dice.uniform(-1, 1)
        yield StepPoint(
            at=place.at(began + at_s),
            step=step,
            tokens=step * run.batch_tokens,
            loss=round(loss, 4),
            grad_norm=round(0.35 + 0.1 * dice.random(), 3),
            learning_rate=run.learning_rate(step),
            step_time_s=round(run.step_s * slow, 3),
            mfu=round(run.mfu / slow, 4),
        )
