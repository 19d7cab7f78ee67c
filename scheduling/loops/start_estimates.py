"""Estimate when waiting jobs will start. This runs beside the scheduling turn, so it never delays a start.

Eligible rows     Clusters on which Acme decides, if the queue, the running jobs or the nodes changed since the last
                  estimates, or the estimates are older than `MAX_ESTIMATE_AGE`.
What a turn does  Records the outcome of first estimates of jobs that have started, and updates the error summaries.
                  Then simulates the cluster's future and writes the estimates that moved, and the forecasts of
                  deadlines that moved with them. Neither influences any decision.
Failure story     Killed before writing: the old estimates stay, with their time, and the next turn continues. Killed
                  between recording outcomes and writing: recorded estimates are deleted, and a constraint ensures that
                  each outcome is recorded once. Two workers at once: both would write the same,
                  because the seed belongs to the cluster. Late: each estimate is shown with its time. No transaction
                  is open during the simulation.
"""

from __future__ import annotations

import time
from datetime import datetime, timedelta

from acmeweb.common import live
from acmeweb.common.errors import InvalidField
from jobs.models import Cluster, ClusterMode
from scheduling.actions import estimates as estimate_actions
from scheduling.engine.policies import LIVE_POLICIES, rules_factory
from scheduling.engine.run_time_estimates import RunTimeEstimates
from scheduling.models import Forecast
from scheduling.queries import deadline_forecasts, snapshot
from scheduling.queries.predictions import with_predictions
from scheduling.whatif.replay.start_estimates import start_estimates
from scheduling.whatif.replay.timed_runs import without_gc

MAX_ESTIMATE_AGE = timedelta(minutes=5)


def estimate_starts_once(cluster: Cluster, now: datetime) -> int:
    """Return how many estimates were written."""
    if cluster.mode == ClusterMode.OBSERVE or cluster.policy not in LIVE_POLICIES:
        return 0
    try:
        rules = rules_factory(cluster.policy, cluster.policy_settings)
    except InvalidField:
        return 0  # the cluster's page shows the error
    if estimate_actions.record_outcomes(cluster):
        estimate_actions.update_error_summaries(cluster, now)
    seen = snapshot.snapshot_version(cluster)
    last = Forecast.objects.filter(cluster=cluster).first()
    if last and last.seen == seen and now - last.made_at < MAX_ESTIMATE_AGE:
        return 0
    began = time.perf_counter()
    picture = with_predictions(cluster, snapshot.take_snapshot(cluster, now))
    durations = RunTimeEstimates(snapshot.past_jobs(cluster, now))
    with without_gc():
        estimates = start_estimates(picture, rules, durations=durations, seed=cluster.pk)
    written = estimate_actions.save_estimates(cluster, estimates, now)
    forecasts = deadline_forecasts.open_deadlines(cluster, picture, estimates, now)
    written += estimate_actions.save_deadline_forecasts(forecasts)
    took = timedelta(seconds=time.perf_counter() - began)
    estimate_actions.record_forecast(cluster, now=now, jobs=len(estimates), took=took, seen=seen)
    if written:
        live.publish_on_commit("queue")
    return written
