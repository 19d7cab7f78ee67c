"""slurmrestd's accounting, /slurmdb, version v0.0.42: the same jobs in slurmdbd's words. Pure.

Clients that draw one job, as Slurm-web's agent does, ask here first. There is no database behind it: jobs are told of
as long as the controller tells of them, and who may use the cluster is whoever has a job in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jobs.hostlist import compress

from .values import Job
from .wire import PARTITION, QOS, Cluster, Plain, exit_code, number, priority, time_limit


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
        "eligible": int(seen.submitted_at),
        "end": int(seen.ended_at),
        "limit": time_limit(seen.request),
        "planned": number(max((seen.started_at or until) - seen.submitted_at, 0)),
        "start": int(seen.started_at),
        "submission": int(seen.submitted_at),
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
