"""Runs a schedule of jobs under a power budget: the power of each second, the caps, and what they cost. Pure.

    jobs -> power of a step -> reading -> rule -> command -> clocks of each job, `latency_s` later
                 ^                                                |
                 +------------------------------------------------+

Steps are at most `step_s` long while power could reach the first threshold or clocks are capped. Otherwise a step lasts
until a job starts or ends; then the energy is exact too, because profiles are integrated, not sampled. The rule sees
the mean power of a step at its end, so an excursion lasts `step_s + latency_s` where caps work.

The schedule gives the order and the earliest time of each start. A job that was capped ends later, so jobs that need
its GPUs start later, and those behind them too. Which node has the GPUs is not considered.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from jobs.traces.trace import Floats
from scheduling.power.rules.caps import CapSettings, CapState, PowerReading, next_state
from scheduling.power.rules.energy import kwh
from scheduling.power.rules.gpu_clocks import PowerFleet
from scheduling.whatif.replay.power.profiles import PowerProfiles

CALM_SHARE = 0.8  # of the budget; below it, a run without caps uses long steps too
SMALLEST_STEP_S = 1e-6
MAX_EQUAL_STEPS = 64  # whose power is computed together, which takes a fraction of the time
SMALLEST_SHARE = 1e-6  # of a GPU; smaller differences are rounding errors
Rows = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class PowerJobs:
    """Jobs in order of their starts. None has more GPUs than the fleet."""

    start_s: Floats
    work_s: Floats  # time at the highest clock
    gpus: Floats  # a share of a GPU is a part of one
    is_low: Mask  # low priority
    profiles: PowerProfiles


@dataclass(frozen=True, kw_only=True)
class Actuator:
    """How long a command takes, and how often it fails on the nodes of a job."""

    latency_s: float = 1.0
    failure_rate: float = 0.0
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class BudgetRun:
    """`peak_w` is the highest mean of a step. Excursions are pairs of start and length."""

    budget_w: float
    peak_w: float
    energy_j: float
    end_s: float
    excursions: tuple[tuple[float, float], ...]
    level_s: tuple[float, ...]  # time at each level in effect, from none
    stepped_s: float  # time in steps of `step_s`
    started_s: Floats  # of each job; NaN if it did not start
    held_s: Floats  # time on GPUs
    worked_s: Floats  # work done, in time at the highest clock
    failed_commands: int

    @property
    def energy_kwh(self) -> float:
        return kwh(self.energy_j)

    @property
    def above_s(self) -> float:
        return sum(length for _, length in self.excursions)

    @property
    def longest_excursion_s(self) -> float:
        return max((length for _, length in self.excursions), default=0.0)


def run_budget(
    jobs: PowerJobs,
    fleet: PowerFleet,
    budget_w: float,
    caps: CapSettings,
    *,
    actuator: Actuator = Actuator(),
    step_s: float = 1.0,
    until_s: float = math.inf,
    max_equal_steps: int = MAX_EQUAL_STEPS,
) -> BudgetRun:
    """Run until this time, or until all jobs have ended. The result does not depend on `max_equal_steps`."""
    run = _RunState(jobs, fleet, budget_w, caps, actuator, step_s, max_equal_steps)
    while run.goes_on(until_s):
        run.step(until_s)
    return run.result()


@dataclass(slots=True)
class _Totals:
    peak_w: float = 0.0
    energy_j: float = 0.0
    stepped_s: float = 0.0
    failed_commands: int = 0
    excursions: list[tuple[float, float]] = field(default_factory=list)

    def add(self, at_s: float, seconds: float, watts: float, budget_w: float) -> None:
        self.energy_j += watts * seconds
        self.peak_w = max(self.peak_w, watts)
        if watts <= budget_w:
            return
        start, length = self.excursions[-1] if self.excursions else (0.0, -1.0)
        if length >= 0 and math.isclose(start + length, at_s, rel_tol=0, abs_tol=SMALLEST_STEP_S):
            self.excursions[-1] = start, length + seconds
        else:
            self.excursions.append((at_s, seconds))


class _RunState:
    """A run in progress."""

    def __init__(
        self,
        jobs: PowerJobs,
        fleet: PowerFleet,
        budget_w: float,
        caps: CapSettings,
        actuator: Actuator,
        step_s: float,
        max_equal_steps: int,
    ) -> None:
        self._jobs, self._fleet, self._budget_w = jobs, fleet, budget_w
        self._caps, self._actuator, self._step_s = caps, actuator, step_s
        self._max_equal_steps = max_equal_steps
        self._calm_w = budget_w * (caps.steps[0].above if caps.steps else CALM_SHARE)
        self._dice = np.random.default_rng(actuator.seed)
        self._now = float(jobs.start_s[0]) if len(jobs.start_s) else 0.0
        self._started = 0
        self._state, self._level, self._failed = CapState(), 0, False
        self._reading: PowerReading | None = None  # the last one
        self._commands: deque[tuple[float, int]] = deque()  # time of effect, level
        self._level_s = [0.0] * (len(caps.steps) + 1)
        self._totals = _Totals()
        self._started_s = np.full(len(jobs.start_s), np.nan)
        self._running = _Running(jobs, fleet)

    def goes_on(self, until_s: float) -> bool:
        has_jobs = self._started < len(self._started_s) or len(self._running.rows) > 0
        return has_jobs and self._now < until_s - SMALLEST_STEP_S

    def step(self, until_s: float) -> None:
        """Start what is due and let time pass until the next reading, start, end or command."""
        self._start_jobs()
        self._apply_commands()
        is_calm = self._is_calm()
        if not is_calm and (count := self._equal_steps(until_s)) > 1:
            self._advance_steps(count)
            return
        seconds = self._seconds_to_next(is_calm, until_s)
        watts = self._advance(seconds)
        if not is_calm:
            self._totals.stepped_s += seconds
            self._read(watts)

    def _equal_steps(self, until_s: float) -> int:
        """How many whole steps follow before a start, an end or a command takes effect."""
        known = [until_s, *(at_s for at_s, _ in self._commands)]
        if self._started < len(self._started_s):
            start_s = float(self._jobs.start_s[self._started])
            known += [start_s] if start_s > self._now + SMALLEST_STEP_S else []  # else it waits for an end
        seconds = min(min(known) - self._now, self._running.shortest_rest_s()) - SMALLEST_STEP_S
        return int(min(self._max_equal_steps, seconds / self._step_s))

    def _advance_steps(self, count: int) -> None:
        """Do as many steps as `step` would do one by one, until the rule commands something."""
        joules, gpu_s = self._running.joules_of_steps(count, self._step_s)
        done = 0
        for done, step_j in enumerate(joules.tolist(), 1):  # noqa: B007 - used after the loop
            watts = self._fleet.power_w(gpu_s / self._step_s, step_j / self._step_s)
            self._pass(self._step_s, watts)
            self._totals.stepped_s += self._step_s
            commands = len(self._commands)
            self._read(watts)
            if len(self._commands) > commands:
                break
        self._running.advance(done * self._step_s)

    def result(self) -> BudgetRun:
        totals = self._totals
        return BudgetRun(
            budget_w=self._budget_w,
            peak_w=totals.peak_w,
            energy_j=totals.energy_j,
            end_s=self._now,
            excursions=tuple(totals.excursions),
            level_s=tuple(self._level_s),
            stepped_s=totals.stepped_s,
            started_s=self._started_s,
            held_s=self._running.held_s,
            worked_s=self._running.worked_s,
            failed_commands=totals.failed_commands,
        )

    def _start_jobs(self) -> None:
        """Start the jobs that are due and whose GPUs are free, in order. The level in effect is set on their nodes."""
        due = int(np.searchsorted(self._jobs.start_s, self._now + SMALLEST_STEP_S, side="right"))
        if due == self._started:
            return
        asked = np.cumsum(self._jobs.gpus[self._started : due])
        free = self._fleet.gpus - self._running.gpus + SMALLEST_SHARE
        until = self._started + int(np.searchsorted(asked, free, side="right"))
        if until > self._started:
            rows = np.arange(self._started, until)
            uncapped = np.full(len(rows), float(self._caps.base_mhz))
            self._running.add(rows, self._clocks_after_command(self._jobs.is_low[rows], uncapped))
            self._started_s[rows] = self._now
            self._started = until

    def _apply_commands(self) -> None:
        """Set the clocks of the commands that are due."""
        while self._commands and self._commands[0][0] <= self._now + SMALLEST_STEP_S:
            self._level = self._commands.popleft()[1]
            self._running.set_clocks(self._clocks_after_command(self._running.is_low, self._running.mhz))

    def _clocks_after_command(self, is_low: Mask, mhz: Floats) -> Floats:
        """The clocks of jobs after the command of the level in effect. Where it fails, they stay as they are."""
        wanted = np.where(is_low, *self._caps.clocks(self._level)).astype(float)
        lost = (self._dice.random(len(wanted)) < self._actuator.failure_rate) & (wanted != mhz)
        if lost.any():
            self._failed = True
            self._totals.failed_commands += 1
        return np.where(lost, mhz, wanted)

    def _is_calm(self) -> bool:
        """Whether power stays below the first threshold whatever the phases of the jobs are, and nothing is capped."""
        is_idle = not self._level and not self._commands and not self._state.level
        return is_idle and not self._failed and self._running.bound_w <= self._calm_w

    def _seconds_to_next(self, is_calm: bool, until_s: float) -> float:
        """The length of the next step. It is never longer than the time to the next start or command."""
        start_s = self._jobs.start_s[self._started] if self._started < len(self._started_s) else math.inf
        waits = start_s <= self._now + SMALLEST_STEP_S  # for the GPUs of a job that runs
        known = [until_s - self._now, math.inf if waits else start_s - self._now]
        if waits or is_calm:
            known.append(self._running.shortest_rest_s())
        if not is_calm:
            known += [self._step_s, *(at_s - self._now for at_s, _ in self._commands)]
        return float(max(SMALLEST_STEP_S, min(known)))

    def _advance(self, seconds: float) -> float:
        """Let time pass. Return the mean power."""
        joules, gpu_s = self._running.advance(seconds)
        watts = self._fleet.power_w(gpu_s / seconds, joules / seconds)
        self._pass(seconds, watts)
        return watts

    def _pass(self, seconds: float, watts: float) -> None:
        self._totals.add(self._now, seconds, watts, self._budget_w)
        self._level_s[self._level] += seconds
        self._now += seconds

    def _read(self, watts: float) -> None:
        """Let the rule decide on the mean power of the last step."""
        share, last = watts / self._budget_w, self._reading
        before, elapsed_s = (last.share, self._now - last.at_s) if last else (None, 0.0)
        expected = self._caps.expected_share(share, before, elapsed_s)
        reading = PowerReading(at_s=self._now, share=share, command_failed=self._failed, expected_share=expected)
        self._reading = reading
        state = next_state(self._state, reading, self._caps)
        if state.command != self._state.command:  # what failed before is commanded again
            self._commands.append((self._now + self._actuator.latency_s, state.level))
            self._failed = False
        self._state = state


class _Running:
    """The running jobs as columns. Watts and speed at the clocks are computed when these or the jobs change."""

    def __init__(self, jobs: PowerJobs, fleet: PowerFleet) -> None:
        self._jobs, self._fleet = jobs, fleet
        self.rows: Rows = np.empty(0, dtype=np.intp)
        self.mhz = np.empty(0)
        self._done_s, self._high_before = np.empty(0), np.empty(0)
        self.held_s, self.worked_s = np.zeros(len(jobs.start_s)), np.zeros(len(jobs.start_s))
        self._changed()

    def add(self, rows: Rows, mhz: Floats) -> None:
        self.rows = np.concatenate([self.rows, rows])
        self.mhz = np.concatenate([self.mhz, mhz])
        self._done_s = np.concatenate([self._done_s, np.zeros(len(rows))])
        self._changed()

    def set_clocks(self, mhz: Floats) -> None:
        self.mhz = mhz
        self._changed()

    def _changed(self) -> None:
        """Compute the columns that follow from the jobs and their clocks."""
        jobs, clocks = self._jobs, self._fleet.clocks
        self.is_low = jobs.is_low[self.rows]
        self._profiles = jobs.profiles.rows(self.rows)
        self._gpus, self._work_s = jobs.gpus[self.rows], jobs.work_s[self.rows]
        self.gpus = float(self._gpus.sum())
        self._speed = clocks.speed(self.mhz)
        self._high_before = self._profiles.high_s(self._done_s)
        low_w = clocks.power_w(self._profiles.low_w, self.mhz)
        self._swing_w = self._gpus * (clocks.power_w(self._profiles.high_w, self.mhz) - low_w)
        self._low_w = self._gpus * low_w
        # The profile counts in work and energy in time, so both are divided by the speed once
        self._swing_per_work, self._low_per_work = self._swing_w / self._speed, self._low_w / self._speed
        self._gpus_per_work = self._gpus / self._speed
        self.bound_w = self._fleet.power_w(self.gpus, float((self._low_w + self._swing_w).sum()))

    def shortest_rest_s(self) -> float:
        return float(((self._work_s - self._done_s) / self._speed).min(initial=math.inf))

    def joules_of_steps(self, count: int, step_s: float) -> tuple[Floats, float]:
        """The joules of each of the next steps, in which no job ends, and the GPU-seconds of one."""
        done_s = self._done_s + self._speed * (step_s * np.arange(1, count + 1))[:, np.newaxis]
        high_s = np.vstack([self._high_before, self._profiles.high_s(done_s)])
        swings_j = np.diff(high_s, axis=0) @ self._swing_per_work
        worked = self._speed * step_s
        return swings_j + float(self._low_per_work @ worked), float(self._gpus_per_work @ worked)

    def advance(self, seconds: float) -> tuple[float, float]:
        """Let time pass and remove the jobs that end. Return the joules and GPU-seconds of all."""
        done_s = np.minimum(self._done_s + self._speed * seconds, self._work_s)
        high_s, worked = self._profiles.high_s(done_s), done_s - self._done_s
        joules = float(self._swing_per_work @ (high_s - self._high_before) + self._low_per_work @ worked)
        gpu_s = float(self._gpus_per_work @ worked)
        self.worked_s[self.rows] = done_s
        self.held_s[self.rows] += worked / self._speed
        self._done_s, self._high_before = done_s, high_s
        if (over := self._work_s - done_s <= SMALLEST_STEP_S).any():
            self.rows, self.mhz, self._done_s = self.rows[~over], self.mhz[~over], done_s[~over]
            self._changed()
        return joules, gpu_s
