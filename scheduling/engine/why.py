"""The full explanation for one waiting job: its blockers with the jobs behind them, and what would start it now.

A turn stores one sentence per job. This module computes the complete answer for a single job when a user asks for it.
The answer depends on the reader: jobs of teams for which `sees` returns False are counted, never named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from jobs.core.gpu_shares import WHOLE_GPU, GpuNumber, gpu_number
from jobs.core.slurm_notation import format_count
from scheduling.engine.blockers import Blocker, BlockerKind, CanSeeTeam, Holder
from scheduling.engine.changes import SuggestedChange, find_waiting_job
from scheduling.engine.cluster import ClusterSnapshot, QuotaView, RunningJob, WaitingJob
from scheduling.engine.counterfactual import smallest_changes
from scheduling.engine.engine import PolicyRules
from scheduling.engine.explain import WaitExplainer
from scheduling.engine.live import SnapshotEngine, engine_after_turn
from scheduling.engine.resources import members
from scheduling.engine.run_time_estimates import expected_end

MAX_NAMED_HOLDERS = 5


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """The explanation of one job. Without blockers, the job starts in the next turn."""

    at: datetime
    blockers: tuple[Blocker, ...]
    changes: tuple[SuggestedChange, ...]


def explain_wait(
    snapshot: ClusterSnapshot, rules: Callable[[], PolicyRules], job_id: int, sees: CanSeeTeam
) -> Explanation:
    """Explain why a job waits. Runs at least two turns on the snapshot, and many more to find the changes."""
    blockers = wait_blockers(snapshot, rules, job_id, sees)
    changes = smallest_changes(snapshot, rules, job_id, sees=sees) if blockers else ()
    return Explanation(at=snapshot.now, blockers=blockers, changes=changes)


def wait_blockers(
    snapshot: ClusterSnapshot, rules: Callable[[], PolicyRules], job_id: int, sees: CanSeeTeam
) -> tuple[Blocker, ...]:
    """What blocks a job, the most important first, at the cost of one turn. Empty if it starts in this turn."""
    return _BlockerDetails(snapshot, rules(), job_id, sees).blockers()


class _BlockerDetails:
    """The blockers of one job after a turn, completed with the jobs that hold what it lacks."""

    def __init__(self, snapshot: ClusterSnapshot, rules: PolicyRules, job_id: int, sees: CanSeeTeam) -> None:
        self._snapshot = snapshot
        self._sees = sees
        self._job = find_waiting_job(snapshot, job_id)
        self._gates = tuple(self._job.gate_blockers(snapshot.now))
        self._snapshot_engine: SnapshotEngine = engine_after_turn(snapshot, rules)
        self._explainer = WaitExplainer(
            self._snapshot_engine.engine, self._snapshot_engine.jobs, self._snapshot_engine.order, snapshot.now
        )

    def blockers(self) -> tuple[Blocker, ...]:
        """The blockers, ranked: gates first, then the borrowers that must stop, then what the turn found."""
        if self._gates:
            return self._gates
        if claim := self._snapshot_engine.claims.waits.get(self._job.id):
            return claim.blockers
        at = {self._snapshot_engine.jobs[job.number][1].id: job for job in self._explainer.waiting}
        job = at.get(self._job.id)
        return tuple(self._with_holders(blocker) for blocker in self._explainer.ranked_blockers(job)) if job else ()

    def _with_holders(self, blocker: Blocker) -> Blocker:
        match blocker.kind:
            case BlockerKind.QUOTA:
                return self._quota_details(blocker)
            case BlockerKind.CAPACITY | BlockerKind.TOPOLOGY:
                return replace(blocker, holders=self._holders(self._jobs_on_matching_nodes()))
            case BlockerKind.ARRAY:
                tasks = [job for job in self._snapshot.running if job.array == self._job.array]
                return replace(blocker, jobs=len(tasks), holders=self._holders(tasks))
            case BlockerKind.PRIORITY:
                return self._jobs_ahead_details(blocker)
            case BlockerKind.RESERVATION if self._snapshot_engine.engine.reservation.current:
                return self._reservation_details(blocker)
        return blocker

    def _quota_details(self, blocker: Blocker) -> Blocker:
        full = [quota for quota in self._snapshot.quotas if self._quota_excess(quota) > 0]
        if not full:
            return blocker
        worst = max(full, key=self._quota_excess)
        over = self._quota_excess(worst)
        return replace(blocker, gpus=over, holders=self._holders(self._jobs_under_quota(worst)))

    def _jobs_under_quota(self, quota: QuotaView) -> list[RunningJob]:
        """Running jobs that count against the quota."""
        team_jobs = [job for job in self._snapshot.running if job.team == quota.team and not job.preemptible]
        of_model = [job for job in team_jobs if quota.gpu_model in ("", self._snapshot.gpu_model(job))]
        return [job for job in of_model if quota.kind in (None, job.kind)]

    def _quota_excess(self, quota: QuotaView) -> int:
        """GPUs by which this job would exceed the quota; 0 or less if it fits or the quota does not apply."""
        if not quota.applies_to(self._job):
            return 0
        held = sum(job.charged_milli for job in self._jobs_under_quota(quota))
        return -(-(held + self._job.need.charged_milli) // WHOLE_GPU) - quota.gpus

    def _jobs_on_matching_nodes(self) -> list[RunningJob]:
        """Jobs that run on nodes on which this job could run."""
        resources = self._snapshot_engine.engine.resources
        able = resources.matching_nodes(self._job.need) & resources.usable
        ids = {resources.nodes[number].id for number in members(able)}
        return [job for job in self._snapshot.running if not ids.isdisjoint(job.places)]

    def _jobs_ahead_details(self, blocker: Blocker) -> Blocker:
        before: list[WaitingJob] = []
        for job in self._explainer.waiting:
            other = self._snapshot_engine.jobs[job.number][1]
            if other.id == self._job.id:
                break
            before.append(other)
        gpus = gpu_number(sum(job.need.charged_milli for job in before))
        more = (
            f" In total, {format_count(len(before), 'job')} with {format_count(gpus, 'GPU')} are ahead."
            if len(before) > 1
            else ""
        )
        return replace(
            blocker, why=blocker.why + more, gpus=gpus, jobs=len(before), holders=self._holders(before, first=True)
        )

    def _reservation_details(self, blocker: Blocker) -> Blocker:
        head = self._snapshot_engine.jobs[self._snapshot_engine.engine.reservation.current.job.number][1]
        return replace(blocker, holders=self._holders([head]))

    def _holders(self, jobs: Iterable[RunningJob | WaitingJob], *, first: bool = False) -> tuple[Holder, ...]:
        """The largest holders by name (or the first in the queue), the others by team, hidden teams together."""
        holders = [self._holder(job) for job in jobs]
        if not first:
            holders.sort(key=lambda one: (-one.gpus, one.job))
        visible = [one for one in holders if one.team]
        by_team: dict[str, list[Holder]] = {}
        for one in visible[MAX_NAMED_HOLDERS:]:
            by_team.setdefault(one.team, []).append(one)
        hidden = [one for one in holders if not one.team]
        groups = [*((team, by_team[team]) for team in sorted(by_team)), *([("", hidden)] if hidden else [])]
        grouped = [Holder(team=team, jobs=len(members), gpus=_sum_of_gpus(members)) for team, members in groups]
        return (*visible[:MAX_NAMED_HOLDERS], *grouped)

    def _holder(self, job: RunningJob | WaitingJob) -> Holder:
        gpus = gpu_number(job.charged_milli if isinstance(job, RunningJob) else job.need.charged_milli)
        if not self._sees(job.team):
            return Holder(gpus=gpus)
        ends_at = expected_end_at = None
        if isinstance(job, RunningJob):
            ends_at = job.started_at + job.time_limit if job.started_at and job.time_limit else None
            expected_end_at = expected_end(self._snapshot, job)
        return Holder(
            gpus=gpus, job=job.name, title=job.title, team=job.team, ends_at=ends_at, expected_end_at=expected_end_at
        )


def _sum_of_gpus(holders: Iterable[Holder]) -> GpuNumber:
    return gpu_number(sum(round(one.gpus * WHOLE_GPU) for one in holders))
