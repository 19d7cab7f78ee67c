"""Stores the state of a simulated Kubernetes cluster in SQLite, one row per object, with synchronous writes.

Changes are written before they are confirmed, so kill -9 and power cuts lose nothing confirmed. Rows are complete
values, so writing one twice is harmless, and a restart reads them into the same `ClusterSnapshot`. Leases of nodes are
not stored: their kubelets write them again. Versions therefore continue at a limit that was stored in advance.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scheduling.simulation.machines.database import (
    SimulatorDatabase,
    WriteTransaction,
    job_from_json,
    node_from_json,
    to_json,
)

from .objects import ObjectKey
from .store import StoreChanges
from .values import (
    ClusterChanges,
    ClusterClock,
    ClusterSnapshot,
    ContainerEnd,
    Execution,
    Machine,
    PodRuntime,
    PodStep,
)

VERSIONS_IN_ADVANCE = 100_000
TABLES = """
create table if not exists object (
    resource text not null, namespace text not null, name text not null, body text not null,
    primary key (resource, namespace, name)
) without rowid;
create table if not exists machine (name text primary key, place integer not null, body text not null);
create table if not exists pod_runtime (uid text primary key, body text not null);
create table if not exists execution (id integer primary key, body text not null);
create table if not exists effect (line text not null);
create table if not exists version (one integer primary key check (one = 1), most integer not null);
"""


class ClusterDatabase(SimulatorDatabase):
    def __init__(self, path: Path) -> None:
        super().__init__(path, TABLES)
        self._most_version = 0  # versions up to this one are used after a restart by nobody else

    def load(self) -> ClusterSnapshot | None:
        """The state as last written, or None if the database is empty."""
        machines = [_machine(json.loads(body)) for (body,) in self._rows("machine order by place")]
        if not machines:
            return None
        row = self._db.execute("select most from version").fetchone()
        clock = self._db.execute("select body from clock").fetchone()
        return ClusterSnapshot(
            machines=tuple(machines),
            objects=tuple(self._objects()),
            version=int(row[0]) if row else 1,
            pods=tuple(_pod_runtime(json.loads(body)) for (body,) in self._rows("pod_runtime")),
            executions=tuple(_execution(json.loads(body)) for (body,) in self._rows("execution order by id")),
            faults=tuple(self.newest_faults()),
            clock=ClusterClock(**json.loads(clock[0])) if clock else ClusterClock(),
        )

    def begin(self, snapshot: ClusterSnapshot) -> None:
        """Store the machines of a new cluster."""
        with WriteTransaction(self._db):
            rows = [(one.node.name, place, to_json(one)) for place, one in enumerate(snapshot.machines)]
            self._db.executemany("insert into machine values (?, ?, ?)", rows)

    def write(self, changes: ClusterChanges) -> None:
        """Write the changes in one transaction; they are on disk on return."""
        with WriteTransaction(self._db):
            self._write_objects(changes.objects)
            self._db.executemany(
                "update machine set body = ? where name = ?",
                [(to_json(one), one.node.name) for one in changes.machines],
            )
            self._write_values("pod_runtime", "uid", changes.pods)
            self._write_values("execution", "id", changes.executions)
            self._upsert_faults(changes.faults)
            self._db.execute("delete from effect")  # they were appended to their file before this write began
            self._db.executemany("insert into effect values (?)", [(line,) for line in changes.effects])
            if changes.clock is not None:
                self._db.execute("insert or replace into clock values (1, ?)", (to_json(changes.clock),))

    def newest_effects(self) -> list[str]:
        """The lines of the last write, which may be missing in the effects file if the server was killed."""
        return [line for (line,) in self._db.execute("select line from effect order by rowid")]

    def reserve_versions(self, version: int) -> None:
        """Make sure that a restart begins after this version."""
        if version + VERSIONS_IN_ADVANCE // 2 > self._most_version:
            self._most_version = version + VERSIONS_IN_ADVANCE
            self._db.execute("insert or replace into version values (1, ?)", (self._most_version,))

    def _rows(self, table: str) -> Any:
        return self._db.execute(f"select body from {table}")  # noqa: S608 - tables of this module

    def _objects(self) -> list[tuple[ObjectKey, dict[str, Any]]]:
        rows = self._db.execute("select resource, namespace, name, body from object order by 1, 2, 3")
        return [(ObjectKey(resource, namespace, name), json.loads(body)) for resource, namespace, name, body in rows]

    def _write_objects(self, changes: StoreChanges) -> None:
        rows = [(*key, stored.text.decode()) for key, stored in changes.objects.items()]
        self._db.executemany("insert or replace into object values (?, ?, ?, ?)", rows)
        self._db.executemany(
            "delete from object where resource = ? and namespace = ? and name = ?",
            [tuple(key) for key in changes.deleted],
        )

    def _write_values(self, table: str, column: str, changes: Mapping[Any, Any]) -> None:
        present = [(key, to_json(value)) for key, value in changes.items() if value is not None]
        gone = [(key,) for key, value in changes.items() if value is None]
        self._db.executemany(f"insert or replace into {table} values (?, ?)", present)  # noqa: S608
        self._db.executemany(f"delete from {table} where {column} = ?", gone)  # noqa: S608


def _machine(raw: Mapping[str, Any]) -> Machine:
    slices = raw.get("mig_slices", {})  # missing in files of older versions
    return Machine(node=node_from_json(raw["node"]), kubelet=raw["kubelet"], mig_slices=slices)


def _pod_runtime(raw: Mapping[str, Any]) -> PodRuntime:
    end = ContainerEnd(**raw["end"]) if raw["end"] else None
    return PodRuntime(**{**raw, "step": PodStep(raw["step"]), "gpus": tuple(raw["gpus"]), "end": end})


def _execution(raw: Mapping[str, Any]) -> Execution:
    return Execution(job=job_from_json(raw["job"]), pods=tuple(raw["pods"]), stopping=tuple(raw["stopping"]))
