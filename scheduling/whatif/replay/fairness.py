"""How evenly a replay treated its users. Pure.

Slowdown         how many times longer a job took than alone on an empty cluster
Finish-time      how many times longer a job took than on 1/N of the cluster, where N is the average number of users
ratio            present at the same time (Themis, NSDI'20, calls it rho). At most 1 is a fair share
Jain's index     over the mean slowdowns of users: 1 is even, one divided by the number of users if one has everything
"""

from __future__ import annotations

import numpy as np

from jobs.traces.trace import Floats
from scheduling.whatif.replay.run import PolicyRun

MIN_RUN_TIME_S = 10.0  # shorter jobs count as this long, as is customary


def fairness(run: PolicyRun) -> dict[str, float]:
    """All measures of one run; 1.0 for each if no job ended."""
    ended = np.isfinite(run.ended_s)
    if not ended.any():
        names = ("jain", "mean_slowdown", "worst_user_slowdown", "finish_time_ratio_mean", "finish_time_ratio_max")
        return dict.fromkeys(names, 1.0) | {"finish_time_ratio_p90": 1.0, "finish_time_jain": 1.0}
    took = (run.ended_s - run.trace.submit_s)[ended]
    alone = np.maximum(run.trace.runtime_s[ended], MIN_RUN_TIME_S)
    slowdown = np.maximum(1.0, took / alone)
    users = run.trace.users.codes[ended]
    by_user = _means(users, slowdown)
    ratio = np.maximum(took, MIN_RUN_TIME_S) / (alone * _fair_share_slowdown(run)[ended])
    return {
        "jain": jain(by_user),
        "mean_slowdown": float(slowdown.mean()),
        "worst_user_slowdown": float(by_user.max()),
        "finish_time_ratio_mean": float(ratio.mean()),
        "finish_time_ratio_p90": float(np.percentile(ratio, 90)),
        "finish_time_ratio_max": float(ratio.max()),
        "finish_time_jain": jain(_means(users, ratio)),
    }


def jain(values: Floats) -> float:
    """Jain's fairness index of the values."""
    return float(values.sum() ** 2 / (len(values) * (values**2).sum()))


def _means(users: np.ndarray[tuple[int, ...], np.dtype[np.int32]], values: Floats) -> Floats:
    jobs = np.bincount(users)
    means: Floats = np.bincount(users, values)[jobs > 0] / jobs[jobs > 0]
    return means


def _fair_share_slowdown(run: PolicyRun) -> Floats:
    """How many times longer each job would take on its user's share; above 1 only if the job is wider than the
    share.
    """
    part = run.setting.gpus / _mean_active_users(run)
    squeeze: Floats = np.maximum(1.0, run.trace.gpus / part)
    return squeeze


def _mean_active_users(run: PolicyRun) -> float:
    """The mean number of users with a job in the system, over the time in which there is any job."""
    users, submit, ended = run.trace.users.codes, run.trace.submit_s, run.ended_s
    last = np.where(np.isfinite(ended), ended, np.nanmax(ended))
    order = np.lexsort((submit, users))
    user, begin, end = users[order], submit[order], np.maximum(last, submit)[order]
    # Per user, the union of the jobs' times: each job adds what lies beyond the latest earlier end
    reach = _latest_end_before(user, end)
    present = np.maximum(0.0, end - np.maximum(begin, reach)).sum()
    whole = _latest_end_before(np.zeros_like(user), end[np.argsort(begin, kind="stable")])
    begins = np.sort(begin, kind="stable")
    ends = end[np.argsort(begin, kind="stable")]
    any_present = np.maximum(0.0, ends - np.maximum(begins, whole)).sum()
    return max(1.0, float(present / any_present)) if any_present else 1.0


def _latest_end_before(user: np.ndarray[tuple[int, ...], np.dtype[np.int32]], end: Floats) -> Floats:
    """For each row, the latest end of earlier rows of the same user. Rows must be grouped by user."""
    reach = np.full(len(end), -np.inf)
    starts = np.flatnonzero(np.r_[True, user[1:] != user[:-1]])
    for first, after in zip(starts.tolist(), [*starts[1:].tolist(), len(end)], strict=True):
        np.maximum.accumulate(end[first : after - 1], out=reach[first + 1 : after])
    return reach
