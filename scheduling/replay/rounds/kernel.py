"""Replays a policy that shares GPUs by time: in rounds of some minutes, each GPU runs one job, or two that share it.

A round starts when the last job of the previous one stops. If jobs have come or ended, and the policy was not asked
for half an hour, it is asked again for the fraction of time of each job on each GPU type. Each type then takes the jobs
that have received the least of their fraction since then; GPUs that nobody has a claim to go to the jobs that are
behind from earlier fractions. Jobs run whole steps and lose nothing when they are stopped. GPUs of a type are counted,
not placed on nodes. Pure and reproducible.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

import numpy as np

from jobs.traces.trace import Floats
from scheduling.replay.rounds.values import (
    ALONE,
    GpuTypes,
    Indices,
    RoundJobs,
    RoundPolicy,
    RoundView,
    Speeds,
)

ROUND_S = 360.0
MIN_BETWEEN_DECISIONS_S = 1920.0
Assignment = tuple[int, int]  # row of the shares, GPU type


@dataclass(frozen=True, kw_only=True)
class RoundSetting:
    types: GpuTypes
    speeds: Speeds
    round_s: float = ROUND_S
    decision_s: float = MIN_BETWEEN_DECISIONS_S  # the shortest time between two questions to the policy
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class RoundOutcome:
    """One entry per job. `ended_s` is NaN for jobs that had not ended when the replay stopped."""

    ended_s: Floats
    rounds: int
    decisions: int
    busy_gpu_s: float
    end_s: float


class RoundReplay:
    """The state between two rounds."""

    def __init__(self, jobs: RoundJobs, policy: RoundPolicy, setting: RoundSetting) -> None:
        count, kinds = len(jobs.submit_s), len(setting.types.counts)
        self.jobs, self.policy, self.setting = jobs, policy, setting
        self.now = 0.0
        self.active: list[int] = []
        self.arrived = 0
        self.remaining = np.array(jobs.steps, float)
        self.ended_s = np.full(count, math.nan)
        self.unended = count
        self.rounds = self.decisions = 0
        self.busy_gpu_s = 0.0
        self._random = Random(setting.seed)
        self._type_order = list(range(kinds))
        self._asked_at = -math.inf
        self._changed = False
        # Of the current decision: job numbers, fractions and received seconds by row
        self._first = self._second = np.zeros(0, np.intp)
        self._fractions = self._received = np.zeros((0, kinds))
        self._behind_s = np.zeros((count, kinds))  # claimed minus received, over all earlier decisions

    def run_until_ended(self, numbers: range) -> RoundOutcome:
        """Run rounds until these jobs have ended."""
        watched = np.array(numbers)
        while np.isnan(self.ended_s[watched]).any():
            self._admit_jobs()
            if not self.active:
                self.now = float(self.jobs.submit_s[self.arrived])
                continue
            if self._changed and self.now - self._asked_at >= self.setting.decision_s:
                self._ask_policy()
            self._run(self._assignments())
        return RoundOutcome(
            ended_s=self.ended_s,
            rounds=self.rounds,
            decisions=self.decisions,
            busy_gpu_s=self.busy_gpu_s,
            end_s=self.now,
        )

    def _admit_jobs(self) -> None:
        while self.arrived < len(self.jobs.submit_s) and self.jobs.submit_s[self.arrived] <= self.now:
            self.active.append(self.arrived)
            self.arrived += 1
            self._changed = True

    def _ask_policy(self) -> None:
        """Note how far each job is behind, then get new fractions."""
        self._note_arrears()
        numbers = np.array(self.active, np.intp)
        shares = self.policy.shares(self._view(numbers))
        self._first = numbers[shares.first]
        self._second = np.where(shares.second == ALONE, ALONE, numbers[shares.second])
        self._fractions = shares.fractions
        # Half a round, so that a job that has run once goes behind one that has not, by its fraction
        self._received = np.full(shares.fractions.shape, self.setting.round_s / 2)
        self._asked_at = self.now
        self._changed = False
        self.decisions += 1

    def _view(self, numbers: Indices) -> RoundView:
        jobs = self.jobs
        return RoundView(
            now=self.now,
            types=self.setting.types,
            speeds=self.setting.speeds,
            numbers=numbers,
            classes=jobs.classes[numbers],
            gpus=jobs.gpus[numbers],
            age_s=self.now - jobs.submit_s[numbers],
            remaining=self.remaining[numbers],
        )

    def _note_arrears(self) -> None:
        if not len(self._first):
            return
        behind = self._fractions * (self.now - self._asked_at) - (self._received - self.setting.round_s / 2)
        np.add.at(self._behind_s, self._first, behind)
        paired = self._second != ALONE
        np.add.at(self._behind_s, self._second[paired], behind[paired])

    # One round

    def _assignments(self) -> list[Assignment]:
        """Who runs where in the next round: type by type, the rows that received the least of their fraction first."""
        if not self.policy.aware:
            self._random.shuffle(self._type_order)
        live = self._rows_of_live_jobs()
        busy: set[int] = set()
        chosen: list[Assignment] = []
        for gpu_type in self._type_order:
            left = int(self.setting.types.counts[gpu_type])
            for row in self._rows_in_order(live, gpu_type).tolist():
                if left <= 0:
                    break
                if taken := self._take(row, left, busy):
                    left -= taken
                    chosen.append((row, gpu_type))
        return chosen

    def _rows_of_live_jobs(self) -> Indices:
        """Rows whose jobs have all not ended."""
        live = self.remaining[self._first] > 0
        live &= (self._second == ALONE) | (self.remaining[self._second] > 0)
        return np.flatnonzero(live)

    def _rows_in_order(self, live: Indices, gpu_type: int) -> Indices:
        """The rows that can run on this type, by their claim, then by what they are behind."""
        claims = self._fractions[live, gpu_type] / self._received[live, gpu_type]
        # A pair without a claim would run at a speed that nobody chose
        able = (self._row_speeds(live, gpu_type) > 0) & ((claims > 0) | (self._second[live] == ALONE))
        live, claims = live[able], claims[able]
        behind = self._behind_s[self._first[live], gpu_type]
        return live[np.lexsort((-behind, -claims))]

    def _row_speeds(self, rows: Indices, gpu_type: int) -> Floats:
        """The speed of the slower job of each row."""
        first, second = self.jobs.classes[self._first[rows]], self.jobs.classes[self._second[rows]]
        alone = self.setting.speeds.alone[first, gpu_type]
        shared = self.setting.speeds.shared
        if shared is None:
            return alone  # type: ignore[no-any-return]
        both = np.minimum(shared[first, second, gpu_type], shared[second, first, gpu_type])
        return np.where(self._second[rows] == ALONE, alone, both)

    def _take(self, row: int, left: int, busy: set[int]) -> int:
        """The GPUs that this row takes in this round; 0 if it does not fit or one of its jobs runs already."""
        first, second = int(self._first[row]), int(self._second[row])
        gpus = int(self.jobs.gpus[first])
        if gpus > left or first in busy or second in busy:
            return 0
        busy.add(first)
        if second != ALONE:
            busy.add(second)
        return gpus

    def _run(self, chosen: list[Assignment]) -> None:
        """Let the chosen rows run for one round, and end the jobs that finish."""
        longest = max((self._run_row(row, gpu_type) for row, gpu_type in chosen), default=0.0)
        if not longest:
            # Nothing can run before the policy is asked again
            longest = self.setting.round_s
        self.now += longest
        self.rounds += 1
        self.active = [number for number in self.active if self.remaining[number] > 0]

    def _run_row(self, row: int, gpu_type: int) -> float:
        """Run the jobs of a row. Returns how long the slower one took."""
        first, second = int(self._first[row]), int(self._second[row])
        took = max(self._run_job(job, other, gpu_type) for job, other in ((first, second), (second, first)))
        self._received[row, gpu_type] += took
        self.busy_gpu_s += took * int(self.jobs.gpus[first])
        return took

    def _run_job(self, number: int, other: int, gpu_type: int) -> float:
        """Run whole steps for at most one round. Returns how long they took."""
        if number == ALONE:
            return 0.0
        speed = self._speed(number, other, gpu_type)
        steps = min(float(int(speed * self.setting.round_s)), float(self.remaining[number]))
        self.remaining[number] -= steps
        if self.remaining[number] <= 0:
            self.ended_s[number] = self.now + steps / speed
            self._changed = True
        return steps / speed

    def _speed(self, number: int, other: int, gpu_type: int) -> float:
        classes, speeds = self.jobs.classes, self.setting.speeds
        if other == ALONE or speeds.shared is None:
            return float(speeds.alone[classes[number], gpu_type])
        return float(speeds.shared[classes[number], classes[other], gpu_type])


def replay_in_rounds(
    jobs: RoundJobs, policy: RoundPolicy, setting: RoundSetting, until_ended: range | None = None
) -> RoundOutcome:
    """Replay the jobs, until those of the range have ended; default: all."""
    return RoundReplay(jobs, policy, setting).run_until_ended(until_ended or range(len(jobs.submit_s)))
