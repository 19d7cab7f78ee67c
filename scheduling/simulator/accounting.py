"""slurmrestd's accounting, /slurmdb, version v0.0.42: jobs in slurmdbd's words. Pure.

Jobs that the controller has forgotten are still reported here, from the store's second table. Who may use the cluster
is whoever has a job that the controller remembers. A cluster without accounting storage has no /slurmdb at all: 404,
as slurmrestd answers where Slurm has no slurmdbd.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jobs.hostlist import compress

from .values import Job
from .wire import (
    EMPTY_QUERY,
    PARTITION,
    QOS,
    BadBody,
    Cluster,
    Plain,
    exit_code,
    number,
    priority,
    time_limit,
)

UNIX_TIME = re.compile(r"(?:uts)?([0-9]{1,12})", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Query:
    """Which jobs are asked for, by moments of the cluster's clock and by names; an empty set means all."""

    start_time: float = 0.0
    end_time: float = float("inf")
    users: frozenset[str] = frozenset()
    accounts: frozenset[str] = frozenset()
    job_names: frozenset[str] = frozenset()

    def matches(self, job: Job) -> bool:
        """By time as slurmdbd does: jobs that waited or ran at any moment of the period."""
        asked = job.request
        in_period = job.submit_time <= self.end_time and (not job.ended_at or job.end_time >= self.start_time)
        wanted = ((asked.user, self.users), (asked.account, self.accounts), (asked.name, self.job_names))
        return in_period and all(not names or name in names for name, names in wanted)


def query_of(given: Mapping[str, str]) -> Query:
    return Query(
        start_time=_time(given, "start_time", Query.start_time),
        end_time=_time(given, "end_time", Query.end_time),
        users=_names(given, "users"),
        accounts=_names(given, "account"),
        job_names=_names(given, "job_name"),
    )


def _names(given: Mapping[str, str], field: str) -> frozenset[str]:
    return frozenset(filter(None, given.get(field, "").split(",")))


def _time(given: Mapping[str, str], field: str, default: float) -> float:
    """Unix seconds (plain or as Slurm's uts1700000000), or a date and time; without a zone it is the machine's own."""
    text = given.get(field, "")
    if not text:
        return default
    if seconds := UNIX_TIME.fullmatch(text):
        return float(seconds[1])
    try:
        if text[4:5] != "-":  # a compact date looks like unix seconds
            raise ValueError
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise BadBody(EMPTY_QUERY, f"{field}: {text!r:.40} is no time", f"#/{field}/") from None


def jobs(cluster: Cluster, seen: Iterable[Job], now: float) -> Plain:
    return {"jobs": [job(cluster, one, now) for one in seen]}


def job(cluster: Cluster, seen: Job, now: float) -> Plain:
    asked = seen.request
    return {
        "account": asked.account,
        "allocation_nodes": len(seen.nodes),
        "association": {**_association(cluster, asked.account, asked.user), "id": 0},
        "cluster": cluster.name,
        "comment": {"administrator": "", "job": asked.comment, "system": ""},
        "derived_exit_code": exit_code(seen),
        "exit_code": exit_code(seen),
        "flags": [],
        "group": asked.user,
        "hold": asked.held,
        "job_id": seen.id,
        "kill_request_user": "",
        "name": asked.name,
        "nodes": compress(seen.nodes) or "None assigned",
        "partition": asked.partition or PARTITION,
        "priority": priority(seen),
        "qos": QOS,
        "required": {"CPUs": asked.cpus_per_node, "memory_per_node": number(asked.memory_per_node_mb)},
        "script": asked.script,
        "state": {"current": [str(seen.state)], "reason": seen.reason.partition(":")[0]},
        "stderr": asked.stdout,
        "stdout": asked.stdout,
        "steps": [],
        "submit_line": "",
        "time": _times(seen, now),
        "tres": {"allocated": _tres(seen, len(seen.nodes)), "requested": _tres(seen, asked.node_count)},
        "used_gres": "",
        "user": asked.user,
        "wckey": {"wckey": "", "flags": []},
        "working_directory": asked.workdir,
    }


def _times(seen: Job, now: float) -> Plain:
    none = {"seconds": 0, "microseconds": 0}
    until = seen.ended_at or now
    return {
        "elapsed": max(int(until - seen.started_at), 0) if seen.started_at else 0,
        "eligible": int(seen.submit_time),
        "end": int(seen.end_time),
        "limit": time_limit(seen.request),
        "planned": number(max((seen.started_at or until) - seen.submitted_at, 0)),
        "start": int(seen.start_time),
        "submission": int(seen.submit_time),
        "suspended": 0,
        "system": none,
        "total": none,
        "user": none,
    }


def _tres(seen: Job, nodes: int) -> list[Plain]:
    asked = seen.request
    amounts = [
        (1, "cpu", "", asked.cpus_per_node),
        (2, "mem", "", asked.memory_per_node_mb),
        (4, "node", "", 1),
        (1001, "gres", "gpu", asked.gpus_per_node),
    ]
    return [{"type": kind, "name": name, "id": id_, "count": nodes * n} for id_, kind, name, n in amounts if nodes * n]


def _association(cluster: Cluster, account: str, user: str) -> Plain:
    return {"account": account, "cluster": cluster.name, "partition": "", "user": user}


def _people(seen: Iterable[Job]) -> list[tuple[str, str]]:
    return sorted({(one.request.account, one.request.user) for one in seen})


def associations(cluster: Cluster, seen: Iterable[Job]) -> Plain:
    rows = []
    for id_, (account, user) in enumerate(_people(seen), 1):
        whole: dict[str, Any] = _association(cluster, account, user)
        rows.append({**whole, "id": id_, "parent_account": "", "qos": [QOS], "is_default": True, "flags": []})
    return {"associations": rows}


def accounts(seen: Iterable[Job]) -> Plain:
    names = sorted({account for account, _ in _people(seen)})
    rows = [{"name": name, "organization": name, "description": name} for name in names]
    return {"accounts": [{**row, "coordinators": [], "flags": []} for row in rows]}


def qos() -> Plain:
    """One, without limits: the order and the quotas are not this cluster's business."""
    anything = number(None, infinite=True)
    limits = {"max": {"wall_clock": {"per": {"job": anything, "qos": anything}}}, "factor": {"set": False}}
    only = {"id": 1, "name": QOS, "description": "Normal", "flags": [], "priority": number(0), "limits": limits}
    return {"qos": [only]}
