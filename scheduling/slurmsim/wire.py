"""slurmrestd's JSON, version v0.0.42: values of the world, as they are answered. Pure.

The shapes, error numbers and HTTP statuses are those that a slurmrestd of Slurm 24.11 was seen to give.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from signal import Signals
from typing import Any

from jobs.core.hostlist import compress
from jobs.core.lifecycle import State

from .controller import ClusterController
from .faults import ClusterFault
from .values import BAD_FAULT, ProcessExit, SlurmError, SlurmJob, SlurmJobRequest, SlurmNode

API = "v0.0.42"
RELEASE = "24.11.5"
PARTITION = "gpu"
QOS = "normal"
MAX_PRIORITY = 4_294_901_760  # of the first job ever; each later one is one less, so the older goes first

NOT_FOUND, EMPTY_QUERY, UNPARSABLE_QUERY, BAD_TYPE, NOT_AN_OBJECT, BAD_FLAG = 2017, 9000, 9001, 9202, 9209, 9207
NO_WORKDIR, NO_ENVIRONMENT = 2063, 2127
STATUS_OF = {NOT_FOUND: 404, EMPTY_QUERY: 422, BAD_FAULT: 409}

JsonObject = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class ClusterInfo:
    """What the cluster says of itself."""

    name: str
    execute: bool = False
    accounting: bool = True


class InvalidRequest(Exception):
    """A request that cannot be understood: Slurm's number, its words, and where."""

    def __init__(self, number: int, words: str, where: str) -> None:
        super().__init__(f"{words}: {where}")
        self.number, self.words, self.where = number, words, where


def number_struct(value: float | None, *, infinite: bool = False) -> JsonObject:
    known = value is not None and not infinite
    return {"set": known, "infinite": infinite, "number": int(value) if known and value is not None else 0}


def envelope(
    cluster: ClusterInfo,
    content: JsonObject,
    errors: Sequence[JsonObject] = (),
    warnings: Sequence[JsonObject] = (),
    plugin: str = "slurmctld",
) -> JsonObject:
    major, minor, micro = RELEASE.split(".")
    meta = {
        "plugin": {
            "type": f"openapi/{plugin}",
            "name": f"Slurm OpenAPI {plugin}",
            "data_parser": f"data_parser/{API}",
            "accounting_storage": "accounting_storage/slurmdbd" if cluster.accounting else "",
        },
        "client": {"source": "", "user": "", "group": ""},
        "command": [],
        "slurm": {
            "version": {"major": major, "minor": minor, "micro": micro},
            "release": RELEASE,
            "cluster": cluster.name,
        },
    }
    return {**content, "meta": meta, "errors": list(errors), "warnings": list(warnings)}


def error_struct(problem: SlurmError | InvalidRequest, source: str) -> JsonObject:
    where = problem.where if isinstance(problem, InvalidRequest) else ""
    return {
        "description": where or problem.words,
        "error_number": problem.number,
        "error": problem.words,
        "source": source,
    }


def http_status(problem: SlurmError | InvalidRequest) -> int:
    return STATUS_OF.get(problem.number, 500)


def ping_body(cluster: ClusterInfo) -> JsonObject:
    pinged = {"hostname": cluster.name, "pinged": "UP", "responding": True, "latency": 0}
    return {"pings": [{**pinged, "mode": "primary", "primary": True}]}


def job_body(cluster: ClusterInfo, seen: SlurmJob) -> JsonObject:
    """Everything that a job says; it depends on the job alone, so that a text made of it stays true until it moves."""
    return {**_request_fields(cluster, seen), **_state_fields(seen), **_time_fields(seen), **_allocation_fields(seen)}


def _request_fields(cluster: ClusterInfo, seen: SlurmJob) -> JsonObject:
    asked = seen.request
    return {
        "account": asked.account,
        "batch_flag": True,
        "cluster": cluster.name,
        "comment": asked.comment,
        "cpus_per_task": number_struct(asked.cpus_per_node),
        "current_working_directory": asked.workdir,
        "features": "",
        "group_name": asked.user,
        "hold": asked.held,
        "job_id": seen.id,
        "memory_per_node": number_struct(asked.memory_per_node_mb),
        "name": asked.name,
        "partition": asked.partition or PARTITION,
        "priority": priority_struct(seen),
        "qos": QOS,
        "required_nodes": compress(asked.required_nodes),
        "requeue": False,
        "restart_cnt": 0,
        "standard_error": asked.stdout,
        "standard_input": "/dev/null",
        "standard_output": asked.stdout,
        "tasks_per_node": number_struct(1),
        "time_limit": time_limit_struct(asked),
        "shared": [],
        "sockets_per_node": number_struct(None),
        "tres_per_job": "",
        "tres_per_node": _requested_gres(asked),
        "tres_per_socket": "",
        "tres_per_task": "",
        "user_id": 0,
        "user_name": asked.user,
    }


