"""Why a job waits, for one user: the engine's explanation, the start estimate, and its past error.

Each process caches the ClusterSnapshot of a cluster for some seconds while nothing in it changes: many open pages
reload when the queue moves, and loading ten thousand rows for each would cost more than the computation.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from threading import Lock

from acmeweb.common.errors import InvalidField
from jobs.core.lifecycle import State
from jobs.models import Cluster, ClusterMode, Job, clock
from scheduling.engine.blockers import Blocker, BlockerKind
from scheduling.engine.changes import SuggestedChange
from scheduling.engine.cluster import ClusterSnapshot
from scheduling.engine.policies import LIVE_POLICIES, rules_factory
from scheduling.engine.why import explain_wait
from scheduling.models import Estimate, EstimateError, EstimateLead, Forecast
from scheduling.queries import snapshot
from scheduling.queries.predictions import with_predictions

MAX_SNAPSHOT_AGE_S = 10.0


@dataclass(frozen=True, kw_only=True)
class WaitExplanation:
    """The explanation of a wait. `past_error` is the past error of estimates with the same lead."""

    at: datetime
    blockers: tuple[Blocker, ...] = ()
    changes: tuple[SuggestedChange, ...] = ()
    estimate: Estimate | None = None
    estimated_at: datetime | None = None
    past_error: EstimateError | None = None

    @property
    def smallest(self) -> SuggestedChange | None:
        return self.changes[0] if self.changes else None

    @property
    def others(self) -> tuple[SuggestedChange, ...]:
        return self.changes[1:]

    @property
    def no_change_text(self) -> str:
        """What the page says if there is no suggested change."""
        if not self.blockers:
            return "No change is needed."
        return "No single change would start it now. The jobs ahead and the running jobs block it together."

    @property
    def no_estimate_text(self) -> str:
        """What the page says if there is no estimate."""
        if self.blockers and self.blockers[0].kind == BlockerKind.HOLD:
            return "No estimate while the job is held."
        return "No estimate yet. Estimates are updated every 30 s."


def explain_job(job: Job, teams: Collection[str] | None) -> WaitExplanation:
    """Explain why the job waits. `teams` are those whose jobs the user may see; None: all."""
    now = clock.now()
    if job.state != State.PENDING:
        return WaitExplanation(at=now)
    estimate = Estimate.objects.filter(job=job).first()
    forecast = Forecast.objects.filter(cluster=job.cluster).first()
    explanation = _engine_explanation(job, teams, now)
    return WaitExplanation(
        at=explanation.at,
        blockers=explanation.blockers,
        changes=explanation.changes,
        estimate=estimate,
        estimated_at=forecast.made_at if forecast and estimate else None,
        past_error=past_error(job.cluster, estimate.p50, now) if estimate else None,
    )


def _engine_explanation(job: Job, teams: Collection[str] | None, now: datetime) -> WaitExplanation:
    """Return the engine's explanation. It is empty if Acme does not decide on the cluster, or the job is newer than the
    snapshot; the stored wait reason is then all that is known."""
    cluster = job.cluster
    if cluster.mode == ClusterMode.OBSERVE or cluster.policy not in LIVE_POLICIES:
        return WaitExplanation(at=now)
    picture = snapshot_cache.of(cluster, now)
    if not any(waiting.id == job.pk for waiting in picture.waiting):
        return WaitExplanation(at=now)
    try:
        rules = rules_factory(cluster.policy, cluster.policy_settings)
    except InvalidField:
        return WaitExplanation(at=now)
    explanation = explain_wait(picture, rules, job.pk, lambda team: teams is None or team in teams)
    return WaitExplanation(at=explanation.at, blockers=explanation.blockers, changes=explanation.changes)


def past_error(cluster: Cluster, p50: datetime, now: datetime) -> EstimateError | None:
    """The past error of estimates that were as far ahead as this one; None if none has been evaluated yet."""
    lead = EstimateLead.of(p50 - now)
    return EstimateError.objects.filter(cluster=cluster, lead=lead).first()


class SnapshotCache:
    """Caches the last ClusterSnapshot of each cluster."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._snapshots: dict[int, tuple[str, float, ClusterSnapshot]] = {}

    def of(self, cluster: Cluster, now: datetime) -> ClusterSnapshot:
        version = snapshot.snapshot_version(cluster)
        with self._lock:
            cached = self._snapshots.get(cluster.pk)
        if cached and cached[0] == version and time.monotonic() - cached[1] < MAX_SNAPSHOT_AGE_S:
            return cached[2]
        picture = with_predictions(cluster, snapshot.take_snapshot(cluster, now))
        with self._lock:
            self._snapshots[cluster.pk] = version, time.monotonic(), picture
        return picture


snapshot_cache = SnapshotCache()
