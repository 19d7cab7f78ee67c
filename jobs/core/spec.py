"""What a person may ask for. `parse()` serves the API, the form and imports, so all print the same sentence.

A request is a mapping of plain values (JSON). What comes out is a `JobSpec` that the record can keep as it is, or a
`InvalidField` that names the field and says in one sentence what is wrong with it. Nothing is looked up here: what the
cluster has is an argument (`Shape`), and ids of other jobs stay text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from graphlib import CycleError, TopologicalSorter
from itertools import dropwhile
from typing import Any

from jobs.core import parsing, slurm_notation
from jobs.core.lifecycle import JobKind
from jobs.core.parsing import InvalidField as InvalidField

MAX_COMMAND_BYTES = 64 * 1024
MAX_ENVIRONMENT_BYTES = 64 * 1024
MAX_COMMENT_BYTES = 4000
MAX_LABELS = 64
MAX_ARRAY_TASKS = 5000
MAX_DEPENDENCIES = 100
MAX_PRIORITY = 1_000_000

ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
LABEL_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?", re.ASCII)
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
HARDWARE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,39}", re.ASCII)
JOB_REFERENCE = re.compile(r"@?[A-Za-z0-9][A-Za-z0-9_-]{0,39}", re.ASCII)
DEPENDENCY_CONDITIONS = ("afterok", "afterany", "afternotok")


@dataclass(frozen=True, kw_only=True)
class NodeShape:
    """Nodes of one make."""

    count: int
    gpus: int
    cpus: int
    memory_mb: int
    gpu_model: str = ""
    nic_type: str = ""


@dataclass(frozen=True, kw_only=True)
class ClusterShape:
    """What a cluster has, however busy it is."""

    name: str
    nodes: tuple[NodeShape, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DependencySpec:
    """`on` is a public id, or `@key` of another job of the same request."""

    after: str
    on: str


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    name: str
    command: str
    kind: JobKind = JobKind.OTHER
    workdir: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    nodes: int = 1
    gpus_per_node: int = 0
    cpus_per_node: int = 1
    memory_per_node_mb: int = 0
    gpu_model: str = ""
    nic_type: str = ""
    on_node: str = ""  # by the scheduler's own coordinators, never by a request
    time_limit: timedelta | None = None
    priority: int = 0
    preemptible: bool = False
    requeue_limit: int = 3
    begin_at: datetime | None = None
    hold: bool = False
    array: tuple[int, ...] = ()
    array_limit: int | None = None
    dependencies: tuple[DependencySpec, ...] = ()
    checkpoint_dir: str = ""
    checkpoint_interval: timedelta | None = None
    checkpoint_signal: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    comment: str = ""
    key: str = ""  # what other jobs of the same request call it


def parse(asked: Mapping[str, Any], shape: ClusterShape) -> JobSpec:
    """One job. Raises InvalidField for the first thing that cannot be."""
    if not isinstance(asked, Mapping):
        raise InvalidField("job", "is no object of fields")
    values = parsing.read_fields(asked, JOB_FIELD_READERS, "a job")
    if "command" not in values:
        raise InvalidField("command", "is missing")
    if "memory_per_node" in values:
        values["memory_per_node_mb"] = values.pop("memory_per_node")
    if "array" in values:
        values["array"], values["array_limit"] = values["array"]
    values.setdefault("name", _default_name(values["command"]))
    # Without a wish a job gets its share of the node, as Slurm's DefCpuPerGPU does it; never less than one CPU.
    values.setdefault("cpus_per_node", _default_cpus(values.get("gpus_per_node", 0), shape))
    job = JobSpec(**values)
    check_fits_cluster(job, shape)
    return job


def parse_many(asked: Sequence[Mapping[str, Any]], shape: ClusterShape) -> list[JobSpec]:
    """Several jobs that may name each other by `key`; a circle among them is refused."""
    jobs = [parse(one, shape) for one in asked]
    keys = Counter(job.key for job in jobs if job.key)
    for key, count in keys.items():
        if count > 1:
            raise InvalidField("key", f"{key!r} is given to {count} jobs")
    for job in jobs:
        for dependency in job.dependencies:
            if dependency.on.startswith("@") and dependency.on[1:] not in keys:
                raise InvalidField("dependencies", f"no job of this request has the key {dependency.on[1:]!r}")
    refuse_dependency_cycle({f"@{job.key}": [d.on for d in job.dependencies] for job in jobs if job.key})
    return jobs


def refuse_dependency_cycle(waits_for: Mapping[str, Sequence[str]]) -> None:
    try:
        TopologicalSorter(waits_for).prepare()
    except CycleError as error:
        circle = " → ".join(name.lstrip("@") for name in error.args[1])
        raise InvalidField("dependencies", f"{circle} is a circle: none of these jobs could ever start") from None


def refuse_priority(priority: int, is_operator: bool) -> None:
    """As with nice: everybody may step back, only operators of the team may push ahead of all others."""
    if priority > 0 and not is_operator:
        raise InvalidField("priority", "above 0 is given by operators of the team; yours may be 0 or lower")


def check_fits_cluster(job: JobSpec, shape: ClusterShape) -> None:
    """Whether the cluster, when empty, could run it; the sentence names the first field that rules out every node."""
    candidates = list(shape.nodes)
    if not candidates:
        raise InvalidField("cluster", f"{shape.name} has reported no nodes yet")
    for name, test, why in FIT_RULES:
        left = [node for node in candidates if test(job, node)]
        if not left:
            raise InvalidField(name, why(job, shape))
        candidates = left
    have = sum(node.count for node in candidates)
    if job.nodes > have:
        raise InvalidField("nodes", f"{job.nodes} are more than the {have} such nodes that {shape.name} has")


def _too_many_gpus_text(job: JobSpec, shape: ClusterShape) -> str:
    """12 GPUs on nodes of 8 is the mistake people make: say how to ask for them."""
    most = max((node.gpus for node in shape.nodes), default=0)
    if most and job.gpus_per_node > most and job.nodes == 1:
        return (
            f"{job.gpus_per_node} do not fit a node of {most} GPUs; "
            f"ask for {-(-job.gpus_per_node // most)} nodes with {most} GPUs each or fewer"
        )
    return f"{job.gpus_per_node} are more than the {most} GPUs of the largest node of {shape.name}"


def _missing_hardware_text(
    what: Callable[[JobSpec], str], such: str = "such "
) -> Callable[[JobSpec, ClusterShape], str]:
    return lambda job, shape: f"no {such}node of {shape.name} has {what(job)}"


# In this order: the field, whether a node has it, and what is said when none of those left has
FIT_RULES: tuple[tuple[str, Callable[[JobSpec, NodeShape], bool], Callable[[JobSpec, ClusterShape], str]], ...] = (
    (
        "gpu_model",
        lambda j, n: j.gpu_model in ("", n.gpu_model),
        _missing_hardware_text(lambda j: f"{j.gpu_model} GPUs", ""),
    ),
    (
        "nic_type",
        lambda j, n: j.nic_type in ("", n.nic_type),
        _missing_hardware_text(lambda j: f"{j.nic_type} NICs", ""),
    ),
    ("gpus_per_node", lambda j, n: j.gpus_per_node <= n.gpus, _too_many_gpus_text),
    (
        "cpus_per_node",
        lambda j, n: j.cpus_per_node <= n.cpus,
        _missing_hardware_text(lambda j: f"{j.cpus_per_node} CPUs"),
    ),
    (
        "memory_per_node",
        lambda j, n: j.memory_per_node_mb <= n.memory_mb,
        _missing_hardware_text(lambda j: f"{slurm_notation.format_memory(j.memory_per_node_mb)} of memory"),
    ),
)


def _default_cpus(gpus: int, shape: ClusterShape) -> int:
    nodes = [node for node in shape.nodes if node.gpus]
    if not gpus or not nodes:
        return 1
    smallest = min(node.cpus // node.gpus for node in nodes)
    return max(1, gpus * smallest)


def _default_name(command: str) -> str:
    """sbatch calls a job after its script: the first word that is no shebang or directive."""
    for line in command.splitlines():
        # `HF_TOKEN=abc python train.py` is called python: what is assigned before it may be a secret
        words = list(dropwhile(ASSIGNMENT.match, line.split()))
        if words and not words[0].startswith("#"):
            name = parsing.UNPRINTABLE.sub("", words[0].rsplit("/", 1)[-1])
            return name[:120] or "job"
    return "job"


# --- one reader a field


def _read_kind(name: str, value: Any) -> JobKind:
    return JobKind(parsing.choice_reader(list(JobKind))(name, value))


def _read_array(name: str, value: Any) -> tuple[tuple[int, ...], int | None]:
    try:
        indices, limit = slurm_notation.parse_array(parsing.text_reader(2000)(name, value), MAX_ARRAY_TASKS)
    except slurm_notation.BadNotation as error:
        parsing.raise_invalid_field(name, str(error))
    return tuple(indices), limit


def _read_dependencies(name: str, value: Any) -> tuple[DependencySpec, ...]:
    """`afterok:ID:ID,afterany:ID` as text, or a list of such words."""
    words = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        parsing.raise_invalid_field(name, f"is {parsing.json_type_name(value)}, neither afterok:ID nor a list of such")
    found = [dependency for word in words if word.strip() for dependency in _parse_dependency(name, word.strip())]
    if len(found) > MAX_DEPENDENCIES:
        parsing.raise_invalid_field(name, f"has {len(found)} entries, more than the {MAX_DEPENDENCIES} allowed")
    targets = [dependency.on for dependency in found]
    if len(set(targets)) < len(targets):
        parsing.raise_invalid_field(name, "names the same job twice")
    return tuple(found)


def _parse_dependency(name: str, word: str) -> list[DependencySpec]:
    after, *ids = word.split(":")
    if after not in DEPENDENCY_CONDITIONS:
        parsing.raise_invalid_field(name, f"{after[:40]!r} is none of {', '.join(DEPENDENCY_CONDITIONS)}")
    if not ids or not all(JOB_REFERENCE.fullmatch(one) for one in ids):
        parsing.raise_invalid_field(name, f"{word[:60]!r} names no job; write {after}:ID")
    return [DependencySpec(after=after, on=one) for one in ids]


def _read_environment(name: str, value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        parsing.raise_invalid_field(name, f"is {parsing.json_type_name(value)}, not an object of names and texts")
    for key, content in value.items():
        if not isinstance(key, str) or not ENVIRONMENT_NAME.fullmatch(key):
            parsing.raise_invalid_field(name, f"{parsing.short_repr(key)} is no name of a variable")
        parsing.text_reader(MAX_ENVIRONMENT_BYTES, lines=True)(f"{name}.{key}", content)
    if sum(len(k) + len(v) for k, v in value.items()) > MAX_ENVIRONMENT_BYTES:
        parsing.raise_invalid_field(name, f"is larger than {MAX_ENVIRONMENT_BYTES} bytes")
    return dict(value)


def _read_labels(name: str, value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        parsing.raise_invalid_field(name, f"is {parsing.json_type_name(value)}, not an object of names and texts")
    if len(value) > MAX_LABELS:
        parsing.raise_invalid_field(name, f"has {len(value)} entries, more than the {MAX_LABELS} allowed")
    for key, content in value.items():
        if not isinstance(key, str) or not LABEL_NAME.fullmatch(key):
            parsing.raise_invalid_field(name, f"{parsing.short_repr(key)} is no name of a label")
        parsing.text_reader(200)(f"{name}.{key}", content)
    return dict(value)


JOB_FIELD_READERS: dict[str, Callable[[str, Any], Any]] = {
    "name": parsing.nonempty_reader(parsing.text_reader(120)),
    "command": parsing.nonempty_reader(parsing.text_reader(MAX_COMMAND_BYTES, lines=True)),
    "kind": _read_kind,
    "workdir": parsing.read_absolute_path,
    "environment": _read_environment,
    "nodes": parsing.integer_reader(1, 100_000),
    "gpus_per_node": parsing.integer_reader(0, 1000),
    "cpus_per_node": parsing.integer_reader(1, 100_000),
    "memory_per_node": parsing.read_memory_mb,
    "gpu_model": parsing.pattern_reader(HARDWARE_NAME, "GPU model"),
    "nic_type": parsing.pattern_reader(HARDWARE_NAME, "NIC type"),
    "time_limit": parsing.read_duration,
    "priority": parsing.integer_reader(-MAX_PRIORITY, MAX_PRIORITY),
    "preemptible": parsing.read_bool,
    "requeue_limit": parsing.integer_reader(0, 1000),
    "begin_at": parsing.read_timestamp,
    "hold": parsing.read_bool,
    "array": _read_array,
    "dependencies": _read_dependencies,
    "checkpoint_dir": parsing.read_absolute_path,
    "checkpoint_interval": parsing.read_duration,
    "checkpoint_signal": parsing.read_checkpoint_signal,
    "labels": _read_labels,
    "comment": parsing.text_reader(MAX_COMMENT_BYTES, lines=True),
    "key": parsing.pattern_reader(JOB_REFERENCE, "key"),
}
