"""The part that the databases of all simulated clusters share: settings, plans of jobs, faults, transactions.

Writes are synchronous, so what a server has confirmed survives kill -9 and power cuts.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from jobs.core.lifecycle import Flag, NodeFlag, State

from .fault_registry import MAX_FAULTS
from .faults import ClusterFault, FaultImpact, FaultKind
from .values import ProcessExit, SimulatedJob, SimulatedJobRequest, SimulatedNode, SpeedChange

MAX_PLANS = 20_000  # only the newest plans are kept
SHARED_TABLES = """
create table if not exists trouble (number integer primary key, body text not null);
create table if not exists clock (one integer primary key check (one = 1), body text not null);
create table if not exists setting (name text primary key, value text not null);
create table if not exists plan (key text primary key, body text not null);
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


def node_from_json(raw: Mapping[str, Any]) -> SimulatedNode:
    power = NodeFlag(raw["power"]) if raw.get("power") else None
    return SimulatedNode(**{**raw, "features": tuple(raw["features"]), "power": power})


def fault_from_json(raw: Mapping[str, Any]) -> ClusterFault:
    return ClusterFault(**{**raw, "kind": FaultKind(raw["kind"]), "jobs": tuple(raw["jobs"])})


def job_from_json(raw: Mapping[str, Any]) -> SimulatedJob:
    request = raw["request"]
    return SimulatedJob(
        **{
            **raw,
            "request": SimulatedJobRequest(**{**request, "required_nodes": tuple(request["required_nodes"])}),
            "state": State(raw["state"]),
            "flags": frozenset(Flag(flag) for flag in raw["flags"]),
            "nodes": tuple(raw["nodes"]),
            "gpus": {name: tuple(indices) for name, indices in raw["gpus"].items()},
            "exit": ProcessExit(**raw["exit"]),
            "blows": tuple(FaultImpact(**{**blow, "kind": FaultKind(blow["kind"])}) for blow in raw.get("blows", ())),
            "speeds": tuple(SpeedChange(**change) for change in raw.get("speeds", ())),
        }
    )
