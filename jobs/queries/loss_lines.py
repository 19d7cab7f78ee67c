"""The sparkline of the loss of running attempts: one statement, which reads a bounded number of rows per attempt."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import connection

from jobs.core.attempt_end import TRAINING_KINDS
from jobs.core.charts import sparkline
from jobs.models import Attempt, Job

POINTS_READ = 600

# The newest rows of each attempt, read from the end of its range in the primary key
LOSSES_SQL = """
SELECT a.id, ARRAY(SELECT loss FROM jobs_progress WHERE attempt_id = a.id AND loss IS NOT NULL
  ORDER BY at DESC LIMIT %s) FROM unnest(%s::bigint[]) AS a (id)
"""


def loss_sparklines(attempts: Sequence[int]) -> dict[int, str]:
    """Points of the sparklines by attempt id; empty for fewer than two reports."""
    with connection.cursor() as cursor:
        cursor.execute(LOSSES_SQL, [POINTS_READ, list(attempts)])
        return {attempt: sparkline.sparkline_points(losses[::-1]) for attempt, losses in cursor.fetchall()}


def loss_lines_of_jobs(jobs: Sequence[Job]) -> dict[int, str]:
    """Points of the sparklines by job id, for the trainings among these jobs that run. Two queries, or none."""
    trainings = [job.pk for job in jobs if job.is_live and job.kind in TRAINING_KINDS]
    if not trainings:
        return {}
    attempts = dict(Attempt.objects.live().filter(job__in=trainings).values_list("pk", "job_id"))
    return {attempts[attempt]: line for attempt, line in loss_sparklines(list(attempts)).items()}
