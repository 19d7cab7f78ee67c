"""slurmrestd's accounting, /slurmdb, version v0.0.42: request parsing and response bodies. Pure.

Jobs that the controller has forgotten are still reported here, from the store's second table. Users and associations
are derived from the jobs that the controller remembers. A cluster without accounting storage has no /slurmdb at all: it
responds 404, as slurmrestd does without slurmdbd.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jobs.core.hostlist import compress
from scheduling.simulation.machines.values import SimulatedJob

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
    """The requested jobs, by times of the cluster's clock and by names; an empty set means all."""

    start_time: float = 0.0
    end_time: float = float("inf")
    users: frozenset[str] = frozenset()
    accounts: frozenset[str] = frozenset()
    job_names: frozenset[str] = frozenset()

    def matches(self, job: SimulatedJob) -> bool:
        """Whether the job waited or ran at some time in the period, as in slurmdbd, and its names match."""
        request = job.request
        in_period = job.submit_time <= self.end_time and (not job.ended_at or job.end_time >= self.start_time)
        filters = ((request.user, self.users), (request.account, self.accounts), (request.name, self.job_names))
        return in_period and all(not names or name in names for name, names in filters)


def parse_accounting_query(query: Mapping[str, str]) -> AccountingQuery:
    return AccountingQuery(
        start_time=_parse_query_time(query, "start_time", AccountingQuery.start_time),
        end_time=_parse_query_time(query, "end_time", AccountingQuery.end_time),
        users=_name_set(query, "users"),
        accounts=_name_set(query, "account"),
        job_names=_name_set(query, "job_name"),
    )


def _name_set(query: Mapping[str, str], field: str) -> frozenset[str]:
    return frozenset(filter(None, query.get(field, "").split(",")))


def _parse_query_time(query: Mapping[str, str], field: str, default: float) -> float:
    """Unix seconds (plain or like Slurm's uts1700000000), or a date and time, without a zone in the machine's time."""
    text = query.get(field, "")
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


def accounting_jobs_body(cluster: ClusterInfo, jobs: Iterable[SimulatedJob], now: float) -> JsonObject:
    return {"jobs": [accounting_job_body(cluster, job, now) for job in jobs]}


def accounting_job_body(cluster: ClusterInfo, job: SimulatedJob, now: float) -> JsonObject:
    request = job.request
    return {
        "account": request.account,
        "allocation_nodes": len(job.nodes),
        "association": {**_association_key(cluster, request.account, request.user), "id": 0},
        "cluster": cluster.name,
        "comment": {"administrator": "", "job": request.comment, "system": ""},
        "derived_exit_code": exit_code_struct(job),
        "exit_code": exit_code_struct(job),
        "flags": [],
        "group": request.user,
        "hold": request.held,
        "job_id": job.id,
        "kill_request_user": "",
        "name": request.name,
        "nodes": compress(job.nodes) or "None assigned",
        "partition": request.partition or PARTITION,
        "priority": priority_struct(job),
        "qos": QOS,
        "required": {"CPUs": request.cpus_per_node, "memory_per_node": number_struct(request.memory_per_node_mb)},
        "script": request.script,
        "state": {"current": [str(job.state)], "reason": job.reason.partition(":")[0]},
        "stderr": request.stdout,
        "stdout": request.stdout,
        "steps": [],
        "submit_line": "",
        "time": _accounting_times(job, now),
        "tres": {"allocated": _tres_entries(job, len(job.nodes)), "requested": _tres_entries(job, request.node_count)},
        "used_gres": "",
        "user": request.user,
        "wckey": {"wckey": "", "flags": []},
        "working_directory": request.workdir,
    }


def _accounting_times(job: SimulatedJob, now: float) -> JsonObject:
    none = {"seconds": 0, "microseconds": 0}
    until = job.ended_at or now
    return {
        "elapsed": max(int(until - job.started_at), 0) if job.started_at else 0,
        "eligible": int(job.submit_time),
        "end": int(job.end_time),
        "limit": time_limit_struct(job.request),
        "planned": number_struct(max((job.started_at or until) - job.submitted_at, 0)),
        "start": int(job.start_time),
        "submission": int(job.submit_time),
        "suspended": 0,
        "system": none,
        "total": none,
        "user": none,
    }


def _tres_entries(job: SimulatedJob, nodes: int) -> list[JsonObject]:
    request = job.request
    amounts = [
        (1, "cpu", "", request.cpus_per_node),
        (2, "mem", "", request.memory_per_node_mb),
        (4, "node", "", 1),
        (1001, "gres", "gpu", request.gpus_per_node),
        (1002, "gres", request.share_gres, request.gpu_shards),
    ]
    return [{"type": kind, "name": name, "id": id_, "count": nodes * n} for id_, kind, name, n in amounts if nodes * n]


def _association_key(cluster: ClusterInfo, account: str, user: str) -> JsonObject:
    return {"account": account, "cluster": cluster.name, "partition": "", "user": user}


def _accounts_and_users(jobs: Iterable[SimulatedJob]) -> list[tuple[str, str]]:
    return sorted({(job.request.account, job.request.user) for job in jobs})


def associations_body(cluster: ClusterInfo, jobs: Iterable[SimulatedJob]) -> JsonObject:
    rows = []
    for id_, (account, user) in enumerate(_accounts_and_users(jobs), 1):
        whole: dict[str, Any] = _association_key(cluster, account, user)
        rows.append({**whole, "id": id_, "parent_account": "", "qos": [QOS], "is_default": True, "flags": []})
    return {"associations": rows}


def accounts_body(jobs: Iterable[SimulatedJob]) -> JsonObject:
    names = sorted({account for account, _ in _accounts_and_users(jobs)})
    rows = [{"name": name, "organization": name, "description": name} for name in names]
    return {"accounts": [{**row, "coordinators": [], "flags": []} for row in rows]}


def qos_body() -> JsonObject:
    """A single QOS without limits, because this cluster has no quotas."""
    anything = number_struct(None, infinite=True)
    limits = {"max": {"wall_clock": {"per": {"job": anything, "qos": anything}}}, "factor": {"set": False}}
    only = {"id": 1, "name": QOS, "description": "Normal", "flags": [], "priority": number_struct(0), "limits": limits}
    return {"qos": [only]}
