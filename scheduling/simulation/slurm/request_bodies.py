"""Parses request bodies of slurmrestd v0.0.42 into values of the controller. Pure.

Bodies are not trusted: what cannot be parsed raises `InvalidRequest`, never another exception.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from signal import Signals
from typing import Any

from acmeweb.common.errors import InvalidInput
from jobs.core.gpu_shares import MPS, SHARD
from jobs.core.hostlist import expand
from scheduling.simulation.machines.faults import JOB_FAULTS, PROGRAM_FAULTS, FaultKind
from scheduling.simulation.machines.values import SignalTarget, SimulatedJobRequest

from .values import SlurmError
from .wire import BAD_FLAG, BAD_TYPE, EMPTY_QUERY, NO_ENVIRONMENT, NO_WORKDIR, NOT_AN_OBJECT, InvalidRequest

MAX_NODES = 10_000
GRES_PATTERN = re.compile(r"^(?:gres[/:])?(gpu|shard|mps)(?::([^:,]+))?(?::(\d+))?$")


def parse_job_request(body: object, user: str) -> SimulatedJobRequest:
    """Parse the body of a submission in v0.0.42."""
    payload = _require_object(body, "#/")
    job = _require_object(payload.get("job"), "#/job/")
    script = job.get("script") or payload.get("script")
    if not isinstance(script, str) or not script:
        words = "Query empty or not RFC7320 compliant"
        raise InvalidRequest(EMPTY_QUERY, words, 'Populated "script" field is required for job submission')
    if not script.startswith("#!"):
        raise InvalidRequest(BAD_TYPE, "The script has no interpreter line (#!)", "#/job/script/")
    environment = _parse_environment(job.get("environment"))
    workdir = _text_field(job, "current_working_directory")
    if not workdir.startswith("/"):
        words = "Job cannot be submitted without the current working directory specified."
        raise InvalidRequest(NO_WORKDIR, words, "Batch job submission failed")
    model, kind, count = _parse_gres(_text_field(job, "tres_per_node"))
    required_nodes = _parse_required_nodes(job.get("required_nodes"))
    return SimulatedJobRequest(
        name=_text_field(job, "name") or "sbatch",
        user=user,
        account=_text_field(job, "account"),
        partition=_text_field(job, "partition"),
        comment=_text_field(job, "comment"),
        script=script,
        workdir=workdir,
        environment=environment,
        required_nodes=required_nodes,
        node_count=_node_count(job, len(required_nodes)),
        gpus_per_node=count if kind == "gpu" else 0,
        gpu_shards=count if kind != "gpu" else 0,
        share_gres=MPS if kind == MPS else SHARD,
        gpu_model=model,
        cpus_per_node=_cpus_per_node(job),
        memory_per_node_mb=_count_field(job, "memory_per_node") or 0,
        limit_s=_time_limit_s(job),
        stdout=_text_field(job, "standard_output"),
        held=_flag_field(job, "hold"),
    )


def parse_job_update(body: object) -> Mapping[str, object]:
    payload = _require_object(body, "#/")
    readers: dict[str, tuple[str, Callable[[], object]]] = {
        "time_limit": ("limit_s", lambda: _time_limit_s(payload)),
        "comment": ("comment", lambda: _text_field(payload, "comment")),
        "hold": ("held", lambda: _flag_field(payload, "hold")),
    }
    unknown = sorted(set(payload) - set(readers))
    if unknown:
        raise InvalidRequest(BAD_FLAG, "Field cannot be updated", f"#/{unknown[0]:.40}/")
    return {ours: read() for theirs, (ours, read) in readers.items() if theirs in payload}


@dataclass(frozen=True, kw_only=True)
class NodeUpdate:
    state: str  # DRAIN, RESUME, DOWN, POWER_DOWN, POWER_UP, or empty to change only the reason
    reason: str


NODE_STATES = frozenset({"DRAIN", "RESUME", "UNDRAIN", "DOWN", "POWER_DOWN", "POWER_UP"})


def parse_node_update(body: object) -> NodeUpdate:
    payload = _require_object(body, "#/")
    states = payload.get("state", [])
    states = [states] if isinstance(states, str) else states
    if not isinstance(states, list) or not all(isinstance(s, str) for s in states) or len(states) > 1:
        raise InvalidRequest(BAD_TYPE, "Unable to convert Data type", "#/state/")
    state = states[0].upper() if states else ""
    if state and state not in NODE_STATES:
        raise InvalidRequest(BAD_FLAG, "Data parser unable to parse invalid flag", f"#/state[0]/ {state:.40}")
    return NodeUpdate(state=state, reason=_text_field(payload, "reason"))


@dataclass(frozen=True, kw_only=True)
class FaultRequest:
    kind: FaultKind
    node: str = ""
    gpu: int = -1  # drawn at random
    job: int | None = None


def parse_fault(body: object) -> FaultRequest:
    """Parse `{"kind": "ecc", "node": "seren-003", "gpu": 2}` or `{"kind": "hang", "job": 17}`."""
    payload = _require_object(body, "#/")
    kind = _text_field(payload, "kind")
    if kind not in set(FaultKind):
        raise InvalidRequest(EMPTY_QUERY, f"kind: {kind!r:.40} is not one of {', '.join(FaultKind)}", "#/kind/")
    gpu, job = _count_field(payload, "gpu"), _count_field(payload, "job")
    if job is not None and kind not in JOB_FAULTS:
        raise InvalidRequest(EMPTY_QUERY, f"job: a fault of kind {kind} hits a node, not a job", "#/job/")
    if job is None and kind in PROGRAM_FAULTS:
        raise InvalidRequest(EMPTY_QUERY, f"job: a fault of kind {kind} needs a job", "#/job/")
    return FaultRequest(
        kind=FaultKind(kind), node=_text_field(payload, "node"), gpu=-1 if gpu is None else gpu, job=job
    )


def parse_job_logs(body: object) -> dict[str, str]:
    """Parse `{"logs": {"PATH": "TEXT"}}`."""
    logs = _require_object(_require_object(body, "#/").get("logs"), "#/logs/")
    return {path: _text_field(logs, path) for path in logs}


MAX_CLOCK_OFFSET_S = 86_400


def parse_clock_offset(body: object) -> float:
    """Parse `{"offset_s": 300}`: five minutes ahead of the true time; a negative number is behind it."""
    offset: Any = _require_object(body, "#/").get("offset_s")
    if type(offset) not in (int, float) or not -MAX_CLOCK_OFFSET_S <= offset <= MAX_CLOCK_OFFSET_S:
        words = (
            f"offset_s: {offset!r:.40} is not a number of seconds from -{MAX_CLOCK_OFFSET_S} to {MAX_CLOCK_OFFSET_S}"
        )
        raise InvalidRequest(EMPTY_QUERY, words, "#/offset_s/")
    return float(offset)


def parse_signal(text: str) -> int:
    """A signal number from 9, KILL or SIGKILL."""
    name = text.upper().removeprefix("SIG")
    if name.isascii() and name.isdigit() and 0 < int(name[:4]) < 65:
        return int(name)
    try:
        return int(Signals[f"SIG{name}"])
    except KeyError:
        raise InvalidRequest(BAD_FLAG, "Invalid signal specified", f"signal={text:.20}") from None


def parse_signal_target(text: str) -> SignalTarget:
    """The processes of the job that get the signal, by Slurm's flags; all without flags."""
    try:
        return SignalTarget(text or SignalTarget.ALL)
    except ValueError:
        raise InvalidRequest(BAD_FLAG, "Invalid flag specified", f"flags={text:.40}") from None


