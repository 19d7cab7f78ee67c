"""Small clusters of two GPU types and jobs for replays in rounds."""

import numpy as np

from scheduling.research.rounds.replay import RoundSetting, replay_in_rounds
from scheduling.research.rounds.values import GpuTypes, RoundJobs, RoundPolicy, RoundView, Speeds, TimeShares

ROUND_S = 100.0


def types(fast=1, slow=1):
    return GpuTypes(names=("fast", "slow"), counts=np.array([fast, slow], float))


def speeds(*rows, shared=None):
    return Speeds(alone=np.array(rows, float), shared=None if shared is None else np.array(shared, float))


def jobs(*rows):
    """Rows of (submitted, steps, class, GPUs)."""
    submit_s, steps, classes, gpus = zip(*rows, strict=True)
    return RoundJobs(
        submit_s=np.array(submit_s, float),
        steps=np.array(steps, float),
        classes=np.array(classes, np.int32),
        gpus=np.array(gpus, np.int32),
    )


def replayed(policy, workload, *, gpus=None, table, decision_s=0.0, until=None):
    setting = RoundSetting(types=gpus or types(), speeds=table, round_s=ROUND_S, decision_s=decision_s)
    return replay_in_rounds(workload, policy, setting, until)


def view(table, *rows, gpus=None, now=0.0):
    """A view of jobs, as rows of (age, remaining steps, class, GPUs)."""
    age_s, remaining, classes, wide = zip(*rows, strict=True)
    return RoundView(
        now=now,
        types=gpus or types(),
        speeds=table,
        numbers=np.arange(len(rows)),
        classes=np.array(classes, np.int32),
        gpus=np.array(wide, np.int32),
        age_s=np.array(age_s, float),
        remaining=np.array(remaining, float),
    )


class FixedShares(RoundPolicy):
    """The given fractions for each job, by number."""

    name = "fixed"

    def __init__(self, *fractions, pairs=()):
        self.fractions = np.array(fractions, float)
        self.pairs = pairs
        self.asked_at = []

    def shares(self, view):
        self.asked_at.append(view.now)
        shares = TimeShares.alone(self.fractions[view.numbers])
        for first, second, fractions in self.pairs:
            if {first, second} <= set(view.numbers.tolist()):
                places = [np.flatnonzero(view.numbers == number) for number in (first, second)]
                shares = shares.with_pairs(*places, np.array([fractions], float))
        return shares
