"""Calibration of the probability that a job meets its deadline.

    python bench/scheduling/deadlines.py [TRACE] [--jobs N] [--every N] [--nodes N] [--policy NAME] [--seeds N …]

Draws jobs from the distributions of Seren, or reads TRACE (the Philly week of bench/simulator.py, or any other), and
replays them. At every N-th submission the probability is computed as on a live cluster, from what was known then: the
run times of ended jobs, the predictions made for them, and the outcome of earlier start estimates. Each of these jobs
gets several deadlines, which depend only on what is known at submission: multiples of its predicted end, fixed times
after its submission, and the times by which the model itself expects it to have ended with 5, 15, … 95 %, so that no
bin is empty. A deadline that depended on the true run time would reveal it.

Prints, by bins of the predicted probability, its mean and the share of deadlines that were met, with the standard
error over jobs, because the deadlines of a job share its fate. The first third of the jobs only gives the model a past.
On the second third of seed 1 its constants were chosen. With several seeds, each is a replay of its own, and a last
report pools their last thirds. The command exits with status 1 if a bin of the last report with at least `MIN_BIN`
deadlines is off by more than 5 points.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from pathlib import Path

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.scheduling.doors import machine
from jobs.core.lifecycle import JobKind
from jobs.traces.files import read_trace
from jobs.traces.trace import Floats, Trace
from scheduling.core.deadlines import DeadlineModel, JobScope, PastWait
from scheduling.core.distributions import Distribution
from scheduling.core.run_time_scopes import JobTraits, learn_run_time, mean_run_time
from scheduling.engine.cluster import ClusterSnapshot, NodeView, RunningJob, WaitingJob
from scheduling.engine.history import SchedulingHistory
from scheduling.engine.policies import rules_factory
from scheduling.engine.predicting import bounded_prediction
from scheduling.engine.run_time_estimates import PastJob, RunTimeEstimates
from scheduling.whatif.replay.acme_trace import PUBLISHED_CLUSTERS, draw_trace
from scheduling.whatif.replay.as_live import trace_as_live
from scheduling.whatif.replay.run import PolicyRun, ReplaySetting, gang_request, replayable_rows, run_policy
from scheduling.whatif.replay.start_estimates import StartEstimate, start_estimates

SLACKS = (0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)  # times the predicted end
LEVELS = [(level + 0.5) / 10 for level in range(10)]
HOURS = (1 / 6, 0.5, 1, 2, 4, 8, 24, 72)
BINS = 10
MIN_BIN = 200
MAX_PAST_JOBS, MAX_PAST_WAITS = 5_000, 5_000
MAX_POINTS = 5.0
LIMITS_H = (12, 24, 72)  # the partitions of the drawn users


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="?", default="acme:seren")
    parser.add_argument("--jobs", type=int, default=20_000, help="number of drawn jobs")
    parser.add_argument("--every", type=int, default=20, help="forecast every N-th job")
    parser.add_argument("--nodes", type=int, default=160)
    parser.add_argument("--policy", default="acme")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="one replay each; a trace has only one")
    options = parser.parse_args()
    if options.trace != "acme:seren" and len(options.seeds) > 1:
        parser.error("a trace has only one seed")
    setting = ReplaySetting(nodes=options.nodes, best_effort=(), as_live=True)
    last_thirds: list[Forecast] = []
    worst = 0.0
    for seed in options.seeds:
        print(f"\n== seed {seed}")
        second, last = forecast_thirds(read_jobs(options.trace, options.jobs, seed), setting, options)
        report("second third", second)
        worst = report("last third, held out", last)
        last_thirds += [replace(one, job=(seed, one.job)) for one in last]
    if len(options.seeds) > 1:
        worst = report(f"last thirds of {len(options.seeds)} replays, held out", last_thirds)
    return int(worst > MAX_POINTS)


def forecast_thirds(
    jobs: Trace, setting: ReplaySetting, options: argparse.Namespace
) -> tuple[list[Forecast], list[Forecast]]:
    """The forecasts for jobs of the second third of the trace, and of the last one."""
    trace = replayable_rows(trace_as_live(jobs, 8), setting)
    print(f"{trace.source}: {len(trace):,} jobs on {options.nodes} nodes of 8 GPUs under {options.policy}; {machine()}")
    began = time.perf_counter()
    run = run_policy(trace, options.policy, setting)
    waits = run.started_s - run.trace.submit_s
    print(f"waits: median {np.median(waits):,.0f} s, P90 {np.quantile(waits, 0.9):,.0f} s", flush=True)
    forecasts = list(Replay(run, options.policy, setting).forecasts(options.every, len(trace) // 3))
    print(f"{len(forecasts):,} deadlines in {time.perf_counter() - began:.0f} s")
    held_out_from = float(trace.submit_s[2 * len(trace) // 3])
    second = [one for one in forecasts if one.at < held_out_from]
    return second, forecasts[len(second) :]


def read_jobs(source: str, jobs: int, seed: int) -> Trace:
    """The trace. Drawn jobs get time limits that do not depend on their run times, and end there at the latest."""
    if source != "acme:seren":
        return read_trace(source)
    drawn = draw_trace(PUBLISHED_CLUSTERS["seren"], "seren", jobs=jobs, seed=seed)
    limits = np.random.default_rng(seed).choice(LIMITS_H, size=len(drawn)) * 3600.0
    return replace(drawn, limit_s=limits, runtime_s=np.minimum(drawn.runtime_s, limits))


@dataclass(frozen=True)
class Forecast:
    """A probability, and whether the deadline was met."""

    job: Hashable
    at: float
    probability: float
    met: bool


class Replay:
    """Walks through the replayed jobs in the order of time, knowing at each moment only what was known then."""

    def __init__(self, run: PolicyRun, policy: str, setting: ReplaySetting) -> None:
        self._run, self._trace, self._setting = run, run.trace, setting
        self._rules = rules_factory(policy, {})
        self._places = {start.row: start.nodes for start in run.starts}
        self._means: dict[str, float] = {}
        self._predicted: dict[int, float] = {}
        self._past: deque[PastJob] = deque(maxlen=MAX_PAST_JOBS)
        self._waits: deque[PastWait] = deque(maxlen=MAX_PAST_WAITS)
        self._waiting: dict[int, None] = {}
        self._running: dict[int, None] = {}
        self._estimated: dict[int, tuple[float, float]] = {}  # row -> time and P50 of its first estimate

    def forecasts(self, every: int, first: int) -> Iterator[Forecast]:
        """Follow submissions, starts and ends. Of the forecasts before row `first`, only the estimated waits are
        remembered.
        """
        agenda: list[tuple[float, int, int]] = []
        for row, submit_s in enumerate(self._trace.submit_s.tolist()):
            self._advance(agenda, submit_s)
            self._predicted[row] = self._predict(row)
            self._waiting[row] = None
            heappush(agenda, (float(self._run.started_s[row]), 1, row))
            if row % every == 0:
                made = list(self._forecast(row, submit_s))
                yield from made if row >= first else ()

    def _advance(self, agenda: list[tuple[float, int, int]], now: float) -> None:
        while agenda and agenda[0][0] < now:
            at, is_start, row = heappop(agenda)
            if is_start:
                del self._waiting[row]
                self._running[row] = None
                heappush(agenda, (float(self._run.ended_s[row]), 0, row))
                if row in self._estimated:
                    made_at, p50_s = self._estimated.pop(row)
                    self._waits.append(PastWait(p50_s, at - made_at, int(self._trace.gpus[row])))
            else:
                del self._running[row]
                self._learn(row, at)

    def _traits(self, row: int) -> JobTraits:
        trace = self._trace
        return JobTraits(trace.users[row], trace.names[row], int(trace.gpus[row]), trace.kinds[row])

    def _predict(self, row: int) -> float:
        return bounded_prediction(mean_run_time(self._means, self._traits(row)), self._limit_s(row))

    def _learn(self, row: int, at: float) -> None:
        traits, ran_s = self._traits(row), at - float(self._run.started_s[row])
        learn_run_time(self._means, traits, ran_s)
        self._past.append(
            PastJob(
                user=traits.user,
                title=traits.name,
                gpus=traits.gpus,
                kind=traits.kind,
                ran_s=ran_s,
                limit_s=self._limit_s(row),
                predicted_s=self._predicted[row],
            )
        )

    def _limit_s(self, row: int) -> float:
        limit_s = float(self._trace.limit_s[row])
        return limit_s if math.isfinite(limit_s) and limit_s > 0 else math.inf

    def _forecast(self, row: int, now: float) -> Iterator[Forecast]:
        estimates = start_estimates(
            self._snapshot(now), self._rules, durations=RunTimeEstimates(self._past), draws=4, seed=row
        )
        for other, first in estimates.items():
            if first.p90 > at(now):  # as on a live cluster, a job that starts at once has no estimate
                self._estimated.setdefault(other, (now, first.p50.timestamp() - now))
        if (estimate := estimates.get(row)) is None:
            return
        model = DeadlineModel(self._past, self._waits)
        traits = self._traits(row)
        scope = JobScope(traits.user, traits.name, traits.gpus, traits.kind)
        predicted_s = self._predicted[row]
        run = model.run_time(scope, predicted_s, self._limit_s(row))
        ended = float(self._run.ended_s[row])
        wait = model.wait(*((one.timestamp() - now) for one in (estimate.p50, estimate.p90)), traits.gpus)
        sums = np.add.outer(wait.values, run.values).ravel()
        end = Distribution.of(sums, np.multiply.outer(wait.weights, run.weights).ravel())
        expected = [now + end.quantile(level) for level in LEVELS]
        for deadline_s in (*deadlines(now, estimate, predicted_s), *expected):
            known = model.before_start(
                run, at(deadline_s), now=at(now), p50=estimate.p50, p90=estimate.p90, gpus=traits.gpus
            )
            yield Forecast(row, now, known.probability, ended <= deadline_s)

    def _snapshot(self, now: float) -> ClusterSnapshot:
        """The cluster as its loop would see it."""
        running = [self._running_job(row) for row in self._running]
        held: dict[int, int] = {}
        for job in running:
            for node, gpus in job.places.items():
                held[node] = held.get(node, 0) + gpus
        nodes = tuple(
            NodeView(
                id=number,
                name=f"n{number}",
                gpus=8,
                free_gpus=tuple(range(8 - held.get(number, 0))),
                free_cpus=1000,
                free_memory_mb=0,
            )
            for number in range(self._setting.nodes)
        )
        known = {row: self._predicted[row] for row in (*self._waiting, *self._running)}
        return ClusterSnapshot(
            now=at(now),
            nodes=nodes,
            waiting=tuple(self._waiting_job(row) for row in self._waiting),
            running=tuple(running),
            history=SchedulingHistory(predicted_s=known),
        )

    def _waiting_job(self, row: int) -> WaitingJob:
        traits, limit_s = self._traits(row), self._limit_s(row)
        return WaitingJob(
            id=row,
            name=str(row),
            team="",
            kind=JobKind.OTHER,
            need=gang_request(traits.gpus, self._setting),
            priority=0,
            submitted_at=at(float(self._trace.submit_s[row])),
            time_limit=timedelta(seconds=limit_s) if limit_s < math.inf else None,
            user=traits.user,
            title=traits.name,
        )

    def _running_job(self, row: int) -> RunningJob:
        traits, limit_s, places = self._traits(row), self._limit_s(row), self._places[row]
        return RunningJob(
            id=row,
            name=str(row),
            team="",
            kind=JobKind.OTHER,
            gpus=traits.gpus,
            priority=0,
            started_at=at(float(self._run.started_s[row])),
            time_limit=timedelta(seconds=limit_s) if limit_s < math.inf else None,
            places={node: traits.gpus // len(places) for node in places},
            user=traits.user,
            title=traits.name,
        )


def deadlines(now: float, estimate: StartEstimate, predicted_s: float) -> Sequence[float]:
    """Deadlines that say nothing about the job that was not known at `now`."""
    end_s = estimate.p50.timestamp() - now + predicted_s
    return [now + slack * end_s for slack in SLACKS] + [now + hours * 3600 for hours in HOURS]


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def report(name: str, forecasts: Sequence[Forecast]) -> float:
    """Print the bins, and return the largest difference in points of those with enough deadlines."""
    predicted = np.array([one.probability for one in forecasts])
    met = np.array([one.met for one in forecasts], dtype=float)
    _, jobs = np.unique([repr(one.job) for one in forecasts], return_inverse=True)
    brier = ((predicted - met) ** 2).mean()
    print(f"\n{name}: {len(forecasts):,} deadlines of {jobs.max() + 1:,} jobs, Brier score {brier:.4f}")
    worst = 0.0
    for low in range(BINS):
        inside = (predicted * BINS).astype(int).clip(0, BINS - 1) == low
        if not (count := int(inside.sum())):
            continue
        points = 100 * (met[inside].mean() - predicted[inside].mean())
        is_judged = count >= MIN_BIN
        worst = max(worst, abs(points)) if is_judged else worst
        print(
            f"  {10 * low:3} to {10 * low + 10:3} %: {count:6,}  predicted {100 * predicted[inside].mean():5.1f}"
            f"  observed {100 * met[inside].mean():5.1f}  {points:+5.1f}"
            f" ± {standard_error_points(met[inside] - predicted[inside], jobs[inside]):.1f}"
            f"{'' if is_judged else '  (too few)'}"
        )
    print(f"  largest difference {worst:.1f} points", flush=True)
    return worst


def standard_error_points(differences: Floats, jobs: npt.NDArray[np.intp]) -> float:
    """The standard error of the mean difference, in points, where those of a job depend on each other."""
    of_jobs = np.bincount(jobs, weights=differences - differences.mean())
    return float(100 * np.sqrt((of_jobs**2).sum()) / len(differences))


if __name__ == "__main__":
    sys.exit(main())
