"""Writes the history of the demo, in one transaction.

A kill at any time leaves nothing behind, and the next start of the demo begins again. A second process waits for the
first one's transaction and then finds the history. Keys below `RESERVED_KEYS` are left free when the demo is seeded, so
that jobs which users submit meanwhile come after the history in every list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from itertools import islice
from math import inf
from operator import attrgetter

from django.contrib.auth import get_user_model
from django.db import connection, models, transaction

from failures.models import Decision, Diagnosis, Incident
from jobs.core.lifecycle import JobKind
from jobs.models import (
    Allocation,
    Attempt,
    Cluster,
    ClusterMinute,
    Event,
    Job,
    LatestProgress,
    Node,
    Progress,
    Sample,
    Team,
    bulk_copy,
)
from scheduling.models import Campaign, Evaluation, Shard, Trial
from scheduling.power.actions.energy import EnergyColumns, add_energy
from scheduling.simulation.demo.history import sample_copy
from scheduling.simulation.demo.history.energy import HistoryEnergy
from scheduling.simulation.demo.history.keys import keys_by_time, number_by_time, refresh_references
from scheduling.simulation.demo.history.load import MINUTE_COLUMNS, LoadSeries
from scheduling.simulation.demo.history.logs import StoreLogs, store_history_logs
from scheduling.simulation.demo.history.rows import HistoryBuilder
from scheduling.simulation.demo.history.telemetry import FINE_S, TelemetrySeries
from scheduling.simulation.demo.history.training import NEWEST_COLUMNS, PROGRESS_COLUMNS, training_rows
from scheduling.simulation.demo.history.values import (
    ALLOCATION_COLUMNS,
    DemoUser,
    EventValues,
    HistoryPlace,
    HistoryRows,
)
from scheduling.simulation.demo.sites import DEMO_TEAMS, history_settings
from scheduling.simulation.demo.users import benchmark_suites
from scheduling.simulation.drill.history import HistorySettings, SiteHistory, simulate_history

# The most rows that a history may have in each table whose rows are listed by their key
RESERVED_KEYS: dict[type[models.Model], int] = {
    Job: 99_999, Attempt: 99_999, Event: 999_999, Diagnosis: 9_999, Incident: 9_999, Decision: 9_999,
    Campaign: 9_999, Evaluation: 99_999, Trial: 99_999, Shard: 99_999,
}  # fmt: skip
PLAIN_TABLES = {"allocations": Allocation, "events": Event}  # whose rows are no instances of their models
LOCK_KEY = 0x0E12
TRAININGS_PER_INSERT = 200
SIMULATION_SHARE, ROWS_SHARE = 0.4, 0.6  # of the whole time, when the simulation and when the rows are done


def reserve_keys() -> None:
    """Leave the keys of the history free. Only for an installation without jobs."""
    with connection.cursor() as cursor:
        for model, last in RESERVED_KEYS.items():
            cursor.execute("SELECT setval(pg_get_serial_sequence(%s, 'id'), %s)", [model._meta.db_table, last])


def can_have_history() -> bool:
    """Whether the keys are still free: neither an older installation, nor one that already has its history."""
    return not Job.objects.filter(pk__lte=RESERVED_KEYS[Job]).exists() and _keys_are_reserved()


def _keys_are_reserved() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT last_value FROM jobs_job_id_seq")
        return bool(cursor.fetchone()[0] >= RESERVED_KEYS[Job])


def write_history(
    stores: Mapping[Cluster, StoreLogs], now: datetime, report: Callable[[float], None], *, days: int
) -> int:
    """Simulate and write the history of these clusters, which ends now. Logs are stored with the cluster's function.
    Returns the number of jobs, 0 if the history is there already."""
    if not can_have_history():
        return 0
    began = now.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=days)
    histories = list(_simulated(list(stores), began, (now - began) / timedelta(days=1), report))
    rows, suites = HistoryRows(), benchmark_suites(began)
    builders = [HistoryBuilder(history, place, suites, rows) for place, history in histories]
    _make_rows(builders, stores, report)
    _number_rows(rows)
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK_KEY])
        if not can_have_history():  # another process was faster
            return 0
        _insert_history(rows, builders, report)
        Cluster.objects.filter(pk__in=[cluster.pk for cluster in stores]).update(created_at=began)
    report(1.0)
    return len(rows.jobs)


def _make_rows(
    builders: Sequence[HistoryBuilder], stores: Mapping[Cluster, StoreLogs], report: Callable[[float], None]
) -> None:
    """Make the rows of one cluster after the other, and store the logs of its jobs."""
    keys = keys_by_time([builder.works for builder in builders])
    for number, builder in enumerate(builders):
        report(SIMULATION_SHARE + (ROWS_SHARE - SIMULATION_SHARE) * number / len(builders))
        builder.add_rows(keys[number])
        store_history_logs(builder, stores[builder.place.cluster])


def _insert_history(rows: HistoryRows, builders: Sequence[HistoryBuilder], report: Callable[[float], None]) -> None:
    report(ROWS_SHARE)
    _insert(rows)
    energy = []
    for number, builder in enumerate(builders, start=1):
        report(ROWS_SHARE + (1 - ROWS_SHARE) * number / (len(builders) + 2))
        energy.append(_insert_series(builder))
    report(ROWS_SHARE + (1 - ROWS_SHARE) * (len(builders) + 1) / (len(builders) + 2))
    connection.check_constraints()  # takes many seconds, so it precedes the locks of `add_energy`
    for builder, columns in zip(builders, energy, strict=True):
        add_energy(builder.place.cluster, columns)


def _simulated(
    clusters: Sequence[Cluster], began: datetime, days: float, report: Callable[[float], None]
) -> Iterator[tuple[HistoryPlace, SiteHistory]]:
    """Simulate one cluster after the other."""
    users, share = _users_by_kind(), SIMULATION_SHARE / len(clusters)
    for number, cluster in enumerate(clusters):
        nodes = list(Node.objects.filter(cluster=cluster, gpus__gt=0).order_by("name"))
        size = {"nodes": len(nodes), "gpus_per_node": max(node.gpus for node in nodes)}
        place = HistoryPlace(cluster=cluster, nodes=nodes, users=users, began=began)
        settings = history_settings(cluster.name, began=began, days=days, **size)
        yield place, _simulate(settings, report, number * share, share)


def _simulate(settings: HistorySettings, report: Callable[[float], None], base: float, share: float) -> SiteHistory:
    for result in simulate_history(settings):
        if isinstance(result, SiteHistory):
            return result
        report(base + result * share)
    raise AssertionError("a simulation ends with its history")


def _number_rows(rows: HistoryRows) -> None:
    """Number the rows of all clusters in the order of time, as if they had been written then."""
    rows.jobs.sort(key=attrgetter("pk"))
    rows.attempts.sort(key=attrgetter("pk"))
    rows.events.sort(key=attrgetter("at"))
    for table, column in (
        (rows.diagnoses, "judged_at"), (rows.decisions, "at"), (rows.incidents, "opened_at"),
        (rows.campaigns, "created_at"),
    ):  # fmt: skip
        number_by_time(table, column)
    refresh_references(rows.diagnoses, ["incident"])
    refresh_references(rows.decisions, ["incident", "diagnosis"])
    refresh_references(rows.incidents, ["lead"])
    refresh_references(rows.diagnosis_nodes, ["diagnosis"])
    refresh_references(rows.incident_nodes, ["incident"])
    refresh_references([*rows.evaluations, *rows.trials], ["campaign"])


def _users_by_kind() -> dict[JobKind, list[DemoUser]]:
    ids = dict(get_user_model().objects.values_list("username", "pk"))
    teams = dict(Team.objects.values_list("name", "pk"))
    return {
        kind: [DemoUser(id=ids[person], name=person, team_id=teams[name]) for person in team.people]
        for name, team in DEMO_TEAMS.items()
        for kind in team.kinds
    }


def _insert(rows: HistoryRows) -> None:
    for table in fields(rows):
        new = getattr(rows, table.name)
        model = PLAIN_TABLES.get(table.name) or (type(new[0]) if new else None)
        last = RESERVED_KEYS.get(model) if model else None
        if last is not None and len(new) > last:
            raise ValueError(f"the history has {len(new)} {table.name}, and {last} keys are reserved for them")
        if table.name not in PLAIN_TABLES:
            bulk_copy.insert(new)
    bulk_copy.insert_values(Allocation, ALLOCATION_COLUMNS, rows.allocations)
    bulk_copy.insert_values(Event, ("id", *EventValues._fields), ((n, *row) for n, row in enumerate(rows.events, 1)))


def _insert_series(builder: HistoryBuilder) -> EnergyColumns:
    """Insert the rows that no other row names, and which are most of all rows, a part at a time. Return the energy."""
    history, place, placed = builder.history, builder.place, builder.placed
    # The demo may have recorded some minutes itself since it started, before the history ends
    recorded = set(ClusterMinute.objects.filter(cluster=place.cluster).values_list("at", flat=True))
    minutes = (row for row in LoadSeries(history, place, placed).minutes() if row[1] not in recorded)
    bulk_copy.insert_values(ClusterMinute, MINUTE_COLUMNS, minutes)
    trainings = training_rows(placed, place, history.plan)
    while batch := list(islice(trainings, TRAININGS_PER_INSERT)):
        points = ((rows.attempt_id, *point) for rows in batch for point in rows.points)
        bulk_copy.insert_values(Progress, PROGRESS_COLUMNS, points)
        bulk_copy.insert_values(LatestProgress, NEWEST_COLUMNS, (rows.newest for rows in batch))
        bulk_copy.insert([checkpoint for rows in batch for checkpoint in rows.checkpoints])
    energy = HistoryEnergy(place, placed)
    _insert_telemetry(TelemetrySeries(history, place, placed, _first_sample_s(place)), energy)
    return energy.columns()


def _insert_telemetry(series: TelemetrySeries, energy: HistoryEnergy) -> None:
    """Insert the samples, and add their power to the energy."""
    with bulk_copy.copy_into(Sample._meta.db_table, sample_copy.COLUMNS, "(FORMAT binary)") as copy:
        copy.write(sample_copy.HEADER)
        for node in series.nodes():
            energy.add_node(node.holds, node.power_w, FINE_S)
            for block in series.copy_blocks(node):
                copy.write(block)
        copy.write(sample_copy.TRAILER)


def _first_sample_s(place: HistoryPlace) -> float:
    """When the demo recorded the first telemetry itself, which may be minutes before the history ends."""
    first = Sample.objects.filter(node__cluster=place.cluster).aggregate(at=models.Min("at"))["at"]
    return inf if first is None else (first - place.began).total_seconds()
