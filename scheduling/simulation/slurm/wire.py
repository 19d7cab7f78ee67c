"""slurmrestd's JSON, version v0.0.42: response bodies from values of the controller. Pure.

Formats, error numbers and HTTP statuses match those observed from slurmrestd of Slurm 24.11.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from signal import Signals
from typing import Any

from jobs.core.hostlist import compress
from jobs.core.lifecycle import State
from scheduling.simulation.machines.values import ProcessExit, SimulatedJob, SimulatedJobRequest, SimulatedNode

from .controller import ClusterController
from .values import BAD_FAULT, SlurmError

API = "v0.0.42"
RELEASE = "24.11.5"
SIMULATED_RELEASE = f"{RELEASE}-simulated"  # Acme offers to inject faults into such a cluster
PARTITION = "gpu"
QOS = "normal"
MAX_PRIORITY = 4_294_901_760  # minus the job id, so that older jobs have higher priority

NOT_FOUND, EMPTY_QUERY, UNPARSABLE_QUERY, BAD_TYPE, NOT_AN_OBJECT, BAD_FLAG = 2017, 9000, 9001, 9202, 9209, 9207
NO_WORKDIR, NO_ENVIRONMENT = 2063, 2127
STATUS_OF = {NOT_FOUND: 404, EMPTY_QUERY: 422, BAD_FAULT: 409}

JsonObject = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class ClusterInfo:
    """Properties of the cluster that appear in responses."""

    name: str
    execute: bool = False
    accounting: bool = True


class InvalidRequest(Exception):
    """A request that cannot be parsed: Slurm's error number, its message, and the location."""

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
            "release": RELEASE if cluster.execute else SIMULATED_RELEASE,
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


def job_body(cluster: ClusterInfo, job: SimulatedJob) -> JsonObject:
    """A job's JSON. It depends only on the job, so a cached text stays valid until the job changes."""
    return {**_request_fields(cluster, job), **_state_fields(job), **_time_fields(job), **_allocation_fields(job)}


def _request_fields(cluster: ClusterInfo, job: SimulatedJob) -> JsonObject:
    request = job.request
    return {
        "account": request.account,
        "batch_flag": True,
        "cluster": cluster.name,
        "comment": request.comment,
        "cpus_per_task": number_struct(request.cpus_per_node),
        "current_working_directory": request.workdir,
        "features": "",
        "group_name": request.user,
        "hold": request.held,
        "job_id": job.id,
        "memory_per_node": number_struct(request.memory_per_node_mb),
        "name": request.name,
        "partition": request.partition or PARTITION,
        "priority": priority_struct(job),
        "qos": QOS,
        "required_nodes": compress(request.required_nodes),
        "requeue": False,
        "restart_cnt": 0,
        "standard_error": request.stdout,
        "standard_input": "/dev/null",
        "standard_output": request.stdout,
        "tasks_per_node": number_struct(1),
        "time_limit": time_limit_struct(request),
        "shared": [],
        "sockets_per_node": number_struct(None),
        "tres_per_job": "",
        "tres_per_node": _requested_gres(request),
        "tres_per_socket": "",
        "tres_per_task": "",
        "user_id": 0,
        "user_name": request.user,
    }


def priority_struct(job: SimulatedJob) -> JsonObject:
    return number_struct(0 if job.request.held else MAX_PRIORITY - job.id)


def time_limit_struct(request: SimulatedJobRequest) -> JsonObject:
    return number_struct(None, infinite=True) if request.limit_s is None else number_struct(ceil(request.limit_s / 60))


def _requested_gres(request: SimulatedJobRequest) -> str:
    model = f":{request.gpu_model}" if request.gpu_model else ""
    if request.gpu_shards:
        return f"gres/{request.share_gres}{model}:{request.gpu_shards}"
    return f"gres/gpu{model}:{request.gpus_per_node}" if request.gpus_per_node else ""


def _state_fields(job: SimulatedJob) -> JsonObject:
    waiting_for_nodes = job.reason == "ReqNodeNotAvail"
    missing = f", UnavailableNodes:{compress(job.request.required_nodes)}" if waiting_for_nodes else ""
    return {
        "job_state": [str(job.state), *sorted(str(flag) for flag in job.flags)],
        "state_reason": job.reason.partition(":")[0],
        "state_description": f"{job.reason}{missing}" if waiting_for_nodes or ":" in job.reason else "",
        "exit_code": exit_code_struct(job),
        "derived_exit_code": exit_code_struct(job),
    }


def exit_code_struct(job: SimulatedJob) -> JsonObject:
    exit_status: ProcessExit = job.exit
    word = "SIGNALED" if exit_status.signal else "ERROR" if exit_status.code else "SUCCESS"
    return {
        "status": [word],
        "return_code": number_struct(None if exit_status.signal else exit_status.code),
        "signal": {"id": number_struct(exit_status.signal or None), "name": _signal_name(exit_status.signal)},
    }


def _signal_name(signal: int) -> str:
    try:
        return Signals(signal).name.removeprefix("SIG")
    except ValueError:
        return ""


def _time_fields(job: SimulatedJob) -> JsonObject:
    projected = job.time_limit_at if job.state == State.RUNNING else None
    projected = projected and projected + job.start_offset_s
    return {
        "submit_time": number_struct(job.submit_time),
        "eligible_time": number_struct(job.submit_time),
        "accrue_time": number_struct(job.submit_time),
        "start_time": number_struct(job.start_time),
        "end_time": number_struct(job.end_time or projected or 0),
        "suspend_time": number_struct(0),
    }


