"""What the rows of a decision are to receive on each GPU type, what they have received, and who goes first."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from jobs.traces.trace import Floats, Ints
from scheduling.replay.rounds.values import ALONE, Indices, RoundJobs, Speeds, TimeShares

RowMembers = tuple[int, int, int]  # the number of the first job and of the second, and their GPUs


class DecisionRows:
    """The rows of the current decision as columns, with job numbers instead of positions."""

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
