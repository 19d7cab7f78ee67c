"""Remember ended jobs: the usage of teams and the learned run times. This runs beside the scheduling turn.

Eligible rows     Ended attempts that are not in the usage of their team yet, oldest first, and ended jobs that are not
                  in the learned run times yet, in the order of their ends. Jobs that were submitted outside Acme count
                  as usage only.
What a turn does  Adds both, up to `MAX_BATCHES` batches each, and increments the version of the learned run times.
                  Every `ERROR_INTERVAL` it compares the predictions of the last 30 days with the actual run times.
Failure story     Killed at any time: each batch is one transaction, in which the rows are also marked, so nothing is
                  added twice and the next turn continues. Late or not running: usage stays exact, because a snapshot
                  adds the attempts that are not counted yet, up to the newest 5,000; new jobs are predicted from older
                  jobs. Two workers at once: row locks keep the sums correct. A job that ends
                  twice, because it was requeued after its end, is learned once. After an upgrade no attempt is
                  counted. One turn counts up to 100,000 of a cluster, the oldest first, and until all are counted,
                  usage misses those between the counted ones and the newest 5,000.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from jobs.models import Cluster
from scheduling.actions import history as history_actions
from scheduling.models import RunTimeModel

MAX_BATCHES = 20
ERROR_INTERVAL = timedelta(minutes=5)


def remember_ended_once(cluster: Cluster, now: datetime, batches: int = MAX_BATCHES) -> int:
    """Add ended attempts and jobs. Return how many were added."""
    added = 0
    for add_batch in (history_actions.count_ended_attempts, history_actions.learn_run_times):
        for _ in range(batches):
            if not (count := add_batch(cluster, now)):
                break
            added += count
    _measure_error_if_due(cluster, now)
    return added


def _measure_error_if_due(cluster: Cluster, now: datetime) -> None:
    model = RunTimeModel.objects.get(cluster=cluster)
    if model.measured_at is None or now - model.measured_at >= ERROR_INTERVAL:
        history_actions.measure_prediction_error(cluster, now)
