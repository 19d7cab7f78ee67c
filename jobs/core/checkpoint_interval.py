"""Calculates how often a training job should save checkpoints, from its own failures and measured stalls. Pure.

With a mean time M between failures and a save that stalls training for d, an interval t costs d / t for saving and
about t / 2M for work that is repeated after a failure. Young's optimum is sqrt(2 d M). Daly's higher-order estimate ("A
higher order estimate of the optimum checkpoint interval for restart dumps", 2006) also holds where d is not small
compared with M. Only the part of a save that blocks training counts: background writes cost no step.

A few failures are a weak estimate of the failure rate. M is therefore the run time divided by n + 0.7 failures, which
is near the median of the rates that explain a Poisson count of n. A job that has never failed also gets an answer, and
the answer becomes more certain as the job runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from statistics import median
from typing import Any

# Added to the observed failures, so that a job without failures has a finite mean time between failures
UNSEEN_FAILURES = 0.7


@dataclass(frozen=True, kw_only=True)
class CheckpointAdvice:
    """The recommended interval. The `current_…` fields describe the interval of a job that has saved often enough."""

    interval_s: float
    mttf_s: float
    failures: int
    ran_s: float
    stall_s: float
    lost_fraction: float
    current_interval_s: float | None = None
    current_lost_fraction: float | None = None

    @property
    def every(self) -> timedelta:
        return timedelta(seconds=round(self.interval_s))

    @property
    def saved_fraction(self) -> float:
        """The part of the job's time that the recommended interval saves."""
        # Not negative: measured gaps vary, and the estimate is of first order
        return max(0.0, (self.current_lost_fraction or self.lost_fraction) - self.lost_fraction)

    @property
    def why(self) -> str:
        count = f"{self.failures} failure{'' if self.failures == 1 else 's'}"
        summary = f"{count} in {self.ran_s / 3600:.1f} h; each save stalls training for {self.stall_s:.2g} s"
        if self.current_interval_s is None or self.saved_fraction < 0.001:
            return f"{summary}."
        current = f"The current interval of {self.current_interval_s:.0f} s"
        return f"{summary}. {current} costs {self.saved_fraction:.1%} more run time."


def optimal_interval_s(*, mttf_s: float, stall_s: float) -> float:
    """Return Daly's interval between the end of one save and the start of the next."""
    if stall_s <= 0 or mttf_s <= 0:
        raise ValueError("mttf_s, stall_s: both must be above 0")
    # Daly's approximation is only defined below this limit
    if stall_s >= 2 * mttf_s:
        return mttf_s
    ratio = math.sqrt(stall_s / (2 * mttf_s))
    return math.sqrt(2 * stall_s * mttf_s) * (1 + ratio / 3 + ratio * ratio / 9) - stall_s


def lost_fraction(interval_s: float, *, mttf_s: float, stall_s: float) -> float:
    """Return the part of the time that is spent on saving and on repeating unsaved work (first-order estimate)."""
    cycle_s = interval_s + stall_s
    return min(1.0, stall_s / cycle_s + cycle_s / (2 * mttf_s))


def advise_checkpoint_interval(
    *, failures: int, ran_s: float, stalls_s: Sequence[float], saved_s: Sequence[float]
) -> CheckpointAdvice | None:
    """Return the recommended interval, or None if the job has not run yet or has reported no stall.

    `saved_s` are the times of saves in ascending order.
    """
    stalls = [stall for stall in stalls_s if stall > 0]
    if not stalls or ran_s <= 0:
        return None
    # The median, because single saves may be delayed by other load on the storage
    stall_s, mttf_s = median(stalls), ran_s / (failures + UNSEEN_FAILURES)
    interval_s = optimal_interval_s(mttf_s=mttf_s, stall_s=stall_s)
    gaps = [later - at for at, later in pairwise(saved_s) if later > at]
    current_interval_s = median(gaps) if gaps else None
    return CheckpointAdvice(
        interval_s=interval_s,
        mttf_s=mttf_s,
        failures=failures,
        ran_s=ran_s,
        stall_s=stall_s,
        lost_fraction=lost_fraction(interval_s, mttf_s=mttf_s, stall_s=stall_s),
        current_interval_s=current_interval_s,
        current_lost_fraction=None
        if current_interval_s is None
        else lost_fraction(current_interval_s, mttf_s=mttf_s, stall_s=stall_s),
    )


CHECKPOINT_TEMPLATE_VARIABLE = (
    "ACME_CHECKPOINT_TEMPLATE"  # set in the job's environment, for example: --load {path} --iteration {step}
)


def resume_variables(resume: Mapping[str, Any], template: str) -> dict[str, str]:
    """Return the variables of the checkpoint to resume from, and its arguments built from the job's own template:
    `train.py $ACME_CHECKPOINT_ARGS`. A shell does not evaluate the value of a variable, so a path cannot inject a
    command."""
    if not resume:
        return {}
    path, step, skip = str(resume.get("path", "")), str(resume.get("step", "")), resume.get("skip")
    variables = {"ACME_CHECKPOINT": path, "ACME_CHECKPOINT_STEP": step}
    if skip:
        variables["ACME_SKIP_STEPS"] = f"{skip[0]}-{skip[1]}"
    if template and path:
        # {step} first: a path may contain the text {step}, a step cannot contain {path}
        arguments = template.replace("{step}", step).replace("{path}", path)
        variables["ACME_CHECKPOINT_ARGS"] = arguments
    return variables