def priority_struct(seen: SlurmJob) -> JsonObject:
    return number_struct(0 if seen.request.held else MAX_PRIORITY - seen.id)


def time_limit_struct(asked: SlurmJobRequest) -> JsonObject:
    return number_struct(None, infinite=True) if asked.limit_s is None else number_struct(ceil(asked.limit_s / 60))


def _requested_gres(asked: SlurmJobRequest) -> str:
    model = f":{asked.gpu_model}" if asked.gpu_model else ""
    return f"gres/gpu{model}:{asked.gpus_per_node}" if asked.gpus_per_node else ""


def _state_fields(seen: SlurmJob) -> JsonObject:
    waiting_for_nodes = seen.reason == "ReqNodeNotAvail"
    missing = f", UnavailableNodes:{compress(seen.request.required_nodes)}" if waiting_for_nodes else ""
    return {
        "job_state": [str(seen.state), *sorted(str(flag) for flag in seen.flags)],
        "state_reason": seen.reason.partition(":")[0],
        "state_description": f"{seen.reason}{missing}" if waiting_for_nodes or ":" in seen.reason else "",
        "exit_code": exit_code_struct(seen),
        "derived_exit_code": exit_code_struct(seen),
    }


def exit_code_struct(seen: SlurmJob) -> JsonObject:
    ended: ProcessExit = seen.exit
    word = "SIGNALED" if ended.signal else "ERROR" if ended.code else "SUCCESS"
    return {
        "status": [word],
        "return_code": number_struct(None if ended.signal else ended.code),
        "signal": {"id": number_struct(ended.signal or None), "name": _signal_name(ended.signal)},
    }


def _signal_name(signal: int) -> str:
    try:
        return Signals(signal).name.removeprefix("SIG")
    except ValueError:
        return ""


def _time_fields(seen: SlurmJob) -> JsonObject:
    projected = seen.time_limit_at if seen.state == State.RUNNING else None
    projected = projected and projected + seen.start_offset_s
    return {
        "submit_time": number_struct(seen.submit_time),
        "eligible_time": number_struct(seen.submit_time),
        "accrue_time": number_struct(seen.submit_time),
        "start_time": number_struct(seen.start_time),
        "end_time": number_struct(seen.end_time or projected or 0),
        "suspend_time": number_struct(0),
    }


def _allocation_fields(seen: SlurmJob) -> JsonObject:
    gpu_model = seen.request.gpu_model
    detail = [_gres_detail(gpu_model, seen.gpus[name]) for name in seen.nodes if name in seen.gpus]
    count = len(seen.nodes) or seen.request.node_count
    return {
        "nodes": compress(seen.nodes),
        "batch_host": seen.nodes[0] if seen.nodes else "",
        "node_count": number_struct(count),
        "cpus": number_struct(count * seen.request.cpus_per_node),
        "tasks": number_struct(count),
        "gres_detail": detail if seen.state == State.RUNNING else [],
        "tres_req_str": _tres_text(seen.request, count),
        "tres_alloc_str": _tres_text(seen.request, count) if seen.nodes else "",
    }


def _gres_detail(model: str, indices: Sequence[int]) -> str:
    kind = f"gpu:{model}" if model else "gpu"
    return f"{kind}:{len(indices)}(IDX:{format_ranges(indices) or 'N/A'})"


def _tres_text(asked: SlurmJobRequest, count: int) -> str:
    return f"cpu={count * asked.cpus_per_node},mem={count * asked.memory_per_node_mb}M,node={count}"