def _require_object(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidRequest(NOT_AN_OBJECT, "Data parser expected a dictionary or object", where)
    return value


def _text_field(payload: Mapping[str, Any], field: str) -> str:
    value = payload.get(field)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidRequest(BAD_TYPE, "Unable to convert Data type", f"#/job/{field}/")
    return value


def _flag_field(payload: Mapping[str, Any], field: str) -> bool:
    value = payload.get(field, False)
    if not isinstance(value, bool):
        raise InvalidRequest(BAD_TYPE, "Unable to convert Data type", f"#/job/{field}/")
    return value


def _count_field(payload: Mapping[str, Any], field: str) -> int | None:
    """A count, plain or as a number object; None if it is unset or infinite."""
    value = payload.get(field)
    if isinstance(value, Mapping):
        if not value.get("set", True) or value.get("infinite"):
            return None
        value = value.get("number")
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < 2**31:
        raise InvalidRequest(BAD_TYPE, "Unable to convert Data type", f"#/job/{field}/")
    return value


def _parse_environment(value: object) -> dict[str, str]:
    if not isinstance(value, list) or not value:
        raise InvalidRequest(NO_ENVIRONMENT, "environment must be set", "#/job/environment/")
    if not all(isinstance(entry, str) and "=" in entry and "\0" not in entry for entry in value):
        raise InvalidRequest(BAD_TYPE, "Unable to convert Data type", "#/job/environment/")
    return dict(entry.split("=", 1) for entry in value)


def _parse_required_nodes(value: object) -> tuple[str, ...]:
    """Node names from ["a", "b"] or "a,b"; each text may be a host list."""
    texts = [value] if isinstance(value, str) else value or []
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise InvalidRequest(BAD_TYPE, "Unable to convert Data type", "#/job/required_nodes/")
    try:
        names = dict.fromkeys(name for text in texts for name in expand(text))
    except InvalidInput as error:
        raise InvalidRequest(BAD_TYPE, str(error), "#/job/required_nodes/") from None
    return tuple(names)


def _node_count(job: Mapping[str, Any], required_count: int) -> int:
    count = _count_field(job, "minimum_nodes") or required_count or 1
    if count > MAX_NODES:
        raise SlurmError(2014, "Requested node configuration is not available")
    return max(count, required_count)


def _cpus_per_node(job: Mapping[str, Any]) -> int:
    tasks, each = _count_field(job, "tasks_per_node") or 1, _count_field(job, "cpus_per_task") or 1
    return max(tasks * each, _count_field(job, "minimum_cpus_per_node") or 1)


def _time_limit_s(job: Mapping[str, Any]) -> float | None:
    minutes = _count_field(job, "time_limit")
    return None if minutes is None else minutes * 60.0


def _parse_gres(text: str) -> tuple[str, str, int]:
    """The GPU model, the kind (gpu, shard or mps) and the number."""
    if not text:
        return "", "gpu", 0
    match = GRES_PATTERN.match(text)
    if match is None:
        raise InvalidRequest(2072, "Invalid generic resource (gres) specification", "#/job/tres_per_node/")
    kind, first, second = match[1], match[2] or "", match[3]
    if first.isdigit() and second is None:  # gpu:8
        first, second = "", first
    count = int((second or "1")[:6])
    return first, kind, count
