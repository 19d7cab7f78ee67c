"""The probability that a job ends before its deadline, from distributions of its start and of its run time. Pure.

The run time is that of similar jobs (same user and name, and the same size if there are enough of them), mixed with
the predicted run time under the errors of past predictions of the same kind of work. Each similar job counts once, the
prediction `PRIOR_WEIGHT` times, so a few similar jobs are not trusted blindly.

The wait is the estimated wait under the errors of past estimates of about the same wait, for jobs of about the same
size, mixed in the same way with what the estimate itself says: a log-normal wait with its median and its P90.

Both come from predictions that were made before their outcome was known, so the probabilities are calibrated as far as
the near future resembles the near past. `bench/scheduling/deadlines.py` measures that. Start and run time are taken to
be independent. A job that is preempted or requeued ends later than this expects.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from scheduling.core.distributions import P90_SIGMAS, Distribution, PastPredictions, chance_of_sum
from scheduling.core.number_texts import duration_text
from scheduling.engine.history import UNKNOWN_S
from scheduling.engine.run_time_estimates import DAY_S, MAX_PAST_JOBS, PREDICTION_SIGMA, PastJob

PRIOR_WEIGHT = 8.0  # the prediction counts as much as this many similar jobs
MIN_KIND_JOBS = 30  # past predictions of a kind of work that are needed to use its errors alone
RUN_FLOOR_S = 1.0
WAIT_FLOOR_S = 60.0  # a turn or two; shorter waits are equal
MIN_WAIT_SIGMA = 0.05
PLAN_SIGMA = 0.3  # of the logarithm of a planned duration, before plans have been compared with their outcome
PLAN_FLOOR_S = 60.0


class PastWait(NamedTuple):
    """An estimate of a start that is known now. All are seconds from the estimate on."""

    p50_s: float
    waited_s: float
    gpus: int


class JobScope(NamedTuple):
    """What is known of a job at submission and says which jobs are similar."""

    user: str
    title: str
    gpus: int
    kind: str


@dataclass(frozen=True, kw_only=True)
class EndPrediction:
    """Whether a job ends before its deadline. `start` is the predicted start, or the actual one of a running job."""

    deadline: datetime
    probability: float
    run: Distribution  # from the start on, also of a running job
    start: datetime
    is_running: bool = False

    @property
    def why(self) -> str:
        """What the probability results from: "predicted run 3 h ± 40 min, predicted start 12:10 UTC."."""
        start = "started" if self.is_running else "predicted start"
        return f"predicted run {run_text(self.run)}, {start} {_clock_text(self.start, self.deadline)} UTC."


def run_text(run: Distribution) -> str:
    """The median and the middle 68%: as ± if they lie about evenly around it, else as a range."""
    low, median, high = (run.quantile(level) for level in (0.16, 0.5, 0.84))
    if high - median <= 2 * (median - low) and median - low <= 2 * (high - median):
        return f"{duration_text(median)} ± {duration_text((high - low) / 2)}"
    return f"{duration_text(median)} (from {duration_text(low)} to {duration_text(high)})"


def _clock_text(at: datetime, other: datetime) -> str:
    """The time of day in UTC, with the date if the two times are on different days."""
    return f"{at:%H:%M}" if at.date() == other.date() else f"{at:%-d %b %H:%M}"


class DeadlineModel:
    """Forecasts from the past of one cluster."""

    def __init__(self, past: Iterable[PastJob], waits: Sequence[PastWait] = ()) -> None:
        """`past` is ordered by end time, the newest last."""
        self._similar: dict[tuple[object, ...], list[float]] = defaultdict(list)
        errors: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for job in past:
            for scope in _scopes(JobScope(job.user, job.title, job.gpus, job.kind)):
                self._similar[scope].append(job.ran_s)
            if job.predicted_s >= 0.0:
                errors[job.kind].append((job.predicted_s, job.ran_s))
        self._kind_errors = {
            kind: PastPredictions(pairs, RUN_FLOOR_S) for kind, pairs in errors.items() if len(pairs) >= MIN_KIND_JOBS
        }
        self._all_errors = PastPredictions([pair for pairs in errors.values() for pair in pairs], RUN_FLOOR_S)
        self._wait_errors = PastPredictions(
            [(wait.p50_s, wait.waited_s) for wait in waits], WAIT_FLOOR_S, [wait.gpus for wait in waits]
        )

    def run_time(self, job: JobScope, predicted_s: float = UNKNOWN_S, limit_s: float = math.inf) -> Distribution:
        """The run time of a job that has not started."""
        similar = self._similar_run_times(job)
        prior = self._predicted_run_time(job.kind, predicted_s, limit_s)
        parts = [(prior, PRIOR_WEIGHT)]
        if similar:
            parts.append((Distribution.of(similar), float(len(similar))))
        return Distribution.mixture(parts).bounded(limit_s)

    def wait(self, p50_s: float, p90_s: float, gpus: int) -> Distribution:
        """The wait of a job whose start is estimated at these times from now. One that fits now does not wait."""
        if p90_s <= 0.0:
            return Distribution.of([0.0])
        sigma = math.log((max(p50_s, p90_s) + WAIT_FLOOR_S) / (p50_s + WAIT_FLOOR_S)) / P90_SIGMAS
        stated = Distribution.log_normal(p50_s + WAIT_FLOOR_S, max(MIN_WAIT_SIGMA, sigma))
        prior = Distribution.of((stated.values - WAIT_FLOOR_S).clip(0.0))
        parts = [(prior, PRIOR_WEIGHT)]
        if len(self._wait_errors):
            near = self._wait_errors.actual_times(p50_s, gpus)
            parts.append((Distribution.of(near), float(len(near))))
        return Distribution.mixture(parts)

    def before_start(
        self, run: Distribution, deadline: datetime, *, now: datetime, p50: datetime, p90: datetime, gpus: int
    ) -> EndPrediction:
        """The forecast of a waiting job with these start estimates."""
        likely_s, late_s = (max(0.0, (at - now).total_seconds()) for at in (p50, p90))
        wait = self.wait(likely_s, late_s, gpus)
        return EndPrediction(
            deadline=deadline,
            probability=chance_of_sum(wait, run, (deadline - now).total_seconds()),
            run=run,
            start=max(now, p50),
        )

    def after_start(
        self, run: Distribution, deadline: datetime, *, now: datetime, started_at: datetime
    ) -> EndPrediction:
        """The forecast of a running job. `run` is its run time as it was expected before the start."""
        past_s = max(0.0, (now - started_at).total_seconds())
        # A job that has outrun everything is expected to go on for as long again
        left = run.remaining_after(past_s) or Distribution.log_normal(past_s, PREDICTION_SIGMA)
        return EndPrediction(
            deadline=deadline,
            probability=float(left.at_most((deadline - now).total_seconds())),
            run=Distribution(left.values + past_s, left.weights),
            start=started_at,
            is_running=True,
        )

    def _similar_run_times(self, job: JobScope) -> list[float]:
        """The newest run times of the narrowest scope that has enough of them to outweigh the prediction, else of the
        widest."""
        ran: list[float] = []
        for scope in _scopes(job):
            ran = self._similar.get(scope, [])[-MAX_PAST_JOBS:]
            if len(ran) >= PRIOR_WEIGHT:
                break
        return ran

    def _predicted_run_time(self, kind: str, predicted_s: float, limit_s: float) -> Distribution:
        """The run time that the prediction and the errors of past ones imply."""
        if predicted_s < 0.0:
            predicted_s = limit_s if limit_s < math.inf else DAY_S
        errors = self._kind_errors.get(kind, self._all_errors)
        if len(errors) < MIN_KIND_JOBS:
            return Distribution.log_normal(predicted_s, PREDICTION_SIGMA)
        return Distribution.of(errors.actual_times(predicted_s))


def planned_work_chance(
    planned_s: float, left_s: float, past: Sequence[tuple[float, float]], *, done: float = 0.0
) -> float:
    """The probability that planned work, of which this share is done, ends within `left_s`: its planned duration under
    the errors of earlier plans. `past` are planned and actual durations.
    """
    parts = [(Distribution.log_normal(planned_s, PLAN_SIGMA), PRIOR_WEIGHT)]
    if past:
        near = PastPredictions(past, PLAN_FLOOR_S).actual_times(planned_s)
        parts.append((Distribution.of(near), float(len(near))))
    whole = Distribution.mixture(parts)
    return float(Distribution(whole.values * (1.0 - done), whole.weights).at_most(left_s))


def _scopes(job: JobScope) -> tuple[tuple[object, ...], ...]:
    return ((job.user, job.title, job.gpus), (job.user, job.title)) if job.title else ()
