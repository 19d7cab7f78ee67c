"""Why one job waits, put together for one reader: the engine's explanation, the estimate, and its past error.

The Picture of a cluster is kept in each process while nothing in it has moved, for some seconds: many open pages ask
when the queue moves, and loading ten thousand rows for each would cost more than the thinking.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from threading import Lock

from jobs.core.lifecycle import State
from jobs.models import Cluster, ClusterMode, Job, clock
from scheduling.engine.blockers import Blocker
from scheduling.engine.changes import SuggestedChange
from scheduling.engine.cluster import ClusterSnapshot
from scheduling.engine.policies import LIVE_POLICIES, InvalidPolicySettings, rules_factory
from scheduling.engine.why import explain_wait
from scheduling.models import Estimate, EstimateError, EstimateLead, Forecast
from scheduling.queries import snapshot

MAX_SNAPSHOT_AGE_S = 10.0


@dataclass(frozen=True, kw_only=True)
class WaitExplanation:
    """`judged` is the error of estimates that looked as far ahead as this one."""

    at: datetime
    blockers: tuple[Blocker, ...] = ()
    changes: tuple[SuggestedChange, ...] = ()
    estimate: Estimate | None = None
    estimated_at: datetime | None = None
    judged: EstimateError | None = None

    @property
    def smallest(self) -> SuggestedChange | None:
        return self.changes[0] if self.changes else None

    @property
    def others(self) -> tuple[SuggestedChange, ...]:
        return self.changes[1:]


def explain_job(job: Job, teams: Collection[str] | None) -> WaitExplanation:
    """`teams` are those whose jobs the reader may know; None: all."""
    now = clock.now()
    if job.state != State.PENDING:
        return WaitExplanation(at=now)
    estimate = Estimate.objects.filter(job=job).first()
    forecast = Forecast.objects.filter(cluster=job.cluster).first()
    told = _engine_explanation(job, teams, now)
    return WaitExplanation(
        at=told.at,
        blockers=told.blockers,
        changes=told.changes,
        estimate=estimate,
        estimated_at=forecast.made_at if forecast and estimate else None,
        judged=_past_error(job.cluster, estimate, now) if estimate else None,
    )


def _engine_explanation(job: Job, teams: Collection[str] | None, now: datetime) -> WaitExplanation:
    """Nothing but the record's own sentence where Acme does not decide, or where the job came a moment ago."""
    cluster = job.cluster
    if cluster.mode == ClusterMode.OBSERVE or cluster.policy not in LIVE_POLICIES:
        return WaitExplanation(at=now)
    picture = snapshot_cache.of(cluster, now)
    if not any(waiting.id == job.pk for waiting in picture.waiting):
        return WaitExplanation(at=now)
    try:
        rules = rules_factory(cluster.policy, cluster.policy_settings)
    except InvalidPolicySettings:
        return WaitExplanation(at=now)
    told = explain_wait(picture, rules, job.pk, lambda team: teams is None or team in teams)
    return WaitExplanation(at=told.at, blockers=told.blockers, changes=told.changes)


def _past_error(cluster: Cluster, estimate: Estimate, now: datetime) -> EstimateError | None:
    lead = EstimateLead.of(estimate.p50 - now)
    return EstimateError.objects.filter(cluster=cluster, lead=lead).first()


class SnapshotCache:
    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: dict[int, tuple[str, float, ClusterSnapshot]] = {}

    def of(self, cluster: Cluster, now: datetime) -> ClusterSnapshot:
        looks = snapshot.snapshot_version(cluster)
        with self._lock:
            kept = self._kept.get(cluster.pk)
        if kept and kept[0] == looks and time.monotonic() - kept[1] < MAX_SNAPSHOT_AGE_S:
            return kept[2]
        picture = snapshot.take_snapshot(cluster, now)
        with self._lock:
            self._kept[cluster.pk] = looks, time.monotonic(), picture
        return picture


snapshot_cache = SnapshotCache()
