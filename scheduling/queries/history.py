"""Reads what the scheduler may know about the past of a cluster, for its snapshot. Three short queries."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime

from django.db import connection
from django.db.models import F, FloatField, Sum
from django.db.models.functions import Extract, Greatest

from jobs.core.lifecycle import FINAL_STATES
from jobs.models import Attempt, Cluster
from scheduling.models import RunTimeModel

HOUR_S = 3600.0

# GPU-seconds of an attempt between `start` and `till`, halved since: the integral of exp(-rate * age). sinh keeps the
# precision of short attempts, where 1 - exp(-x) would lose most digits. PostgreSQL raises an error for numbers that are
# too large or too small for a float, so only 64 half-lives of an attempt count, and no exponent is below -600
DECAYED_ATTEMPT = """
j.nodes::float8 * j.gpus_per_node * 2 / %(rate)s * sinh(%(rate)s / 2 * s.ran)
  * exp(greatest(-600, -%(rate)s * (extract(epoch FROM %(now)s - e.till)::float8 + s.ran / 2)))
"""
ATTEMPT_TIMES = """
CROSS JOIN LATERAL (SELECT least(coalesce(a.ended_at, %(now)s), %(now)s) AS till) e
CROSS JOIN LATERAL (
  SELECT least(64 * ln(2) / %(rate)s, greatest(0, extract(epoch FROM e.till - a.promised_at)))::float8 AS ran
) s
"""
# One statement sees one state of both tables, so an attempt that is counted meanwhile is neither lost nor doubled
SELECT_USAGE = f"""
SELECT t.name, sum(part.used) FROM (
  SELECT u.team_id, u.gpu_seconds * exp(greatest(-600, -%(rate)s * extract(epoch FROM %(now)s - u.at)::float8)) AS used
  FROM scheduling_accountusage u WHERE u.cluster_id = %(cluster)s
  UNION ALL
  SELECT j.team_id, {DECAYED_ATTEMPT}
  FROM jobs_attempt a JOIN jobs_job j ON j.id = a.job_id {ATTEMPT_TIMES}
  WHERE NOT a.usage_counted AND j.cluster_id = %(cluster)s
) part JOIN jobs_team t ON t.id = part.team_id GROUP BY t.name
"""  # noqa: S608 - the parts are constants


def half_life_s(cluster: Cluster) -> float:
    return cluster.usage_half_life_hours * HOUR_S


def decay_rate(cluster: Cluster) -> float:
    """Return the decay per second of the cluster's usage."""
    return math.log(2) / half_life_s(cluster)


def account_usage(cluster: Cluster, now: datetime) -> dict[str, float]:
    """Return the decayed GPU-seconds by team name, exact at `now` and including running attempts. The cost grows with
    the attempts that run or have ended since the last count, not with the history."""
    values = {"cluster": cluster.pk, "now": now, "rate": decay_rate(cluster)}
    with connection.cursor() as cursor:
        cursor.execute(SELECT_USAGE, values)
        return dict(cursor.fetchall())


def attained_service(cluster: Cluster) -> Mapping[int, float]:
    """Return the GPU-seconds of ended attempts by id of the waiting or running job."""
    ran = Extract(Greatest("ended_at", "promised_at") - F("promised_at"), "epoch", output_field=FloatField())
    rows = Attempt.objects.filter(job__cluster=cluster, ended_at__isnull=False).exclude(job__state__in=FINAL_STATES)
    gpus = F("job__nodes") * F("job__gpus_per_node")
    return dict(rows.order_by().values_list("job").annotate(served=Sum(ran * gpus, output_field=FloatField())))


def has_learned_run_times(cluster: Cluster) -> bool:
    """Return whether run times of ended jobs of this cluster are known."""
    return RunTimeModel.objects.filter(cluster=cluster, jobs__gt=0).exists()
