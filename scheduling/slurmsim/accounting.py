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

from jobs.core.hostlist import compress

from .values import SlurmJob
from .wire import (
    EMPTY_QUERY,
    PARTITION,
    QOS,
    ClusterInfo,
    InvalidRequest,
    JsonObject,
    exit_code_struct,
    number_struct,
    priority_struct,
    time_limit_struct,
)

UNIX_TIME = re.compile(r"(?:uts)?([0-9]{1,12})", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class AccountingQuery:
    """Which jobs are asked for, by moments of the cluster's clock and by names; an empty set means all."""

    start_time: float = 0.0
    end_time: float = float("inf")
    users: frozenset[str] = frozenset()
    accounts: frozenset[str] = frozenset()
    job_names: frozenset[str] = frozenset()

    def matches(self, job: SlurmJob) -> bool:
        """By time as slurmdbd does: jobs that waited or ran at any moment of the period."""
        asked = job.request
        in_period = job.submit_time <= self.end_time and (not job.ended_at or job.end_time >= self.start_time)
        wanted = ((asked.user, self.users), (asked.account, self.accounts), (asked.name, self.job_names))
        return in_period and all(not names or name in names for name, names in wanted)


def parse_accounting_query(given: Mapping[str, str]) -> AccountingQuery:
    return AccountingQuery(
        start_time=_parse_query_time(given, "start_time", AccountingQuery.start_time),
        end_time=_parse_query_time(given, "end_time", AccountingQuery.end_time),
        users=_name_set(given, "users"),
        accounts=_name_set(given, "account"),
        job_names=_name_set(given, "job_name"),
    )


def _name_set(given: Mapping[str, str], field: str) -> frozenset[str]:
    return frozenset(filter(None, given.get(field, "").split(",")))


def _parse_query_time(given: Mapping[str, str], field: str, default: float) -> float:
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
        raise InvalidRequest(EMPTY_QUERY, f"{field}: {text!r:.40} is no time", f"#/{field}/") from None


def accounting_jobs_body(cluster: ClusterInfo, seen: Iterable[SlurmJob], now: float) -> JsonObject:
    return {"jobs": [accounting_job_body(cluster, one, now) for one in seen]}


def accounting_job_body(cluster: ClusterInfo, seen: SlurmJob, now: float) -> JsonObject:
    asked = seen.request
    return {
        "account": asked.account,
        "allocation_nodes": len(seen.nodes),
        "association": {**_association_key(cluster, asked.account, asked.user), "id": 0},
        "cluster": cluster.name,
        "comment": {"administrator": "", "job": asked.comment, "system": ""},
        "derived_exit_code": exit_code_struct(seen),
        "exit_code": exit_code_struct(seen),
        "flags": [],
        "group": asked.user,
        "hold": asked.held,
        "job_id": seen.id,
        "kill_request_user": "",
        "name": asked.name,
        "nodes": compress(seen.nodes) or "None assigned",
        "partition": asked.partition or PARTITION,
        "priority": priority_struct(seen),
        "qos": QOS,
        "required": {"CPUs": asked.cpus_per_node, "memory_per_node": number_struct(asked.memory_per_node_mb)},
        "script": asked.script,
        "state": {"current": [str(seen.state)], "reason": seen.reason.partition(":")[0]},
        "stderr": asked.stdout,
        "stdout": asked.stdout,
        "steps": [],
        "submit_line": "",
        "time": _accounting_times(seen, now),
        "tres": {"allocated": _tres_entries(seen, len(seen.nodes)), "requested": _tres_entries(seen, asked.node_count)},
        "used_gres": "",
        "user": asked.user,
        "wckey": {"wckey": "", "flags": []},
        "working_directory": asked.workdir,
    }


def _accounting_times(seen: SlurmJob, now: float) -> JsonObject:
    none = {"seconds": 0, "microseconds": 0}
    until = seen.ended_at or now
    return {
        "elapsed": max(int(until - seen.started_at), 0) if seen.started_at else 0,
        "eligible": int(seen.submit_time),
        "end": int(seen.end_time),
        "limit": time_limit_struct(seen.request),
        "planned": number_struct(max((seen.started_at or until) - seen.submitted_at, 0)),
        "start": int(seen.start_time),
        "submission": int(seen.submit_time),
        "suspended": 0,
        "system": none,
        "total": none,
        "user": none,
    }


def _tres_entries(seen: SlurmJob, nodes: int) -> list[JsonObject]:
    asked = seen.request
    amounts = [
        (1, "cpu", "", asked.cpus_per_node),
        (2, "mem", "", asked.memory_per_node_mb),
        (4, "node", "", 1),
        (1001, "gres", "gpu", asked.gpus_per_node),
    ]
    return [{"type": kind, "name": name, "id": id_, "count": nodes * n} for id_, kind, name, n in amounts if nodes * n]


def _association_key(cluster: ClusterInfo, account: str, user: str) -> JsonObject:
    return {"account": account, "cluster": cluster.name, "partition": "", "user": user}


def _accounts_and_users(seen: Iterable[SlurmJob]) -> list[tuple[str, str]]:
    return sorted({(one.request.account, one.request.user) for one in seen})


def associations_body(cluster: ClusterInfo, seen: Iterable[SlurmJob]) -> JsonObject:
    rows = []
    for id_, (account, user) in enumerate(_accounts_and_users(seen), 1):
        whole: dict[str, Any] = _association_key(cluster, account, user)
        rows.append({**whole, "id": id_, "parent_account": "", "qos": [QOS], "is_default": True, "flags": []})
    return {"associations": rows}


def accounts_body(seen: Iterable[SlurmJob]) -> JsonObject:
    names = sorted({account for account, _ in _accounts_and_users(seen)})
    rows = [{"name": name, "organization": name, "description": name} for name in names]
    return {"accounts": [{**row, "coordinators": [], "flags": []} for row in rows]}


def qos_body() -> JsonObject:
    """One, without limits: the order and the quotas are not this cluster's business."""
    anything = number_struct(None, infinite=True)
    limits = {"max": {"wall_clock": {"per": {"job": anything, "qos": anything}}}, "factor": {"set": False}}
    only = {"id": 1, "name": QOS, "description": "Normal", "flags": [], "priority": number_struct(0), "limits": limits}
    return {"qos": [only]}
