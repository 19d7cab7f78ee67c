"""Power in a replay: the budget that jobs start under, and the power of each job. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from jobs.core.gpu_shares import WHOLE_GPU
from jobs.core.lifecycle import JobKind
from jobs.traces.trace import Floats, Ints, Trace
from scheduling.engine.cluster import PowerBudget
from scheduling.power.rules.gpu_clocks import PowerFleet
from scheduling.power.rules.predictions import PeakHistory, peak_scopes
from scheduling.whatif.replay.power.profiles import PowerProfiles, draw_profiles

Watts = npt.NDArray[np.int64]
JOB_KINDS = frozenset(kind.value for kind in JobKind)
MAX_NAME_LENGTH = 120  # of a job of Acme


@dataclass(frozen=True, kw_only=True)
class PowerSetting:
    """The nodes are those of `PowerFleet`; how the power of jobs changes is drawn from published figures."""

    budget_kw: float | None = None  # of all nodes; None: only measured
    price_per_kwh: float | None = None
    has_sleep: bool = False  # report what sleeping nodes would save
    name: str = "cluster"

    def budget(self, fleet: PowerFleet) -> PowerBudget | None:
        """What the budget leaves for jobs above idle nodes; None without one."""
        if self.budget_kw is None:
            return None
        return PowerBudget(name=self.name, watts=max(0, int(self.budget_kw * 1000 - fleet.power_w(0, 0))))


@dataclass(frozen=True, kw_only=True)
class JobPower:
    """The power of the jobs of a trace, one row per job."""

    profiles: PowerProfiles
    watts: Watts | None  # what each is expected to need at its peak above idle GPUs; None without a budget

    def rows(self, chosen: npt.NDArray[np.intp]) -> JobPower:
        return JobPower(profiles=self.profiles.rows(chosen), watts=None if self.watts is None else self.watts[chosen])


def job_power(trace: Trace, fleet: PowerFleet, seed: int, *, has_budget: bool, knows_peaks: bool = False) -> JobPower:
    """Call it with the whole trace, so that the power of a job does not depend on which others are set aside.
    `knows_peaks`: the same jobs ran before, so predictions do not change with time."""
    profiles = draw_profiles(list(trace.kinds), trace.runtime_s, seed)
    predict = _known_peaks_w if knows_peaks else _peaks_at_submission_w
    watts = _watts(trace, predict(trace, profiles), fleet) if has_budget else None
    return JobPower(profiles=profiles, watts=watts)


def learned_peaks(trace: Trace, profiles: PowerProfiles, users: Sequence[object]) -> PeakHistory:
    """What a live cluster has learned when all jobs have ended. `users` are named by their codes."""
    history = PeakHistory()
    for scopes, peak_w in zip(_scopes(trace, users), profiles.peak_w.tolist(), strict=True):
        history.add(scopes, peak_w)
    return PeakHistory(history.counts())


def _scopes(trace: Trace, users: Sequence[object]) -> Iterator[tuple[str, str]]:
    for user, name, kind in zip(trace.users.codes.tolist(), trace.names, trace.kinds, strict=True):
        yield peak_scopes(str(users[user]), name[:MAX_NAME_LENGTH], kind_or_other(kind))


def kind_or_other(kind: str) -> str:
    return kind if kind in JOB_KINDS else JobKind.OTHER.value


def gpus_of_jobs(trace: Trace) -> Floats:
    """The GPUs of each job; a share counts as a part of one."""
    gpus: Floats = trace.gpus + trace.gpu_milli / WHOLE_GPU
    return gpus


def _watts(trace: Trace, peaks_w: Floats, fleet: PowerFleet) -> Watts:
    watts = np.ceil(gpus_of_jobs(trace) * fleet.watts_above_idle(peaks_w)).astype(np.int64)
    return np.maximum(1, watts)


def _known_peaks_w(trace: Trace, profiles: PowerProfiles) -> Floats:
    history, users = learned_peaks(trace, profiles, trace.users.words), trace.users.words
    return np.array([history.predicted_w(scopes) for scopes in _scopes(trace, users)])


def _peaks_at_submission_w(trace: Trace, profiles: PowerProfiles) -> Floats:
    columns = np.stack([trace.users.codes, trace.names.codes, trace.kinds.codes])
    _, similar = np.unique(columns, axis=1, return_inverse=True)
    return predicted_peaks_w(
        profiles.peak_w,
        trace.submit_s,
        trace.runtime_s,
        similar.ravel().astype(np.int32),
        trace.kinds.codes,
    )


def predicted_peaks_w(peak_w: Floats, submit_s: Floats, runtime_s: Floats, similar: Ints, kinds: Ints) -> Floats:
    """A prediction per job at its submission, from jobs that had ended then if they did not wait. `similar` and `kinds`
    are codes; the jobs are in order of submission.
    """
    history, ended_s = PeakHistory(), submit_s + runtime_s
    order = np.argsort(ended_s, kind="stable").tolist()
    keys = [(("similar", one), ("kind", kind)) for one, kind in zip(similar.tolist(), kinds.tolist(), strict=True)]
    found, ended = np.empty(len(submit_s)), 0
    for row, now_s in enumerate(submit_s.tolist()):
        while ended_s[order[ended]] <= now_s and order[ended] != row:
            history.add(keys[order[ended]], float(peak_w[order[ended]]))
            ended += 1
        found[row] = history.predicted_w(keys[row])
    return found
