"""Stores the state of a cluster in SQLite, one row per job and node, with synchronous writes.

Changes are written before they are confirmed, so kill -9 and power cuts lose nothing confirmed. Rows are complete
values, so writing one twice is harmless, and a restart reads them into the same `SimulatorSnapshot`.

A job that the controller forgets moves to a second table in the same transaction: the accounting storage. It keeps jobs
for `ACCOUNTING_RETENTION_S` after their end, at most `MAX_ACCOUNTING_JOBS`, without script and environment (like
slurmdbd by default).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from scheduling.simulation.machines.database import (
    SimulatorDatabase,
    WriteTransaction,
    job_from_json,
    node_from_json,
    to_json,
)
from scheduling.simulation.machines.values import SimulatedJob

from .values import ControllerState, SimulatorSnapshot, StateChanges

ACCOUNTING_RETENTION_S = 30 * 86_400.0
MAX_ACCOUNTING_JOBS = 100_000

TABLES = """
create table if not exists job (id integer primary key, body text not null);
create table if not exists node (name text primary key, place integer not null, body text not null);
create table if not exists accounted (id integer primary key, end_time real not null, body text not null);
create index if not exists accounted_end_time on accounted (end_time);
"""


class StateStore(SimulatorDatabase):
    def __init__(self, path: Path, *, accounting: bool = True, most_accounted: int = MAX_ACCOUNTING_JOBS) -> None:
        super().__init__(path, TABLES)
        self._path, self._accounting, self._most_accounted = path, accounting, most_accounted

    def load(self) -> SimulatorSnapshot | None:
        """The state as last written, or None if the store is empty."""
        nodes = [
            node_from_json(json.loads(body)) for (body,) in self._db.execute("select body from node order by place")
        ]
        if not nodes:
            return None
        jobs = [job_from_json(json.loads(body)) for (body,) in self._db.execute("select body from job order by id")]
        faults = self.newest_faults()
        row = self._db.execute("select body from clock").fetchone()
        clock = ControllerState(**json.loads(row[0])) if row else ControllerState()
        return SimulatorSnapshot(nodes=tuple(nodes), jobs=tuple(jobs), faults=tuple(faults), clock=clock)

    def begin(self, snapshot: SimulatorSnapshot) -> None:
        """Store a new cluster and delete the previous content."""
        with WriteTransaction(self._db):
            self._db.execute("delete from job")
            self._db.execute("delete from node")
            self._db.execute("delete from trouble")
            places = [(node.name, i, to_json(node)) for i, node in enumerate(snapshot.nodes)]
            self._db.executemany("insert into node values (?, ?, ?)", places)
            self._upsert_changes(StateChanges(jobs=snapshot.jobs, faults=snapshot.faults, clock=snapshot.clock))

    def write(self, changes: StateChanges) -> None:
        """Write the changes in one transaction; they are on disk on return."""
        with WriteTransaction(self._db):
            self._upsert_changes(changes)

    def accounting_jobs(self, job_id: int) -> list[SimulatedJob]:
        """The forgotten job with this id. Safe to call from any thread, like `accounting_jobs_since`."""
        return self._read_accounting("select body from accounted where id = ?", (job_id,))

    def accounting_jobs_since(self, end_time: float) -> list[SimulatedJob]:
        """The forgotten jobs that ended at this time of the cluster's clock or later."""
        return self._read_accounting("select body from accounted where end_time >= ? order by id", (end_time,))

    def _read_accounting(self, query: str, values: Sequence[float]) -> list[SimulatedJob]:
        with closing(sqlite3.connect(self._path)) as db:  # the other connection may be in a transaction
            return [job_from_json(json.loads(body)) for (body,) in db.execute(query, values)]

    def _upsert_changes(self, changes: StateChanges) -> None:
        rows = [(job.id, to_json(job)) for job in changes.jobs]
        self._db.executemany("insert into job values (?, ?) on conflict do update set body = excluded.body", rows)
        if changes.forgotten:
            self._move_to_accounting(changes.forgotten)
        updates = [(to_json(node), node.name) for node in changes.nodes]
        self._db.executemany("update node set body = ? where name = ?", updates)
        self._upsert_faults(changes.faults)
        if changes.clock:
            self._db.execute("insert or replace into clock values (1, ?)", (to_json(changes.clock),))

    def _move_to_accounting(self, jobs: Sequence[SimulatedJob]) -> None:
        self._db.executemany("delete from job where id = ?", [(job.id,) for job in jobs])
        if self._accounting:
            rows = [(job.id, job.end_time, to_json(_without_script(job))) for job in jobs]
            self._db.executemany("insert or replace into accounted values (?, ?, ?)", rows)
            self._prune_accounting(max(job.end_time for job in jobs), max(job.id for job in jobs))

    def _prune_accounting(self, end_time: float, job_id: int) -> None:
        """Delete old jobs. Ids only grow, so limiting the range of ids limits the table without counting rows."""
        self._db.execute("delete from accounted where end_time < ?", (end_time - ACCOUNTING_RETENTION_S,))
        self._db.execute("delete from accounted where id <= ?", (job_id - self._most_accounted,))


def _without_script(job: SimulatedJob) -> SimulatedJob:
    return replace(job, request=replace(job.request, script="", environment={}))
