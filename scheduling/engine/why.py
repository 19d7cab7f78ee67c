"""One waiting job, in full: what keeps it back with who holds it, and what would start it now.

A turn says this in a sentence for everybody; here one job gets the whole answer, when somebody asks. It is written for
the reader: jobs of teams that `sees` denies are counted, never named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from jobs.core.slurm_notation import format_count
from scheduling.engine.blockers import Blocker, BlockerKind, CanSeeTeam, Holder, gate_blockers
from scheduling.engine.changes import SuggestedChange, find_waiting_job
from scheduling.engine.cluster import ClusterSnapshot, QuotaView, RunningJob, WaitingJob
from scheduling.engine.counterfactual import smallest_changes
from scheduling.engine.explain import WaitExplainer
from scheduling.engine.live import SnapshotEngine, engine_after_turn
from scheduling.engine.room import members
from scheduling.engine.rules import PolicyRules

MAX_NAMED_HOLDERS = 5


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """No blockers: it starts with the next turn."""

    at: datetime
    blockers: tuple[Blocker, ...]
    changes: tuple[SuggestedChange, ...]


def explain_wait(
    picture: ClusterSnapshot, rules: Callable[[], PolicyRules], job_id: int, sees: CanSeeTeam
) -> Explanation:
    blockers = _BlockerDetails(picture, rules(), job_id, sees).blockers()
    changes = smallest_changes(picture, rules, job_id, sees=sees) if blockers else ()
    return Explanation(at=picture.now, blockers=blockers, changes=changes)


class _BlockerDetails:
    def __init__(self, picture: ClusterSnapshot, rules: PolicyRules, job_id: int, sees: CanSeeTeam) -> None:
        self._picture = picture
        self._sees = sees
        self._asked = find_waiting_job(picture, job_id)
        self._shut = tuple(gate_blockers(self._asked, picture.now))
        self._opened: SnapshotEngine = engine_after_turn(picture, rules)
        self._telling = WaitExplainer(self._opened.engine, self._opened.jobs, self._opened.order, picture.now)

    def blockers(self) -> tuple[Blocker, ...]:
        if self._shut:
            return self._shut
        if claim := self._opened.claims.waits.get(self._asked.id):
            return claim.blockers
        at = {self._opened.jobs[job.number][1].id: job for job in self._telling.waiting}
        job = at.get(self._asked.id)
        return tuple(self._with_holders(one) for one in self._telling.told(job)) if job else ()

    def _with_holders(self, blocker: Blocker) -> Blocker:
        match blocker.kind:
            case BlockerKind.QUOTA:
                return self._quota_details(blocker)
            case BlockerKind.CAPACITY | BlockerKind.TOPOLOGY:
                return replace(blocker, holders=self._holders(self._jobs_on_matching_nodes()))
            case BlockerKind.ARRAY:
                tasks = [job for job in self._picture.running if job.array == self._asked.array]
                return replace(blocker, jobs=len(tasks), holders=self._holders(tasks))
            case BlockerKind.PRIORITY:
                return self._jobs_ahead_details(blocker)
            case BlockerKind.RESERVATION if self._opened.engine.promise:
                return self._reservation_details(blocker)
        return blocker

    def _quota_details(self, blocker: Blocker) -> Blocker:
        full = [quota for quota in self._picture.quotas if self._quota_excess(quota) > 0]
        if not full:
            return blocker
        worst = max(full, key=self._quota_excess)
        over = self._quota_excess(worst)
        return replace(blocker, gpus=over, holders=self._holders(self._jobs_under_quota(worst)))

    def _jobs_under_quota(self, quota: QuotaView) -> list[RunningJob]:
        theirs = [job for job in self._picture.running if job.team == quota.team and not job.preemptible]
        return [job for job in theirs if quota.kind in (None, job.kind)]

    def _quota_excess(self, quota: QuotaView) -> int:
        if quota.team != self._asked.team or quota.kind not in (None, self._asked.kind):
            return 0
        return sum(job.gpus for job in self._jobs_under_quota(quota)) + self._asked.need.total_gpus - quota.gpus

    def _jobs_on_matching_nodes(self) -> list[RunningJob]:
        """Who runs where it might run."""
        room = self._opened.engine.room
        able = room.able(self._asked.need) & room.usable
        ids = {room.nodes[number].id for number in members(able)}
        return [job for job in self._picture.running if not ids.isdisjoint(job.places)]

    def _jobs_ahead_details(self, blocker: Blocker) -> Blocker:
        before: list[WaitingJob] = []
        for job in self._telling.waiting:
            other = self._opened.jobs[job.number][1]
            if other.id == self._asked.id:
                break
            before.append(other)
        gpus = sum(job.need.total_gpus for job in before)
        more = (
            f" In all {format_count(len(before), 'job')} with {format_count(gpus, 'GPU')} are ahead."
            if len(before) > 1
            else ""
        )
        return replace(
            blocker, why=blocker.why + more, gpus=gpus, jobs=len(before), holders=self._holders(before, first=True)
        )

    def _reservation_details(self, blocker: Blocker) -> Blocker:
        head = self._opened.jobs[self._opened.engine.promise.job.number][1]
        return replace(blocker, holders=self._holders([head]))

    def _holders(self, jobs: Iterable[RunningJob | WaitingJob], *, first: bool = False) -> tuple[Holder, ...]:
        """The largest by name, or the first in the queue; the rest by team, and the teams one may not see together."""
        holders = [self._holder(job) for job in jobs]
        if not first:
            holders.sort(key=lambda one: (-one.gpus, one.job))
        seen = [one for one in holders if one.team]
        rest: dict[str, list[Holder]] = {}
        for one in seen[MAX_NAMED_HOLDERS:]:
            rest.setdefault(one.team, []).append(one)
        unseen = [one for one in holders if not one.team]
        groups = [*((team, rest[team]) for team in sorted(rest)), *([("", unseen)] if unseen else [])]
        together = [Holder(team=team, jobs=len(some), gpus=sum(one.gpus for one in some)) for team, some in groups]
        return (*seen[:MAX_NAMED_HOLDERS], *together)

    def _holder(self, job: RunningJob | WaitingJob) -> Holder:
        gpus = job.gpus if isinstance(job, RunningJob) else job.need.total_gpus
        if not self._sees(job.team):
            return Holder(gpus=gpus)
        ends_at = None
        if isinstance(job, RunningJob) and job.started_at and job.time_limit:
            ends_at = job.started_at + job.time_limit
        return Holder(gpus=gpus, job=job.name, title=job.title, team=job.team, ends_at=ends_at)