def format_ranges(indices: Iterable[int]) -> str:
    """0-2,5 of 0, 1, 2, 5."""
    runs: list[list[int]] = []
    for index in sorted(indices):
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def job_states_body(seen: Iterable[SlurmJob]) -> JsonObject:
    return {"jobs": [{"job_id": str(j.id), "state": [str(j.state), *sorted(map(str, j.flags))]} for j in seen]}


def nodes_body(world: ClusterController, cluster: ClusterInfo, chosen: Iterable[SlurmNode]) -> JsonObject:
    return {"nodes": [node_body(world, cluster, one) for one in chosen], "last_update": last_node_update(world)}


def last_node_update(world: ClusterController) -> JsonObject:
    return number_struct(world.last_node_change + world.clock_offset_s)


def node_body(world: ClusterController, cluster: ClusterInfo, one: SlurmNode) -> JsonObject:
    state, flags = world.node_state(one.name)
    used = world.used_gpus(one.name)
    kind = f"gpu:{one.gpu_model}" if one.gpu_model else "gpu"
    free_cpus, free_mb = world.free_cpus(one.name), world.free_memory_mb(one.name)
    return {
        "active_features": list(one.features),
        "address": one.name,
        "alloc_cpus": one.cpus - free_cpus,
        "alloc_idle_cpus": free_cpus,
        "alloc_memory": one.memory_mb - free_mb,
        "architecture": "x86_64",
        "boards": 1,
        "boot_time": number_struct(one.boot_at + world.clock_offset_s),
        "cluster_name": cluster.name,
        "cores": max(one.cpus // 2, 1),
        "cpus": one.cpus,
        "effective_cpus": one.cpus,
        "features": list(one.features),
        "free_mem": number_struct(free_mb),
        "gres": f"{kind}:{one.gpus}" if one.gpus else "",
        "gres_drained": "N/A",
        "gres_used": f"{kind}:{len(used)}(IDX:{format_ranges(used) or 'N/A'})" if one.gpus else "",
        "hostname": one.name,
        "last_busy": last_node_update(world),
        "name": one.name,
        "operating_system": "Linux",
        "partitions": [PARTITION],
        "real_memory": one.memory_mb,
        "reason": one.reason,
        "reason_changed_at": number_struct(one.reason_at),
        "reason_set_by_user": one.reason_by,
        "slurmd_start_time": number_struct(one.boot_at + world.clock_offset_s),
        "sockets": 2,
        "state": [str(state), *sorted(str(flag) for flag in flags)],
        "threads": 1,
        "version": RELEASE,
        "weight": 1,
    }


def partitions_body(world: ClusterController) -> JsonObject:
    names = list(world.nodes)
    total = sum(one.cpus for one in world.nodes.values())
    whole = {"nodes": {"configured": compress(names), "total": len(names)}, "cpus": {"total": total}}
    limits = {"maximums": {"time": number_struct(None, infinite=True)}, "defaults": {"time": number_struct(None)}}
    only = {"name": PARTITION, "partition": {"state": ["UP"]}, **whole, **limits}
    return {"partitions": [only], "last_update": last_node_update(world)}


def reservations_body(world: ClusterController) -> JsonObject:
    """None are ever made here; whoever draws them asks all the same."""
    return {"reservations": [], "last_update": last_node_update(world)}


def diag_body(world: ClusterController, now: float) -> JsonObject:
    states = [seen.state for seen in world.jobs.values()]
    statistics = {
        "req_time": number_struct(now + world.clock_offset_s),
        "server_thread_count": 1,
        "agent_count": 0,
        "agent_queue_size": 0,
        "dbd_agent_queue_size": 0,
        "jobs_submitted": world.counts["submitted"],
        "jobs_started": world.counts["started"],
        "jobs_completed": world.counts["completed"],
        "jobs_canceled": world.counts["cancelled"],
        "jobs_failed": world.counts["failed"],
        "jobs_pending": states.count(State.PENDING),
        "jobs_running": states.count(State.RUNNING),
    }
    return {"statistics": statistics}


def fault_body(one: ClusterFault) -> JsonObject:
    """Not Slurm's: what is broken in a simulated cluster, in our own words."""
    place = {"node": one.node, "gpu": one.gpu if one.gpu >= 0 else None}
    return {
        "number": one.number,
        "kind": str(one.kind),
        "at": one.at,
        "until": one.until,
        **place,
        "jobs": list(one.jobs),
    }
