"""All changes to start estimates and their outcomes. The functions are idempotent and may run concurrently."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from django.db import connection, transaction

from jobs.actions.retention import delete_batch
from jobs.core.deadlines import DeadlineForecast
from jobs.models import Cluster
from scheduling.models import LEAD_UNTIL, Estimate, EstimateError, EstimateOutcome, Forecast
from scheduling.whatif.replay.start_estimates import StartEstimate

OUTCOME_RETENTION = timedelta(days=30)
ERROR_WINDOW = timedelta(days=7)
MAX_JOBS_FOR_ERROR = 5000
TURN_TOLERANCE = timedelta(minutes=1)  # a job estimated to start at once may take a turn or two

# Update a row only if its estimate moved by a minute or 2% of the remaining wait. Otherwise ten thousand waiting jobs
# would cause ten thousand writes twice a minute.
UPSERT_ESTIMATES = """
INSERT INTO scheduling_estimate (job_id, cluster_id, p50, p90, made_at, first_p50, first_p90, first_made_at)
SELECT v.id, %(cluster)s, v.p50, v.p90, %(now)s, v.p50, v.p90, %(now)s
FROM unnest(%(ids)s::bigint[], %(p50)s::timestamptz[], %(p90)s::timestamptz[]) v (id, p50, p90)
JOIN jobs_job j ON j.id = v.id AND j.state = 'PENDING'
ORDER BY v.id
ON CONFLICT (job_id) DO UPDATE SET p50 = excluded.p50, p90 = excluded.p90, made_at = excluded.made_at
WHERE greatest(abs(extract(epoch FROM scheduling_estimate.p50 - excluded.p50)),
               abs(extract(epoch FROM scheduling_estimate.p90 - excluded.p90)))
      > greatest(60, 0.02 * extract(epoch FROM excluded.p50 - excluded.made_at))
"""

# A job that has just started keeps its estimate until the outcome is recorded
DELETE_STALE_ESTIMATES = """
DELETE FROM scheduling_estimate e USING jobs_job j
WHERE e.cluster_id = %(cluster)s AND j.id = e.job_id AND j.state = 'PENDING' AND NOT e.job_id = ANY(%(ids)s)
"""

INSERT_OUTCOMES = """
INSERT INTO scheduling_estimateoutcome (job_id, cluster_id, made_at, p50, p90, started_at)
SELECT e.job_id, e.cluster_id, e.first_made_at, e.first_p50, e.first_p90, a.at
FROM scheduling_estimate e
JOIN LATERAL (SELECT min(promised_at) AS at FROM jobs_attempt
              WHERE job_id = e.job_id AND promised_at >= e.first_made_at) a ON a.at IS NOT NULL
WHERE e.cluster_id = %s
ON CONFLICT DO NOTHING RETURNING job_id
"""

SELECT_ERROR_SUMMARY = """
WITH recent AS (
    SELECT p50 - made_at AS ahead, abs(extract(epoch FROM started_at - p50)) AS off,
           started_at <= p90 + %(turn)s AS on_time
    FROM scheduling_estimateoutcome WHERE cluster_id = %(cluster)s AND started_at >= %(since)s
    ORDER BY started_at DESC LIMIT %(most)s
)
SELECT count(*), percentile_cont(0.5) WITHIN GROUP (ORDER BY off), avg(on_time::int)
FROM recent WHERE ahead >= %(low)s AND ahead < %(high)s
"""


# Most forecasts move by less than a point. Locked in the order of ids, as bulk actions do
STORE_DEADLINE_FORECASTS = """
WITH locked AS (
  SELECT j.id, v.probability, v.why
  FROM unnest(%s::bigint[], %s::float8[], %s::text[]) v (id, probability, why) JOIN jobs_job j ON j.id = v.id
  WHERE j.ended_at IS NULL AND (
    j.deadline_probability IS NULL <> (v.probability IS NULL)
    OR abs(j.deadline_probability - v.probability) >= 0.01
    OR (v.probability IS NULL AND j.deadline_why <> v.why)
  )
  ORDER BY j.id FOR NO KEY UPDATE OF j
)
UPDATE jobs_job j SET deadline_probability = locked.probability, deadline_why = locked.why
FROM locked WHERE j.id = locked.id
"""


def save_deadline_forecasts(forecasts: Mapping[int, DeadlineForecast]) -> int:
    """Write the forecasts that moved by a point or more. Return their number."""
    if not forecasts:
        return 0
    ids = sorted(forecasts)
    columns = [ids, [forecasts[job].probability for job in ids], [forecasts[job].why for job in ids]]
    with connection.cursor() as cursor:
        cursor.execute(STORE_DEADLINE_FORECASTS, columns)
        written: int = cursor.rowcount
    return written


def save_estimates(cluster: Cluster, estimates: Mapping[int, StartEstimate], now: datetime) -> int:
    """Write the estimates that moved and delete those of other waiting jobs. Return the number of rows written."""
    ids = sorted(estimates)
    values = {
        "cluster": cluster.pk,
        "now": now,
        "ids": ids,
        "p50": [estimates[job_id].p50 for job_id in ids],
        "p90": [estimates[job_id].p90 for job_id in ids],
    }
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(UPSERT_ESTIMATES, values)
        written: int = cursor.rowcount
        cursor.execute(DELETE_STALE_ESTIMATES, {"cluster": cluster.pk, "ids": ids})
    return written


@transaction.atomic
def record_outcomes(cluster: Cluster) -> int:
    """Record the first estimate and the actual start of jobs that have started. Return their number."""
    with connection.cursor() as cursor:
        cursor.execute(INSERT_OUTCOMES, [cluster.pk])
        judged = [row[0] for row in cursor.fetchall()]
    Estimate.objects.filter(job_id__in=judged).delete()
    # Jobs that ended without starting have no outcome
    delete_batch(Estimate.objects.filter(cluster=cluster).exclude(job__state="PENDING"))
    return len(judged)


@transaction.atomic
def update_error_summaries(cluster: Cluster, now: datetime) -> None:
    """Update the error of the recent estimates, for each lead."""
    delete_batch(EstimateOutcome.objects.filter(cluster=cluster, started_at__lt=now - OUTCOME_RETENTION))
    low = timedelta(0)
    for lead, high in LEAD_UNTIL.items():
        _update_error_summary(cluster, lead, low, high, now)
        low = high


def _update_error_summary(cluster: Cluster, lead: str, low: timedelta, high: timedelta, now: datetime) -> None:
    values = {"cluster": cluster.pk, "turn": TURN_TOLERANCE, "since": now - ERROR_WINDOW, "most": MAX_JOBS_FOR_ERROR}
    with connection.cursor() as cursor:
        cursor.execute(SELECT_ERROR_SUMMARY, values | {"low": low, "high": high})
        jobs, median, within = cursor.fetchone()
    if not jobs:
        EstimateError.objects.filter(cluster=cluster, lead=lead).delete()
        return
    columns = {"jobs": jobs, "median_s": median, "within_p90": within, "updated_at": now}
    EstimateError.objects.update_or_create(cluster=cluster, lead=lead, defaults=columns)


def record_forecast(cluster: Cluster, *, now: datetime, jobs: int, took: timedelta, seen: str) -> None:
    took_ms = round(took.total_seconds() * 1000)
    Forecast.objects.update_or_create(
        cluster=cluster, defaults={"made_at": now, "jobs": jobs, "took_ms": took_ms, "seen": seen}
    )
