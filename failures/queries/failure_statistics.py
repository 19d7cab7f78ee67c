"""Failure statistics of a period by cause, node, team or kind, with the columns of the AcmeTrace failure table.

One query over the diagnoses of the period. Each failure counts once; grouped by node, once for each suspect node. Time
to restart is from the end of an attempt to the next start of its job; it is empty if the job did not run again. Lost
energy is the attempt's energy in proportion to the lost time.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime

from django.db import connection

GROUPINGS = ("cause", "node", "team", "kind")

GROUP_COLUMNS = {"cause": "d.root_cause", "node": "n.name", "team": "t.name", "kind": "j.kind"}
CATEGORY_COLUMNS = {"cause": "d.category", "node": "c.name", "team": "''", "kind": "''"}

TABLE_SQL = """
SELECT {sort} AS category, {name} AS reason, count(*) AS num,
       avg(d.gpus)::float8, percentile_cont(0.5) WITHIN GROUP (ORDER BY d.gpus),
       avg(d.ran_min)::float8, percentile_cont(0.5) WITHIN GROUP (ORDER BY d.ran_min),
       avg(d.back_min)::float8, percentile_cont(0.5) WITHIN GROUP (ORDER BY d.back_min),
       count(d.back_min), sum(d.gpus * d.ran_min / 60)::float8, sum(d.gpus * d.lost_min / 60)::float8,
       sum(energy.kwh * least(1, d.lost_min / nullif(d.ran_min, 0)))::float8
FROM (
  SELECT d.id, d.root_cause, d.category, d.gpus, d.attempt_id, d.cluster_id,
         extract(epoch FROM d.ran) / 60 AS ran_min, extract(epoch FROM d.lost) / 60 AS lost_min,
         extract(epoch FROM next.confirmed_at - d.failed_at) / 60 AS back_min
  FROM failures_diagnosis d
  JOIN jobs_attempt a ON a.id = d.attempt_id
  LEFT JOIN jobs_attempt next ON next.job_id = a.job_id AND next.number = a.number + 1
  WHERE d.failed_at >= %(since)s AND d.failed_at < %(until)s AND d.judged_at IS NOT NULL AND d.root_cause <> 'None'
    AND (%(cluster)s::bigint IS NULL OR d.cluster_id = %(cluster)s)
) d
JOIN jobs_attempt a ON a.id = d.attempt_id
JOIN jobs_job j ON j.id = a.job_id
JOIN jobs_team t ON t.id = j.team_id
JOIN jobs_cluster c ON c.id = d.cluster_id
CROSS JOIN LATERAL (
  SELECT sum(counter_j + power_j + estimate_j + host_j) / 3600000 AS kwh FROM jobs_energyhour
  WHERE attempt_id = d.attempt_id
) AS energy
{nodes}
WHERE %(teams)s::bigint[] IS NULL OR j.team_id = ANY(%(teams)s)
GROUP BY 1, 2 ORDER BY sum(d.gpus * d.ran_min) DESC, count(*) DESC, 2
LIMIT {most}
"""
NODES_JOIN_SQL = "JOIN failures_diagnosis_nodes dn ON dn.diagnosis_id = d.id JOIN jobs_node n ON n.id = dn.node_id"
MAX_TABLE_ROWS = 1000


@dataclass(frozen=True, kw_only=True)
class FailureRow:
    """One row of the table. Times are in minutes, as in the published table."""

    category: str
    reason: str
    num: int
    gpu_demand_avg: float
    gpu_demand_median: float
    time_to_failure_min_avg: float
    time_to_failure_min_median: float
    gpu_time_share_pct: float
    time_to_restart_min_avg: float | None
    time_to_restart_min_median: float | None
    restarted: int
    gpu_hours: float
    gpu_hours_lost: float
    kwh_lost: float | None  # None: no telemetry of energy or power


@dataclass(frozen=True, kw_only=True)
class FailureTable:
    rows: Sequence[FailureRow]
    num: int
    gpu_hours: float
    gpu_hours_lost: float
    kwh_lost: float | None


def failure_table(
    by: str, since: datetime, until: datetime, teams: Sequence[int] | None, cluster: int | None = None
) -> FailureTable:
    """The statistics of a period. `teams` are the ids of the teams that count; None for all. `cluster`: likewise."""
    statement = TABLE_SQL.format(
        name=GROUP_COLUMNS[by],
        sort=CATEGORY_COLUMNS[by],
        nodes=NODES_JOIN_SQL if by == "node" else "",
        most=MAX_TABLE_ROWS,
    )
    with connection.cursor() as cursor:
        period = {"since": since, "until": until}
        cursor.execute(statement, period | {"teams": None if teams is None else list(teams), "cluster": cluster})
        records = cursor.fetchall()
    total = sum(row[10] for row in records) or 1.0
    rows = [_failure_row(values, total) for values in records]
    return FailureTable(
        rows=rows,
        num=sum(row.num for row in rows),
        gpu_hours=round(sum(row.gpu_hours for row in rows), 2),
        gpu_hours_lost=round(sum(row.gpu_hours_lost for row in rows), 2),
        kwh_lost=_round_figure(sum(known)) if (known := [row.kwh_lost for row in rows if row.kwh_lost]) else None,
    )


def _failure_row(values: Sequence[object], total: float) -> FailureRow:
    category, reason, num, *numbers = values
    demand, demand_mid, ran, ran_mid, back, back_mid, restarted, hours, lost, kwh_lost = numbers
    return FailureRow(
        category=str(category),
        reason=str(reason),
        num=int(num),  # type: ignore[call-overload]
        gpu_demand_avg=_round_figure(demand) or 0,
        gpu_demand_median=_round_figure(demand_mid) or 0,
        time_to_failure_min_avg=_round_figure(ran) or 0,
        time_to_failure_min_median=_round_figure(ran_mid) or 0,
        gpu_time_share_pct=_round_figure(float(hours) / total * 100) or 0,  # type: ignore[arg-type]
        time_to_restart_min_avg=_round_figure(back),
        time_to_restart_min_median=_round_figure(back_mid),
        restarted=int(restarted),  # type: ignore[call-overload]
        gpu_hours=_round_figure(hours) or 0,
        gpu_hours_lost=_round_figure(lost) or 0,
        kwh_lost=_round_figure(kwh_lost),
    )


def _round_figure(value: object) -> float | None:
    return None if value is None else round(float(value), 2)  # type: ignore[arg-type]


CSV_COLUMNS = tuple(field.name for field in fields(FailureRow))


def rows_as_csv(rows: Iterable[FailureRow]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, CSV_COLUMNS, lineterminator="\r\n")
    writer.writeheader()
    writer.writerows({name: escape_formula(value) for name, value in asdict(row).items()} for row in rows)
    return out.getvalue()


def escape_formula(value: object) -> object:
    """The value with a quote prepended if a spreadsheet would run it as a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in "=+-@\t\r" and value else value
