"""All changes to what scheduling remembers: usage of teams, learned run times, and predictions.

Each ended attempt and each ended job is marked in the statement or transaction that adds it, so none is added twice.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction

from jobs.core.lifecycle import FINAL_STATES
from jobs.models import Cluster, Job
from scheduling.core.run_time_scopes import learn_run_time, run_time_scopes
from scheduling.engine.cluster import ClusterSnapshot
from scheduling.engine.history import SchedulingHistory
from scheduling.models import LearnedRunTime, RunTimeModel, TrainedTrees
from scheduling.models.history import ATTEMPT_TIMES, DECAYED_ATTEMPT, EndedJob, decay_rate, jobs_in_order_of_ends
from scheduling.models.run_time_trees import KEPT_VERSIONS
from scheduling.queries.predictions import add_predictions, predict_run_times

COUNT_BATCH = 5_000
LEARN_BATCH = 1_000
ERROR_WINDOW = timedelta(days=30)

COUNT_ATTEMPTS = f"""
WITH batch AS (
  SELECT a.id, j.team_id, {DECAYED_ATTEMPT} AS used
  FROM jobs_attempt a JOIN jobs_job j ON j.id = a.job_id {ATTEMPT_TIMES}
  WHERE NOT a.usage_counted AND a.ended_at <= %(now)s AND j.cluster_id = %(cluster)s
  ORDER BY a.ended_at, a.id LIMIT %(most)s FOR NO KEY UPDATE OF a
), marked AS (
  UPDATE jobs_attempt a SET usage_counted = true FROM batch b WHERE a.id = b.id RETURNING a.id
), added AS (
  INSERT INTO scheduling_accountusage AS u (cluster_id, team_id, gpu_seconds, at)
  SELECT %(cluster)s, team_id, sum(used), %(now)s FROM batch GROUP BY team_id ORDER BY team_id
  ON CONFLICT (cluster_id, team_id) DO UPDATE
  SET gpu_seconds = u.gpu_seconds * exp(greatest(-600, -%(rate)s * extract(epoch FROM excluded.at - u.at)::float8))
                    + excluded.gpu_seconds, at = excluded.at
)
SELECT count(*) FROM marked
"""  # noqa: S608 - the parts are constants
# Locked in the order of ids, as bulk actions do. No lease is checked, because a stored prediction is never replaced
STORE_PREDICTIONS = """
WITH locked AS (
  SELECT j.id, v.s, v.trees_s FROM unnest(%s::bigint[], %s::float8[], %s::float8[]) v (id, s, trees_s)
  JOIN jobs_job j ON j.id = v.id
  WHERE j.predicted_s IS NULL ORDER BY j.id FOR NO KEY UPDATE OF j
)
UPDATE jobs_job j SET predicted_s = locked.s, trees_predicted_s = locked.trees_s FROM locked WHERE j.id = locked.id
"""
SELECT_ERROR = """
SELECT count(*), percentile_cont(0.5) WITHIN GROUP (ORDER BY off), percentile_cont(0.9) WITHIN GROUP (ORDER BY off)
FROM (
  SELECT greatest(j.{predicted} / ran.s, ran.s / j.{predicted}) AS off FROM jobs_job j
  CROSS JOIN LATERAL (
    SELECT greatest(1, sum(extract(epoch FROM greatest(a.ended_at, b.began) - b.began) / a.slowdown)::float8) AS s
    FROM jobs_attempt a CROSS JOIN LATERAL (SELECT coalesce(a.confirmed_at, a.promised_at) AS began) b
    WHERE a.job_id = j.id
  ) ran
  WHERE j.cluster_id = %s AND j.ended_at > %s AND j.started_at IS NOT NULL AND j.{predicted} > 0
) judged
"""


# --- usage


def count_ended_attempts(cluster: Cluster, now: datetime, most: int = COUNT_BATCH) -> int:
    """Add ended attempts to the usage of their teams, and return their number. One statement: an attempt is marked
    if and only if it is added."""
    values = {"cluster": cluster.pk, "now": now, "rate": decay_rate(cluster), "most": most}
    with connection.cursor() as cursor:
        cursor.execute(COUNT_ATTEMPTS, values)
        counted: int = cursor.fetchone()[0]
    return counted


# --- run times


@transaction.atomic
def learn_run_times(cluster: Cluster, now: datetime, most: int = LEARN_BATCH) -> int:
    """Add ended jobs to the learned run times in the order of their ends, and return their number."""
    RunTimeModel.objects.get_or_create(cluster=cluster, defaults={"updated_at": now})
    model = RunTimeModel.objects.select_for_update().get(cluster=cluster)
    ended = _jobs_to_learn(cluster, most)
    if not ended:
        return 0
    means = LearnedRunTime.objects.means(cluster, (scope for job in ended for scope in run_time_scopes(job.traits)))
    for job in ended:
        learn_run_time(means, job.traits, job.ran_s)
    model.version, model.jobs, model.updated_at = model.version + 1, model.jobs + len(ended), now
    model.save(update_fields=["version", "jobs", "updated_at"])
    rows = [
        LearnedRunTime(cluster=cluster, scope=scope, mean_s=mean, version=model.version)
        for scope, mean in sorted(means.items())
    ]
    LearnedRunTime.objects.bulk_create(
        rows, update_conflicts=True, unique_fields=["cluster", "scope"], update_fields=["mean_s", "version"]
    )
    Job.objects.filter(pk__in=[job.pk for job in ended]).update(run_time_learned=True)
    return len(ended)


def _jobs_to_learn(cluster: Cluster, most: int) -> list[EndedJob]:
    """Return jobs that have ended, in the order of their ends."""
    ended: Any = Job.objects.filter(cluster=cluster, run_time_learned=False, foreign_id="", state__in=FINAL_STATES)
    ended = ended.filter(started_at__isnull=False, ended_at__isnull=False)
    # Limited before the attempts are read: after an upgrade no job is learned yet
    return jobs_in_order_of_ends(list(ended.order_by("ended_at", "id").values_list("pk", flat=True)[:most]))


def measure_prediction_error(cluster: Cluster, now: datetime) -> None:
    """Store by which factor the predictions of the last 30 days were wrong, for the rolling estimate and for trees."""
    rolling = _prediction_error(cluster, now, "predicted_s")
    trees = _prediction_error(cluster, now, "trees_predicted_s")
    columns = dict(zip(("measured_jobs", "median_ratio", "p90_ratio"), rolling, strict=True))
    columns |= dict(zip(("trees_measured_jobs", "trees_median_ratio", "trees_p90_ratio"), trees, strict=True))
    RunTimeModel.objects.filter(cluster=cluster).update(measured_at=now, **columns)


def _prediction_error(cluster: Cluster, now: datetime, column: str) -> tuple[int, float | None, float | None]:
    """Return the number of ended jobs with a prediction, and the median and P90 of its factors."""
    with connection.cursor() as cursor:
        cursor.execute(SELECT_ERROR.format(predicted=column), [cluster.pk, now - ERROR_WINDOW])
        jobs, median, p90 = cursor.fetchone()
    return jobs, median, p90


@transaction.atomic
def store_trees(trees: TrainedTrees) -> bool:
    """Add a version of trees and delete the oldest ones. Return False if another worker has added this version."""
    TrainedTrees.objects.bulk_create([trees], ignore_conflicts=True)
    if not TrainedTrees.objects.filter(cluster=trees.cluster, version=trees.version, trained_at=trees.trained_at):
        return False
    TrainedTrees.objects.filter(cluster=trees.cluster, version__lte=trees.version - KEPT_VERSIONS).delete()
    return True


# --- predictions


def predict_new_jobs(cluster: Cluster, picture: ClusterSnapshot) -> ClusterSnapshot:
    """Predict the run times of waiting jobs that have no prediction yet, and store them. A prediction never changes,
    so a job does not move in the queue because another one ended."""
    past = picture.history or SchedulingHistory()
    new = [job for job in picture.waiting if job.id not in past.predicted_s]
    if not new:
        return picture
    predictions = predict_run_times(cluster, new)
    columns = zip(*((job, *predicted) for job, predicted in predictions.items()), strict=True)
    with connection.cursor() as cursor:
        cursor.execute(STORE_PREDICTIONS, [list(column) for column in columns])
    return add_predictions(picture, predictions)
