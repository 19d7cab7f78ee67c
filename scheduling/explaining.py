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

from jobs import clock
from jobs.lifecycle import State
from jobs.models import Cluster, Job, Mode
from scheduling import snapshot
from scheduling.engine.blockers import Blocker
from scheduling.engine.changes import Change
from scheduling.engine.cluster import Picture
from scheduling.engine.policies import POLICIES, BadSettings, rules_of
from scheduling.engine.why import explain
from scheduling.models import Estimate, EstimateError, Forecast, Lead

FRESH_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Answer:
    """`judged` is the error of estimates that looked as far ahead as this one."""

    at: datetime
    blockers: tuple[Blocker, ...] = ()
    changes: tuple[Change, ...] = ()
    estimate: Estimate | None = None
    estimated_at: datetime | None = None
    judged: EstimateError | None = None

    @property
    def smallest(self) -> Change | None:
        return self.changes[0] if self.changes else None

    @property
    def others(self) -> tuple[Change, ...]:
        return self.changes[1:]


def why(job: Job, teams: Collection[str] | None) -> Answer:
    """`teams` are those whose jobs the reader may know; None: all."""
    now = clock.now()
    if job.state != State.PENDING:
        return Answer(at=now)
    estimate = Estimate.objects.filter(job=job).first()
    forecast = Forecast.objects.filter(cluster=job.cluster).first()
    told = _explained(job, teams, now)
    return Answer(
        at=told.at,
        blockers=told.blockers,
        changes=told.changes,
        estimate=estimate,
        estimated_at=forecast.made_at if forecast and estimate else None,
        judged=_judged(job.cluster, estimate, now) if estimate else None,
    )


def _explained(job: Job, teams: Collection[str] | None, now: datetime) -> Answer:
    """Nothing but the record's own sentence where Acme does not decide, or where the job came a moment ago."""
    cluster = job.cluster
    if cluster.mode == Mode.OBSERVE or cluster.policy not in POLICIES:
        return Answer(at=now)
    picture = pictures.of(cluster, now)
    if not any(waiting.id == job.pk for waiting in picture.waiting):
        return Answer(at=now)
    try:
        rules = rules_of(cluster.policy, cluster.policy_settings)
    except BadSettings:
        return Answer(at=now)
    told = explain(picture, rules, job.pk, lambda team: teams is None or team in teams)
    return Answer(at=told.at, blockers=told.blockers, changes=told.changes)


def _judged(cluster: Cluster, estimate: Estimate, now: datetime) -> EstimateError | None:
    lead = Lead.of(estimate.p50 - now)
    return EstimateError.objects.filter(cluster=cluster, lead=lead).first()


class Pictures:
    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: dict[int, tuple[str, float, Picture]] = {}

    def of(self, cluster: Cluster, now: datetime) -> Picture:
        looks = snapshot.looks(cluster)
        with self._lock:
            kept = self._kept.get(cluster.pk)
        if kept and kept[0] == looks and time.monotonic() - kept[1] < FRESH_S:
            return kept[2]
        picture = snapshot.of(cluster, now)
        with self._lock:
            self._kept[cluster.pk] = looks, time.monotonic(), picture
        return picture


pictures = Pictures()
