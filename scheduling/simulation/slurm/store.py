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
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from jobs.core.lifecycle import Flag, NodeFlag, State

from .fault_registry import MAX_FAULTS
from .faults import ClusterFault, FaultImpact, FaultKind
from .values import (
    ControllerState,
    ProcessExit,
    SimulatorSnapshot,
    SlurmJob,
    SlurmJobRequest,
    SlurmNode,
    SpeedChange,
    StateChanges,
)

ACCOUNTING_RETENTION_S = 30 * 86_400.0
MAX_ACCOUNTING_JOBS = 100_000
MAX_PLANS = 20_000  # only the newest plans are kept

SHARED_TABLES = """
create table if not exists trouble (number integer primary key, body text not null);
create table if not exists clock (one integer primary key check (one = 1), body text not null);
create table if not exists setting (name text primary key, value text not null);
create table if not exists plan (key text primary key, body text not null);
"""
TABLES = """
create table if not exists job (id integer primary key, body text not null);
create table if not exists node (name text primary key, place integer not null, body text not null);
create table if not exists accounted (id integer primary key, end_time real not null, body text not null);
create index if not exists accounted_end_time on accounted (end_time);
"""


class SimulatorDatabase:
    """What the databases of all simulated clusters have in common: settings, plans of jobs, and faults."""

    def __init__(self, path: Path, tables: str) -> None:
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None, factory=SharedConnection)
        self._db.execute("pragma journal_mode = wal")
        self._db.execute("pragma synchronous = full")
        self._db.executescript(SHARED_TABLES + tables)

    def close(self) -> None:
        self._db.close()

    def setting_or_default(self, name: str, value: str) -> str:
        """The first value stored under the name: a restart cannot change a cluster's seed."""
        self._db.execute("insert or ignore into setting values (?, ?)", (name, value))
        return str(self._db.execute("select value from setting where name = ?", (name,)).fetchone()[0])

    def save_job_plans(self, plans: Mapping[str, Mapping[str, str]]) -> None:
        with WriteTransaction(self._db):
            rows = [(key, json.dumps(plan)) for key, plan in plans.items()]
            self._db.executemany("insert or replace into plan values (?, ?)", rows)
            self._db.execute("delete from plan where rowid <= (select max(rowid) from plan) - ?", (MAX_PLANS,))

    def job_plan(self, key: str) -> dict[str, str]:
        """The SIM_ variables of this job; empty without a plan."""
        row = self._db.execute("select body from plan where key = ?", (key,)).fetchone()
        return dict(json.loads(row[0])) if row else {}

    def newest_faults(self) -> list[ClusterFault]:
        newest = "select body from (select * from trouble order by number desc limit ?) order by number"
        return [fault_from_json(json.loads(body)) for (body,) in self._db.execute(newest, (MAX_FAULTS,))]

    def _upsert_faults(self, faults: Sequence[ClusterFault]) -> None:
        rows = [(fault.number, to_json(fault)) for fault in faults]
        self._db.executemany("insert or replace into trouble values (?, ?)", rows)


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

    def accounting_jobs(self, job_id: int) -> list[SlurmJob]:
        """The forgotten job with this id. Safe to call from any thread, like `accounting_jobs_since`."""
        return self._read_accounting("select body from accounted where id = ?", (job_id,))

    def accounting_jobs_since(self, end_time: float) -> list[SlurmJob]:
        """The forgotten jobs that ended at this time of the cluster's clock or later."""
        return self._read_accounting("select body from accounted where end_time >= ? order by id", (end_time,))

    def _read_accounting(self, query: str, values: Sequence[float]) -> list[SlurmJob]:
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

    def _move_to_accounting(self, jobs: Sequence[SlurmJob]) -> None:
        self._db.executemany("delete from job where id = ?", [(job.id,) for job in jobs])
        if self._accounting:
            rows = [(job.id, job.end_time, to_json(_without_script(job))) for job in jobs]
            self._db.executemany("insert or replace into accounted values (?, ?, ?)", rows)
            self._prune_accounting(max(job.end_time for job in jobs), max(job.id for job in jobs))

    def _prune_accounting(self, end_time: float, job_id: int) -> None:
        """Delete old jobs. Ids only grow, so limiting the range of ids limits the table without counting rows."""
        self._db.execute("delete from accounted where end_time < ?", (end_time - ACCOUNTING_RETENTION_S,))
        self._db.execute("delete from accounted where id <= ?", (job_id - self._most_accounted,))


def _without_script(job: SlurmJob) -> SlurmJob:
    return replace(job, request=replace(job.request, script="", environment={}))


class SharedConnection(sqlite3.Connection):
    """A connection that several threads use. It has one transaction at a time, so they take turns."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.turn = threading.Lock()


class WriteTransaction:
    """Starts a transaction, which sqlite3's `with connection` does not do, and commits or rolls it back."""

    def __init__(self, db: SharedConnection) -> None:
        self._db = db

    def __enter__(self) -> None:
        self._db.turn.acquire()
        try:
            self._db.execute("begin immediate")
        except sqlite3.Error:
            self._db.turn.release()
            raise

    def __exit__(self, kind: object, *rest: object) -> None:
        try:
            self._db.execute("rollback" if kind else "commit")
        finally:
            self._db.turn.release()


def to_json(value: object) -> str:
    """A dataclass of a simulated cluster as JSON."""
    return json.dumps(value, default=_json_default, separators=(",", ":"))


def _json_default(value: object) -> Any:
    """Dataclasses as objects, frozensets as lists; other types raise."""
    if isinstance(value, frozenset):
        return sorted(value)
    return {f.name: getattr(value, f.name) for f in fields(value)}  # type: ignore[arg-type]


def node_from_json(raw: Mapping[str, Any]) -> SlurmNode:
    power = NodeFlag(raw["power"]) if raw.get("power") else None
    return SlurmNode(**{**raw, "features": tuple(raw["features"]), "power": power})


def fault_from_json(raw: Mapping[str, Any]) -> ClusterFault:
    return ClusterFault(**{**raw, "kind": FaultKind(raw["kind"]), "jobs": tuple(raw["jobs"])})


def job_from_json(raw: Mapping[str, Any]) -> SlurmJob:
    request = raw["request"]
    return SlurmJob(
        **{
            **raw,
            "request": SlurmJobRequest(**{**request, "required_nodes": tuple(request["required_nodes"])}),
            "state": State(raw["state"]),
            "flags": frozenset(Flag(flag) for flag in raw["flags"]),
            "nodes": tuple(raw["nodes"]),
            "gpus": {name: tuple(indices) for name, indices in raw["gpus"].items()},
            "exit": ProcessExit(**raw["exit"]),
            "blows": tuple(FaultImpact(**{**blow, "kind": FaultKind(blow["kind"])}) for blow in raw.get("blows", ())),
            "speeds": tuple(SpeedChange(**change) for change in raw.get("speeds", ())),
        }
    )
