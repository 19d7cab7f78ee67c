"""The jobs of a replay as a schedule for `scheduling.power.budget_run`. Pure."""

from __future__ import annotations

import numpy as np

from scheduling.power.budget_run import PowerJobs
from scheduling.power.power_profiles import LOW_PRIORITY_KINDS
from scheduling.replay.power_setting import gpus_of_jobs
from scheduling.replay.run import PolicyRun


class PowerUnavailable(ValueError):
    """A sentence for the caller."""


def power_jobs(run: PolicyRun) -> PowerJobs:
    """The jobs that ran, in order of their starts. The run must have the power of its jobs (`ReplaySetting.power`).
    Raise PowerUnavailable if jobs were stopped.
    """
    assert run.power is not None
    if run.stops.any():
        raise PowerUnavailable(f"policy: {run.policy} stopped jobs. Use one without preemption, such as fifo-skip.")
    ran = np.flatnonzero(np.isfinite(run.ended_s))
    rows = ran[np.argsort(run.started_s[ran], kind="stable")]
    trace = run.trace.rows(rows)
    return PowerJobs(
        start_s=run.started_s[rows],
        work_s=run.held_s[rows],
        gpus=gpus_of_jobs(trace),
        is_low=np.isin(np.array(list(trace.kinds)), sorted(LOW_PRIORITY_KINDS)),
        profiles=run.power.profiles.rows(rows),
    )
