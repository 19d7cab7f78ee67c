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
from numpy.typing import NDArray

from jobs.traces.trace import Floats, Ints
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
        self._able = np.zeros((0, kinds), bool)
        self._members: list[tuple[int, int, int]] = []  # first, second, GPUs
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
            self._run(*self._assignments())
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
        self._able = self._able_rows()
        gpus = self.jobs.gpus[self._first]
        self._members = list(zip(self._first.tolist(), self._second.tolist(), gpus.tolist(), strict=True))
        self._asked_at = self.now
        self._changed = False
        self.decisions += 1

    def _able_rows(self) -> NDArray[np.bool_]:
        """Whether each row can run on each type: no job in it has a speed of 0."""
        classes, others = self.jobs.classes[self._first], self._class_of(self._second)
        columns = np.arange(self._fractions.shape[1])
        able = _speeds(self.setting.speeds, classes[:, None], others[:, None], columns) > 0
        paired = others != ALONE
        able[paired] &= _speeds(self.setting.speeds, others[paired, None], classes[paired, None], columns) > 0
        return able

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

    def _assignments(self) -> tuple[Indices, Indices]:
        """Who runs where in the next round, as rows and their types: type by type, the rows that received the least of
        their fraction first.
        """
        if not self.policy.aware:
            self._random.shuffle(self._type_order)
        live = self._rows_of_live_jobs()
        busy = {ALONE: False}
        rows: list[int] = []
        types: list[int] = []
        for gpu_type in self._type_order:
            taken = self._take_rows(self._rows_in_order(live, gpu_type).tolist(), gpu_type, busy)
            rows += taken
            types += [gpu_type] * len(taken)
        return np.array(rows, np.intp), np.array(types, np.intp)

    def _rows_of_live_jobs(self) -> Indices:
        """Rows whose jobs have all not ended."""
        live = self.remaining[self._first] > 0
        live &= (self._second == ALONE) | (self.remaining[self._second] > 0)
        return np.flatnonzero(live)

    def _rows_in_order(self, live: Indices, gpu_type: int) -> Indices:
        """The rows that can run on this type, by their claim, then by what they are behind."""
        claims = self._fractions[live, gpu_type] / self._received[live, gpu_type]
        # A pair without a claim would run at a speed that nobody chose
        able = self._able[live, gpu_type] & ((claims > 0) | (self._second[live] == ALONE))
        live, claims = live[able], claims[able]
        behind = self._behind_s[self._first[live], gpu_type]
        return live[np.lexsort((-behind, -claims))]

    def _take_rows(self, ordered: list[int], gpu_type: int, busy: dict[int, bool]) -> list[int]:
        """The rows that get GPUs of this type in this round. Their jobs become busy."""
        left = int(self.setting.types.counts[gpu_type])
        taken: list[int] = []
        for row in ordered:
            if left <= 0:
                break
            first, second, gpus = self._members[row]
            if gpus <= left and not busy.get(first) and not busy.get(second):
                left -= gpus
                busy[first] = True
                busy[second] = second != ALONE
                taken.append(row)
        return taken

    def _run(self, rows: Indices, types: Indices) -> None:
        """Let the rows run for one round, and end the jobs that finish."""
        first, second = self._first[rows], self._second[rows]
        took = self._run_jobs(first, second, types)
        paired = second != ALONE
        took[paired] = np.maximum(took[paired], self._run_jobs(second[paired], first[paired], types[paired]))
        self._received[rows, types] += took
        self.busy_gpu_s += float(took @ self.jobs.gpus[first])
        # If nothing can run, a round passes until the policy is asked again
        self.now += float(took.max(initial=0.0)) or self.setting.round_s
        self.rounds += 1

    def _run_jobs(self, numbers: Indices, others: Indices, types: Indices) -> Floats:
        """Run whole steps for at most one round, next to the others. Returns how long they took."""
        speed = _speeds(self.setting.speeds, self.jobs.classes[numbers], self._class_of(others), types)
        steps = np.minimum(np.floor(speed * self.setting.round_s), self.remaining[numbers])
        self.remaining[numbers] -= steps
        took: Floats = steps / speed
        ended = self.remaining[numbers] <= 0
        if ended.any():
            self.ended_s[numbers[ended]] = self.now + took[ended]
            self.active = [number for number in self.active if self.remaining[number] > 0]
            self._changed = True
        return took

    def _class_of(self, numbers: Indices) -> Indices:
        return np.where(numbers == ALONE, ALONE, self.jobs.classes[numbers])


def _speeds(speeds: Speeds, classes: Ints, others: Indices, types: Indices) -> Floats:
    """The speed of jobs of these classes next to jobs of the other classes, if any."""
    alone: Floats = speeds.alone[classes, types]
    if speeds.shared is None:
        return alone
    return np.where(others == ALONE, alone, speeds.shared[classes, others, types])


def replay_in_rounds(
    jobs: RoundJobs, policy: RoundPolicy, setting: RoundSetting, until_ended: range | None = None
) -> RoundOutcome:
    """Replay the jobs, until those of the range have ended; default: all."""
    return RoundReplay(jobs, policy, setting).run_until_ended(until_ended or range(len(jobs.submit_s)))
