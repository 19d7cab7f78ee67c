"""Replays a policy that shares GPUs by time: in rounds of some minutes, each GPU runs one job, or two that share it.

A round starts when the last job of the previous one stops. If jobs have come or ended, and the policy was not asked for
half an hour, it is asked again for the fraction of time of each job on each GPU type. Each type then takes the jobs
that have received the least of their fraction since then. GPUs that nobody has a claim to go to the jobs that are
behind from earlier decisions, and to those that have come since. Jobs run whole steps and lose nothing when they are
stopped. GPUs of a type are counted, not placed on nodes. Pure and reproducible.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from jobs.traces.trace import Floats, Ints
from scheduling.event_queue import EventQueue
from scheduling.research.rounds.values import (
    ALONE,
    GpuTypes,
    Indices,
    RoundJobs,
    RoundPolicy,
    RoundView,
    Speeds,
    TimeShares,
)

ROUND_S = 360.0
MIN_BETWEEN_DECISIONS_S = 1920.0
RowMembers = tuple[int, int, int]  # the number of the first job and of the second, and their GPUs


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


class DecisionRows:
    """What the rows of a decision are to receive on each GPU type, what they have received, and who goes first.

    Columns, with job numbers instead of positions.
    """

    def __init__(self, jobs: RoundJobs, speeds: Speeds, initial_s: float) -> None:
        self._jobs, self._speeds = jobs, speeds
        # What each row counts as having received at first, so that a row that has run goes behind one that has not
        self._initial_s = initial_s
        types = speeds.alone.shape[1]
        self.first = self.second = np.zeros(0, np.intp)
        self.fractions = self.received_s = np.zeros((0, types))
        self._able = np.zeros((0, types), bool)
        self.members: list[RowMembers] = []

    def add(self, shares: TimeShares, numbers: Indices) -> None:
        """Add rows. Their jobs are positions in `numbers`."""
        first = numbers[shares.first]
        second = np.where(shares.second == ALONE, ALONE, numbers[shares.second])
        received_s = np.full(shares.fractions.shape, self._initial_s)
        self.first = np.concatenate([self.first, first])
        self.second = np.concatenate([self.second, second])
        self.fractions = np.concatenate([self.fractions, shares.fractions])
        self.received_s = np.concatenate([self.received_s, received_s])
        self._able = np.concatenate([self._able, self._able_types(first, second)])
        gpus = self._jobs.gpus[first]
        self.members += zip(first.tolist(), second.tolist(), gpus.tolist(), strict=True)

    def _able_types(self, first: Indices, second: Indices) -> NDArray[np.bool_]:
        """Whether each row can run on each type: none of its jobs has a speed of 0."""
        types = np.arange(self._speeds.alone.shape[1])
        able = self.speeds(first[:, None], second[:, None], types) > 0
        paired = second != ALONE
        able[paired] &= self.speeds(second[paired, None], first[paired, None], types) > 0
        return able

    def speeds(self, numbers: Indices, others: Indices, types: Indices) -> Floats:
        """The speed of jobs on these types next to the others, if any."""
        classes: Ints = self._jobs.classes
        alone: Floats = self._speeds.alone[classes[numbers], types]
        if self._speeds.shared is None:
            return alone
        together = self._speeds.shared[classes[numbers], np.where(others == ALONE, 0, classes[others]), types]
        return np.where(others == ALONE, alone, together)

    def live(self, remaining: Floats) -> Indices:
        """Rows whose jobs have all not ended."""
        return np.flatnonzero((remaining[self.first] > 0) & ((self.second == ALONE) | (remaining[self.second] > 0)))

    def in_order(self, rows: Indices, gpu_type: int, behind_s: Floats) -> list[int]:
        """Those of the rows that can run on this type: the one that received the least of its fraction first, then by
        what its job is behind.
        """
        claims = self.fractions[rows, gpu_type] / self.received_s[rows, gpu_type]
        # A pair without a claim would run at a speed that nobody chose
        able = self._able[rows, gpu_type] & ((claims > 0) | (self.second[rows] == ALONE))
        rows, claims = rows[able], claims[able]
        ordered: list[int] = rows[np.lexsort((-behind_s[self.first[rows], gpu_type], -claims))].tolist()
        return ordered

    def add_arrears(self, behind_s: Floats, elapsed_s: float) -> None:
        """Add to each job what it should have received in this time, less what it has received."""
        behind = self.fractions * elapsed_s - (self.received_s - self._initial_s)
        np.add.at(behind_s, self.first, behind)
        paired = self.second != ALONE
        np.add.at(behind_s, self.second[paired], behind[paired])


class RoundReplay:
    """The state between two rounds."""

    def __init__(self, jobs: RoundJobs, policy: RoundPolicy, setting: RoundSetting) -> None:
        types = len(setting.types.counts)
        self._jobs, self._policy, self._setting = jobs, policy, setting
        self._events = EventQueue()
        self._now = 0.0
        self._active: list[int] = []
        self._arrived = 0
        self._remaining = np.array(jobs.steps, float)
        self._ended_s = np.full(len(jobs.steps), math.nan)
        self._rounds = self._decisions = 0
        self._busy_gpu_s = 0.0
        self._random = Random(setting.seed)
        self._type_order = list(range(types))
        self._asked_at = -math.inf
        self._changed = False  # jobs have come or ended since the policy was asked
        self._rows = self._no_rows()
        self._behind_s = np.zeros((len(jobs.steps), types))  # due minus received, over all earlier decisions

    def run_until_ended(self, numbers: range) -> RoundOutcome:
        """Run rounds until these jobs have ended."""
        self._watched = np.array(numbers)
        self._events.at(0.0, self._run_round)
        self._events.run()
        return RoundOutcome(
            ended_s=self._ended_s,
            rounds=self._rounds,
            decisions=self._decisions,
            busy_gpu_s=self._busy_gpu_s,
            end_s=self._now,
        )

    def _run_round(self, _: None, now: float) -> None:
        """One round, which plans the next one. Without a job to run, the next one begins when a job comes."""
        self._now = now
        if not np.isnan(self._ended_s[self._watched]).any():
            return
        self._admit_jobs()
        if not self._active:
            self._events.at(float(self._jobs.submit_s[self._arrived]), self._run_round)
            return
        if self._changed and now - self._asked_at >= self._setting.decision_s:
            self._ask_policy()
        self._events.at(now + self._run(*self._assignments()), self._run_round)

    def _no_rows(self) -> DecisionRows:
        return DecisionRows(self._jobs, self._setting.speeds, self._setting.round_s / 2)

    def _admit_jobs(self) -> None:
        """Add the jobs that have come. Until the next decision they have no claim."""
        arrived = int(np.searchsorted(self._jobs.submit_s, self._now, side="right"))
        if arrived > self._arrived:
            new = np.arange(self._arrived, arrived)
            self._rows.add(TimeShares.alone(np.zeros((len(new), len(self._type_order)))), new)
            self._active += new.tolist()
            self._arrived, self._changed = arrived, True

    def _ask_policy(self) -> None:
        """Note how far each job is behind, then get new fractions."""
        if self._decisions:
            self._rows.add_arrears(self._behind_s, self._now - self._asked_at)
        numbers = np.array(self._active, np.intp)
        self._rows = self._no_rows()
        self._rows.add(self._policy.shares(self._view(numbers)), numbers)
        self._asked_at = self._now
        self._changed = False
        self._decisions += 1

    def _view(self, numbers: Indices) -> RoundView:
        jobs = self._jobs
        return RoundView(
            now=self._now,
            types=self._setting.types,
            speeds=self._setting.speeds,
            numbers=numbers,
            classes=jobs.classes[numbers],
            gpus=jobs.gpus[numbers],
            age_s=self._now - jobs.submit_s[numbers],
            remaining=self._remaining[numbers],
        )

    # One round

    def _assignments(self) -> tuple[Indices, Indices]:
        """Who runs where in the next round, as rows and their types."""
        if not self._policy.aware:
            self._random.shuffle(self._type_order)
        live = self._rows.live(self._remaining)
        busy = {ALONE: False}
        rows: list[int] = []
        types: list[int] = []
        for gpu_type in self._type_order:
            taken = self._take_rows(self._rows.in_order(live, gpu_type, self._behind_s), gpu_type, busy)
            rows += taken
            types += [gpu_type] * len(taken)
        return np.array(rows, np.intp), np.array(types, np.intp)

    def _take_rows(self, ordered: list[int], gpu_type: int, busy: dict[int, bool]) -> list[int]:
        """The rows that get GPUs of this type in this round. Their jobs become busy."""
        left = int(self._setting.types.counts[gpu_type])
        members = self._rows.members
        taken: list[int] = []
        for row in ordered:
            if left <= 0:
                break
            first, second, gpus = members[row]
            if gpus <= left and not busy.get(first) and not busy.get(second):
                left -= gpus
                busy[first] = True
                busy[second] = second != ALONE
                taken.append(row)
        return taken

    def _run(self, rows: Indices, types: Indices) -> float:
        """Let the rows run for one round, and end the jobs that finish. Returns how long the round took."""
        first, second = self._rows.first[rows], self._rows.second[rows]
        paired = second != ALONE
        took = self._run_jobs(first, second, types)
        took[paired] = np.maximum(took[paired], self._run_jobs(second[paired], first[paired], types[paired]))
        self._rows.received_s[rows, types] += took
        self._busy_gpu_s += float(took @ self._jobs.gpus[first])
        self._rounds += 1
        # If nothing can run, a round passes until the policy is asked again
        return float(took.max(initial=0.0)) or self._setting.round_s

    def _run_jobs(self, numbers: Indices, others: Indices, types: Indices) -> Floats:
        """Run whole steps for at most one round, next to the others. Returns how long they took."""
        speed = self._rows.speeds(numbers, others, types)
        steps = np.minimum(np.floor(speed * self._setting.round_s), self._remaining[numbers])
        self._remaining[numbers] -= steps
        took: Floats = steps / speed
        ended = self._remaining[numbers] <= 0
        if ended.any():
            self._ended_s[numbers[ended]] = self._now + took[ended]
            self._active = [number for number in self._active if self._remaining[number] > 0]
            self._changed = True
        return took


def replay_in_rounds(
    jobs: RoundJobs, policy: RoundPolicy, setting: RoundSetting, until_ended: range | None = None
) -> RoundOutcome:
    """Replay the jobs, until those of the range have ended; default: all."""
    return RoundReplay(jobs, policy, setting).run_until_ended(until_ended or range(len(jobs.submit_s)))
