"""How often a training should save: Young's and Daly's interval, from its own failures and its measured stall. Pure.

With a mean time M between failures and a save that holds training up for d, an interval t costs d / t for saving and
about t / 2M for what is done again. Young's optimum is sqrt(2 d M); Daly's higher-order estimate ("A higher order
estimate of the optimum checkpoint interval for restart dumps", 2006) holds also where d is no longer small against M.
Only the part of a save that blocks training counts: what a background process writes costs no step.

Few failures say little of their rate. M is the time that was run by n + 0.7 failures, the middle of what a Poisson
count of n leaves likely; so a job that never failed gets an answer too, and one that grows more certain as it runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from statistics import median

UNSEEN_FAILURES = 0.7


@dataclass(frozen=True, kw_only=True)
class CheckpointAdvice:
    """`usual_s` and `usual_waste` are what the job does now, where it has saved often enough to tell."""

    every_s: float
    mttf_s: float
    failures: int
    ran_s: float
    stall_s: float
    waste: float
    usual_s: float | None = None
    usual_waste: float | None = None

    @property
    def every(self) -> timedelta:
        return timedelta(seconds=round(self.every_s))

    @property
    def saved_fraction(self) -> float:
        """The part of its time that following it saves."""
        return max(0.0, (self.usual_waste or self.waste) - self.waste)

    @property
    def why(self) -> str:
        failed = f"{self.failures} failure{'' if self.failures == 1 else 's'}"
        told = f"{failed} in {self.ran_s / 3600:.1f} h, and a save holds it up for {self.stall_s:.2g} s"
        if self.usual_s is None or self.saved_fraction < 0.001:
            return f"{told}."
        return f"{told}. Saving every {self.usual_s:.0f} s as now costs {self.saved_fraction:.1%} more of its time."


def optimal_interval_s(*, mttf_s: float, stall_s: float) -> float:
    """Daly's interval between the end of a save and the beginning of the next."""
    if stall_s <= 0 or mttf_s <= 0:
        raise ValueError("mttf_s, stall_s: both must be above 0")
    if stall_s >= 2 * mttf_s:
        return mttf_s
    part = math.sqrt(stall_s / (2 * mttf_s))
    return math.sqrt(2 * stall_s * mttf_s) * (1 + part / 3 + part * part / 9) - stall_s


def waste(interval_s: float, *, mttf_s: float, stall_s: float) -> float:
    """The part of the time that goes into saving, and into doing again what was not saved; first order."""
    whole = interval_s + stall_s
    return min(1.0, stall_s / whole + whole / (2 * mttf_s))


def advise_checkpoint_interval(
    *, failures: int, ran_s: float, stalls_s: Sequence[float], saved_s: Sequence[float]
) -> CheckpointAdvice | None:
    """`saved_s` are moments of saves, in order. None: it has not run, or nobody knows what a save costs."""
    known = [stall for stall in stalls_s if stall > 0]
    if not known or ran_s <= 0:
        return None
    stall_s, mttf_s = median(known), ran_s / (failures + UNSEEN_FAILURES)
    every_s = optimal_interval_s(mttf_s=mttf_s, stall_s=stall_s)
    gaps = [later - at for at, later in pairwise(saved_s) if later > at]
    usual_s = median(gaps) if gaps else None
    return CheckpointAdvice(
        every_s=every_s,
        mttf_s=mttf_s,
        failures=failures,
        ran_s=ran_s,
        stall_s=stall_s,
        waste=waste(every_s, mttf_s=mttf_s, stall_s=stall_s),
        usual_s=usual_s,
        usual_waste=None if usual_s is None else waste(usual_s, mttf_s=mttf_s, stall_s=stall_s),
    )
