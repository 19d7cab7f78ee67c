"""Estimate: when will who waits start? Beside the turn, never inside it: nobody's start waits for a forecast.

Who is eligible   clusters on which Acme decides, when the queue, what runs or the nodes changed since the last look,
                  or the last estimates are older than `AGAIN`: time passes even where nothing happens.
What a turn does  first estimates of jobs that were given their GPUs meanwhile are judged, and the errors summed up;
                  then the Picture is replayed forward, and the estimates that moved are written. Nothing else is
                  changed: an estimate decides nothing.
Failure story     Killed before the writing: the old estimates stay, with their time, and the next turn looks again.
                  Killed between judging and writing: a judged estimate is gone, its outcome is kept once (the database
                  refuses a second). Two workers at once: the lease saves the work; both would write the same, for the
                  seed is the cluster's. Late: the time of the forecast is shown beside every estimate. No transaction
                  is open while the forecast thinks.
"""

from __future__ import annotations

import time
from datetime import datetime, timedelta

from acmeweb.common import live
from jobs.models import Cluster, ClusterMode, clock
from scheduling.actions import estimates as actions
from scheduling.engine.policies import LIVE_POLICIES, InvalidPolicySettings, rules_factory
from scheduling.engine.run_time_estimates import RunTimeEstimates
from scheduling.models import Forecast, Lease
from scheduling.queries import snapshot
from scheduling.replay.start_estimates import start_estimates
from scheduling.replay.timed_runs import without_gc

ESTIMATE_LEASE = timedelta(minutes=2)
MAX_ESTIMATE_AGE = timedelta(minutes=5)


def estimate_with_lease(cluster_id: int, holder: str) -> int:
    """One turn under a lease of its own; 0 when another worker is at it."""
    name = f"estimate:{cluster_id}"
    taken = Lease.take(name, holder, ESTIMATE_LEASE)
    if taken is None:
        return 0
    try:
        return estimate_starts_once(Cluster.objects.get(pk=cluster_id), clock.now())
    finally:
        Lease.release(name, taken.term)


def estimate_starts_once(cluster: Cluster, now: datetime) -> int:
    """Return how many estimates were written."""
    if cluster.mode == ClusterMode.OBSERVE or cluster.policy not in LIVE_POLICIES:
        return 0
    try:
        rules = rules_factory(cluster.policy, cluster.policy_settings)
    except InvalidPolicySettings:
        return 0  # its page says so already
    if actions.record_outcomes(cluster):
        actions.update_error_summaries(cluster, now)
    seen = snapshot.snapshot_version(cluster)
    last = Forecast.objects.filter(cluster=cluster).first()
    if last and last.seen == seen and now - last.made_at < MAX_ESTIMATE_AGE:
        return 0
    began = time.perf_counter()
    picture = snapshot.take_snapshot(cluster, now)
    durations = RunTimeEstimates(snapshot.past_jobs(cluster, now))
    with without_gc():
        told = start_estimates(picture, rules, durations=durations, seed=cluster.pk)
    written = actions.save_estimates(cluster, told, now)
    took = timedelta(seconds=time.perf_counter() - began)
    actions.record_forecast(cluster, now=now, jobs=len(told), took=took, seen=seen)
    if written:
        live.publish_on_commit("queue")
    return written
