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

from acmeweb import live
from jobs import clock
from jobs.models import Cluster, Mode
from scheduling import estimate_actions as actions
from scheduling import snapshot
from scheduling.engine.policies import POLICIES, BadSettings, rules_of
from scheduling.models import Forecast, Lease
from scheduling.simulator.durations import Durations
from scheduling.simulator.forecast import start_estimates
from scheduling.simulator.measured import undisturbed

LEASE = timedelta(minutes=2)
AGAIN = timedelta(minutes=5)


def estimates(cluster_id: int, holder: str) -> int:
    """One turn under a lease of its own; 0 when another worker is at it."""
    name = f"estimate:{cluster_id}"
    taken = Lease.take(name, holder, LEASE)
    if taken is None:
        return 0
    try:
        return estimate_once(Cluster.objects.get(pk=cluster_id), clock.now())
    finally:
        Lease.give_back(name, taken.term)


def estimate_once(cluster: Cluster, now: datetime) -> int:
    """Return how many estimates were written."""
    if cluster.mode == Mode.OBSERVE or cluster.policy not in POLICIES:
        return 0
    try:
        rules = rules_of(cluster.policy, cluster.policy_settings)
    except BadSettings:
        return 0  # its page says so already
    if actions.judge_started(cluster):
        actions.sum_up_errors(cluster, now)
    seen = snapshot.looks(cluster)
    last = Forecast.objects.filter(cluster=cluster).first()
    if last and last.seen == seen and now - last.made_at < AGAIN:
        return 0
    began = time.perf_counter()
    picture = snapshot.of(cluster, now)
    durations = Durations(snapshot.past(cluster, now))
    with undisturbed():
        told = start_estimates(picture, rules, durations=durations, seed=cluster.pk)
    written = actions.keep_estimates(cluster, told, now)
    took = timedelta(seconds=time.perf_counter() - began)
    actions.note_forecast(cluster, now=now, jobs=len(told), took=took, seen=seen)
    if written:
        live.changed("queue")
    return written