def _allocation_fields(job: SimulatedJob) -> JsonObject:
    detail = [_gres_detail(job.request, job.gpus[name]) for name in job.nodes if name in job.gpus]
    count = len(job.nodes) or job.request.node_count
    return {
        "nodes": compress(job.nodes),
        "batch_host": job.nodes[0] if job.nodes else "",
        "node_count": number_struct(count),
        "cpus": number_struct(count * job.request.cpus_per_node),
        "tasks": number_struct(count),
        "gres_detail": detail if job.state == State.RUNNING else [],
        "tres_req_str": _tres_text(job.request, count),
        "tres_alloc_str": _tres_text(job.request, count) if job.nodes else "",
    }


def _gres_detail(request: SimulatedJobRequest, indices: Sequence[int]) -> str:
    kind, count = (request.share_gres, request.gpu_shards) if request.gpu_shards else ("gpu", len(indices))
    model = f":{request.gpu_model}" if request.gpu_model else ""
    return f"{kind}{model}:{count}(IDX:{format_ranges(indices) or 'N/A'})"


def _tres_text(request: SimulatedJobRequest, count: int) -> str:
    return f"cpu={count * request.cpus_per_node},mem={count * request.memory_per_node_mb}M,node={count}"


def format_ranges(indices: Iterable[int]) -> str:
    """0-2,5 for 0, 1, 2, 5."""
    runs: list[list[int]] = []
    for index in sorted(indices):
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def job_states_body(jobs: Iterable[SimulatedJob]) -> JsonObject:
    return {"jobs": [{"job_id": str(job.id), "state": [str(job.state), *sorted(map(str, job.flags))]} for job in jobs]}


def nodes_body(controller: ClusterController, cluster: ClusterInfo, nodes: Iterable[SimulatedNode]) -> JsonObject:
    rows = [node_body(controller, cluster, node) for node in nodes]
    return {"nodes": rows, "last_update": last_node_update(controller)}


def last_node_update(controller: ClusterController) -> JsonObject:
    return number_struct(controller.last_node_change + controller.clock_offset_s)


def node_body(controller: ClusterController, cluster: ClusterInfo, node: SimulatedNode) -> JsonObject:
    state, flags = controller.node_state(node.name)
    used = controller.used_gpus(node.name)
    kind = f"gpu:{node.gpu_model}" if node.gpu_model else "gpu"
    free_cpus, free_mb = controller.free_cpus(node.name), controller.free_memory_mb(node.name)
    return {
        "active_features": list(node.features),
        "address": node.name,
        "alloc_cpus": node.cpus - free_cpus,
        "alloc_idle_cpus": free_cpus,
        "alloc_memory": node.memory_mb - free_mb,
        "architecture": "x86_64",
        "boards": 1,
        "boot_time": number_struct(node.boot_at + controller.clock_offset_s),
        "cluster_name": cluster.name,
        "cores": max(node.cpus // 2, 1),
        "cpus": node.cpus,
        "effective_cpus": node.cpus,
        "features": list(node.features),
        "free_mem": number_struct(free_mb),
        "gres": _node_gres(node),
        "gres_drained": "N/A",
        "gres_used": f"{kind}:{len(used)}(IDX:{format_ranges(used) or 'N/A'})" if node.gpus else "",
        "hostname": node.name,
        "last_busy": last_node_update(controller),
        "name": node.name,
        "operating_system": "Linux",
        "partitions": [PARTITION],
        "real_memory": node.memory_mb,
        "reason": node.reason,
        "reason_changed_at": number_struct(node.reason_at),
        "reason_set_by_user": node.reason_by,
        "slurmd_start_time": number_struct(node.boot_at + controller.clock_offset_s),
        "sockets": 2,
        "state": [str(state), *sorted(str(flag) for flag in flags)],
        "threads": 1,
        "version": RELEASE,
        "weight": 1,
    }


def _node_gres(node: SimulatedNode) -> str:
    model = f":{node.gpu_model}" if node.gpu_model else ""
    gpus = [f"gpu{model}:{node.gpus}"] if node.gpus else []
    shards = (
        [f"{node.share_gres}{model}:{node.gpus * node.shards_per_gpu}"] if node.gpus and node.shards_per_gpu else []
    )
    return ",".join([*gpus, *shards])


def partitions_body(controller: ClusterController) -> JsonObject:
    names = list(controller.nodes)
    total = sum(node.cpus for node in controller.nodes.values())
    whole = {"nodes": {"configured": compress(names), "total": len(names)}, "cpus": {"total": total}}
    limits = {"maximums": {"time": number_struct(None, infinite=True)}, "defaults": {"time": number_struct(None)}}
    only = {"name": PARTITION, "partition": {"state": ["UP"]}, **whole, **limits}
    return {"partitions": [only], "last_update": last_node_update(controller)}


def reservations_body(controller: ClusterController) -> JsonObject:
    """An empty list; this cluster has no reservations, but clients ask for them."""
    return {"reservations": [], "last_update": last_node_update(controller)}


def diag_body(controller: ClusterController, now: float) -> JsonObject:
    states = [job.state for job in controller.jobs.values()]
    statistics = {
        "req_time": number_struct(now + controller.clock_offset_s),
        "server_thread_count": 1,
        "agent_count": 0,
        "agent_queue_size": 0,
        "dbd_agent_queue_size": 0,
        "jobs_submitted": controller.counts["submitted"],
        "jobs_started": controller.counts["started"],
        "jobs_completed": controller.counts["completed"],
        "jobs_canceled": controller.counts["cancelled"],
        "jobs_failed": controller.counts["failed"],
        "jobs_pending": states.count(State.PENDING),
        "jobs_running": states.count(State.RUNNING),
    }
    return {"statistics": statistics}
