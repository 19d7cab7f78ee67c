"""Energy, its cost and its CO2 by day, team, kind, cluster, attempt and cause. Writes nothing.

Prices and carbon intensities are applied when they are read, hour by hour, so a price that is imported later counts for
the past. An hour that is only partly in the period counts in proportion to the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection

from jobs.models import Cluster
from scheduling.power.rules.energy import J_PER_KWH
from scheduling.power.rules.energy_use import EnergyUse, total_use

# `part` is how much of the hour is in the period. The current hour has energy only up to `counted_until`
PART_OF_HOUR = """least(1, greatest(0, extract(epoch FROM least(over, %(until)s) - greatest(h.start, %(since)s))
  / greatest(extract(epoch FROM over - h.start), 1)))::float"""
HOURS_SQL = """
SELECT h.*,
  coalesce(p.kwh_price, c.kwh_price) AS price, coalesce(p.co2_g_per_kwh, c.co2_g_per_kwh) AS co2, {part} AS part
FROM {hours} h JOIN jobs_cluster c ON c.id = h.cluster_id
LEFT JOIN jobs_energyclock k ON k.cluster_id = h.cluster_id
LEFT JOIN jobs_energyprice p ON p.cluster_id = h.cluster_id AND p.start = h.start
CROSS JOIN LATERAL (SELECT least(h.start + interval '1 hour', greatest(k.counted_until, h.start)) AS over) AS e
"""
# A cost is unknown if it is unknown in one hour with energy: a part of it would look like all of it
SUMS = """sum(counter_j * part), sum(power_j * part), sum(estimate_j * part), sum(host_j * part), sum(gpu_s * part),
  CASE WHEN bool_and(price IS NOT NULL) THEN sum((counter_j + power_j + estimate_j + host_j) * part * price) END,
  CASE WHEN bool_and(co2 IS NOT NULL) THEN sum((counter_j + power_j + estimate_j + host_j) * part * co2) END"""
# Hundreds of attempts have energy in one hour. Prices and parts are the same for all, so their energy is added up first
HOURS_BY_OWNER = """(
SELECT h.cluster_id, h.start, j.team_id, coalesce(j.kind, '') AS kind, sum(h.counter_j) AS counter_j,
  sum(h.power_j) AS power_j, sum(h.estimate_j) AS estimate_j, sum(h.host_j) AS host_j, sum(h.gpu_s) AS gpu_s
FROM jobs_energyhour h LEFT JOIN jobs_attempt a ON a.id = h.attempt_id LEFT JOIN jobs_job j ON j.id = a.job_id
WHERE h.cluster_id = ANY(%(clusters)s) AND h.start > %(since)s - interval '1 hour' AND h.start < %(until)s
GROUP BY 1, 2, 3, 4)"""
PERIOD_SQL = f"""
SELECT cluster_id, date_trunc('day', start, 'UTC'), team_id, kind, {SUMS}
FROM ({HOURS_SQL.format(hours=HOURS_BY_OWNER, part=PART_OF_HOUR)}) AS h GROUP BY 1, 2, 3, 4
"""  # noqa: S608 - constants
ATTEMPTS_SQL = f"""
SELECT attempt_id, {SUMS}
FROM ({HOURS_SQL.format(hours="jobs_energyhour", part=1)} WHERE h.attempt_id = ANY(%(attempts)s)) AS h GROUP BY 1
"""  # noqa: S608 - constants


@dataclass(frozen=True, kw_only=True)
class EnergyRow:
    """The energy of one day (UTC) by cluster, team and kind; `team` is None if no job held the GPUs."""

    cluster: str
    day: str
    team: int | None
    kind: str
    use: EnergyUse


def energy_rows(clusters: Iterable[Cluster], since: datetime, until: datetime) -> list[EnergyRow]:
    names = {cluster.pk: cluster.name for cluster in clusters}
    rows = _fetch(PERIOD_SQL, {"clusters": list(names), "since": since, "until": until})
    return [
        EnergyRow(cluster=names[cluster], day=f"{day:%F}", team=team, kind=kind, use=_use(sums))
        for cluster, day, team, kind, *sums in rows
    ]


def grouped(rows: Iterable[EnergyRow], name: Callable[[EnergyRow], str]) -> dict[str, EnergyUse]:
    """The energy by the name of each row."""
    by_name: dict[str, list[EnergyUse]] = {}
    for row in rows:
        by_name.setdefault(name(row), []).append(row.use)
    return {key: total for key, uses in by_name.items() if (total := total_use(uses))}


def attempt_energy(attempts: Sequence[int]) -> Mapping[int, EnergyUse]:
    """The energy of each attempt, in its whole life. Attempts without telemetry are missing."""
    rows = _fetch(ATTEMPTS_SQL, {"attempts": list(attempts)})
    return {attempt: _use(sums) for attempt, *sums in rows}


def _fetch(sql: str, params: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return cursor.fetchall()


def _use(sums: Sequence[float | None]) -> EnergyUse:
    counter, power, estimate, host, gpu_s = (value or 0.0 for value in sums[:5])
    cost, co2_g = sums[5:]
    return EnergyUse(
        counter_j=counter,
        power_j=power,
        estimate_j=estimate,
        host_j=host,
        gpu_hours=gpu_s / 3600,
        cost=None if cost is None else cost / J_PER_KWH,
        co2_kg=None if co2_g is None else co2_g / J_PER_KWH / 1000,
    )


def energy_document(use: EnergyUse | None) -> dict[str, float | str | None]:
    """Return the energy as the API outputs it. Nulls without energy."""
    if use is None:
        return dict.fromkeys(("kwh", "estimated_kwh", "host_kwh", "energy_cost", "co2_kg")) | {"energy_basis": ""}
    return {
        "kwh": use.kwh,
        "estimated_kwh": use.estimated_kwh,
        "host_kwh": use.host_kwh,
        "energy_cost": use.cost,
        "co2_kg": use.co2_kg,
        "energy_basis": use.basis,
    }
