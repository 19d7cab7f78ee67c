"""What a person may ask for. `parse()` serves the API, the form and imports, so all print the same sentence.

A request is a mapping of plain values (JSON). What comes out is a `JobSpec` that the record can keep as it is, or a
`BadSpec` that names the field and says in one sentence what is wrong with it. Nothing is looked up here: what the
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

from jobs import notation, readers
from jobs.lifecycle import Kind
from jobs.readers import BadSpec as BadSpec

LONGEST_COMMAND = 64 * 1024
LONGEST_ENVIRONMENT = 64 * 1024
LONGEST_COMMENT = 4000
MOST_LABELS = 64
MOST_TASKS = 5000
MOST_DEPENDENCIES = 100
HIGHEST_PRIORITY = 1_000_000

ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
LABEL_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?", re.ASCII)
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,39}", re.ASCII)
REFERENCE = re.compile(r"@?[A-Za-z0-9][A-Za-z0-9_-]{0,39}", re.ASCII)
AFTER = ("afterok", "afterany", "afternotok")


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
class Shape:
    """What a cluster has, however busy it is."""

    name: str
    nodes: tuple[NodeShape, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DependsOn:
    """`on` is a public id, or `@key` of another job of the same request."""

    after: str
    on: str


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    name: str
    command: str
    kind: Kind = Kind.OTHER
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
    dependencies: tuple[DependsOn, ...] = ()
    checkpoint_dir: str = ""
    checkpoint_interval: timedelta | None = None
    checkpoint_signal: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    comment: str = ""
    key: str = ""  # what other jobs of the same request call it


def parse(asked: Mapping[str, Any], shape: Shape) -> JobSpec:
    """One job. Raises BadSpec for the first thing that cannot be."""
    if not isinstance(asked, Mapping):
        raise BadSpec("job", "is no object of fields")
    values = readers.read_all(asked, READERS, "a job")
    if "command" not in values:
        raise BadSpec("command", "is missing")
    if "memory_per_node" in values:
        values["memory_per_node_mb"] = values.pop("memory_per_node")
    if "array" in values:
        values["array"], values["array_limit"] = values["array"]
    values.setdefault("name", _name_of(values["command"]))
    # Without a wish a job gets its share of the node, as Slurm's DefCpuPerGPU does it; never less than one CPU.
    values.setdefault("cpus_per_node", _default_cpus(values.get("gpus_per_node", 0), shape))
    job = JobSpec(**values)
    fits(job, shape)
    return job


def parse_many(asked: Sequence[Mapping[str, Any]], shape: Shape) -> list[JobSpec]:
    """Several jobs that may name each other by `key`; a circle among them is refused."""
    jobs = [parse(one, shape) for one in asked]
    keys = Counter(job.key for job in jobs if job.key)
    for key, count in keys.items():
        if count > 1:
            raise BadSpec("key", f"{key!r} is given to {count} jobs")
    for job in jobs:
        for dependency in job.dependencies:
            if dependency.on.startswith("@") and dependency.on[1:] not in keys:
                raise BadSpec("dependencies", f"no job of this request has the key {dependency.on[1:]!r}")
    refuse_circle({f"@{job.key}": [d.on for d in job.dependencies] for job in jobs if job.key})
    return jobs


def refuse_circle(waits_for: Mapping[str, Sequence[str]]) -> None:
    try:
        TopologicalSorter(waits_for).prepare()
    except CycleError as error:
        circle = " → ".join(name.lstrip("@") for name in error.args[1])
        raise BadSpec("dependencies", f"{circle} is a circle: none of these jobs could ever start") from None


def refuse_priority(priority: int, is_operator: bool) -> None:
    """As with nice: everybody may step back, only operators of the team may push ahead of all others."""
    if priority > 0 and not is_operator:
        raise BadSpec("priority", "above 0 is given by operators of the team; yours may be 0 or lower")


def fits(job: JobSpec, shape: Shape) -> None:
    """Whether the cluster, when empty, could run it; the sentence names the first field that rules out every node."""
    candidates = list(shape.nodes)
    if not candidates:
        raise BadSpec("cluster", f"{shape.name} has reported no nodes yet")
    for name, test, why in FITTING:
        left = [node for node in candidates if test(job, node)]
        if not left:
            raise BadSpec(name, why(job, shape))
        candidates = left
    have = sum(node.count for node in candidates)
    if job.nodes > have:
        raise BadSpec("nodes", f"{job.nodes} are more than the {have} such nodes that {shape.name} has")


def _too_many(job: JobSpec, shape: Shape) -> str:
    """12 GPUs on nodes of 8 is the mistake people make: say how to ask for them."""
    most = max((node.gpus for node in shape.nodes), default=0)
    if most and job.gpus_per_node > most and job.nodes == 1:
        return (
            f"{job.gpus_per_node} do not fit a node of {most} GPUs; "
            f"ask for {-(-job.gpus_per_node // most)} nodes with {most} GPUs each or fewer"
        )
    return f"{job.gpus_per_node} are more than the {most} GPUs of the largest node of {shape.name}"


def _lacks(what: Callable[[JobSpec], str], such: str = "such ") -> Callable[[JobSpec, Shape], str]:
    return lambda job, shape: f"no {such}node of {shape.name} has {what(job)}"


# In this order: the field, whether a node has it, and what is said when none of those left has
FITTING: tuple[tuple[str, Callable[[JobSpec, NodeShape], bool], Callable[[JobSpec, Shape], str]], ...] = (
    ("gpu_model", lambda j, n: j.gpu_model in ("", n.gpu_model), _lacks(lambda j: f"{j.gpu_model} GPUs", "")),
    ("nic_type", lambda j, n: j.nic_type in ("", n.nic_type), _lacks(lambda j: f"{j.nic_type} NICs", "")),
    ("gpus_per_node", lambda j, n: j.gpus_per_node <= n.gpus, _too_many),
    ("cpus_per_node", lambda j, n: j.cpus_per_node <= n.cpus, _lacks(lambda j: f"{j.cpus_per_node} CPUs")),
    (
        "memory_per_node",
        lambda j, n: j.memory_per_node_mb <= n.memory_mb,
        _lacks(lambda j: f"{notation.format_memory(j.memory_per_node_mb)} of memory"),
    ),
)


def _default_cpus(gpus: int, shape: Shape) -> int:
    nodes = [node for node in shape.nodes if node.gpus]
    if not gpus or not nodes:
        return 1
    smallest = min(node.cpus // node.gpus for node in nodes)
    return max(1, gpus * smallest)


def _name_of(command: str) -> str:
    """sbatch calls a job after its script: the first word that is no shebang or directive."""
    for line in command.splitlines():
        # `HF_TOKEN=abc python train.py` is called python: what is assigned before it may be a secret
        words = list(dropwhile(ASSIGNMENT.match, line.split()))
        if words and not words[0].startswith("#"):
            name = readers.UNPRINTABLE.sub("", words[0].rsplit("/", 1)[-1])
            return name[:120] or "job"
    return "job"


# --- one reader a field


def _kind(name: str, value: Any) -> Kind:
    return Kind(readers.one_of(list(Kind))(name, value))


def _array(name: str, value: Any) -> tuple[tuple[int, ...], int | None]:
    try:
        indices, limit = notation.parse_array(readers.text(2000)(name, value), MOST_TASKS)
    except notation.BadNotation as error:
        readers.bad(name, str(error))
    return tuple(indices), limit


def _dependencies(name: str, value: Any) -> tuple[DependsOn, ...]:
    """`afterok:ID:ID,afterany:ID` as text, or a list of such words."""
    words = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        readers.bad(name, f"is {readers.kind_of(value)}, neither afterok:ID nor a list of such")
    found = [dependency for word in words if word.strip() for dependency in _dependency(name, word.strip())]
    if len(found) > MOST_DEPENDENCIES:
        readers.bad(name, f"has {len(found)} entries, more than the {MOST_DEPENDENCIES} allowed")
    targets = [dependency.on for dependency in found]
    if len(set(targets)) < len(targets):
        readers.bad(name, "names the same job twice")
    return tuple(found)


def _dependency(name: str, word: str) -> list[DependsOn]:
    after, *ids = word.split(":")
    if after not in AFTER:
        readers.bad(name, f"{after[:40]!r} is none of {', '.join(AFTER)}")
    if not ids or not all(REFERENCE.fullmatch(one) for one in ids):
        readers.bad(name, f"{word[:60]!r} names no job; write {after}:ID")
    return [DependsOn(after=after, on=one) for one in ids]


def _environment(name: str, value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        readers.bad(name, f"is {readers.kind_of(value)}, not an object of names and texts")
    for key, content in value.items():
        if not isinstance(key, str) or not ENVIRONMENT_NAME.fullmatch(key):
            readers.bad(name, f"{readers.short(key)} is no name of a variable")
        readers.text(LONGEST_ENVIRONMENT, lines=True)(f"{name}.{key}", content)
    if sum(len(k) + len(v) for k, v in value.items()) > LONGEST_ENVIRONMENT:
        readers.bad(name, f"is larger than {LONGEST_ENVIRONMENT} bytes")
    return dict(value)


def _labels(name: str, value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        readers.bad(name, f"is {readers.kind_of(value)}, not an object of names and texts")
    if len(value) > MOST_LABELS:
        readers.bad(name, f"has {len(value)} entries, more than the {MOST_LABELS} allowed")
    for key, content in value.items():
        if not isinstance(key, str) or not LABEL_NAME.fullmatch(key):
            readers.bad(name, f"{readers.short(key)} is no name of a label")
        readers.text(200)(f"{name}.{key}", content)
    return dict(value)


READERS: dict[str, Callable[[str, Any], Any]] = {
    "name": readers.needed(readers.text(120)),
    "command": readers.needed(readers.text(LONGEST_COMMAND, lines=True)),
    "kind": _kind,
    "workdir": readers.path,
    "environment": _environment,
    "nodes": readers.whole(1, 100_000),
    "gpus_per_node": readers.whole(0, 1000),
    "cpus_per_node": readers.whole(1, 100_000),
    "memory_per_node": readers.memory,
    "gpu_model": readers.word(WORD, "GPU model"),
    "nic_type": readers.word(WORD, "NIC type"),
    "time_limit": readers.duration,
    "priority": readers.whole(-HIGHEST_PRIORITY, HIGHEST_PRIORITY),
    "preemptible": readers.truth,
    "requeue_limit": readers.whole(0, 1000),
    "begin_at": readers.moment,
    "hold": readers.truth,
    "array": _array,
    "dependencies": _dependencies,
    "checkpoint_dir": readers.path,
    "checkpoint_interval": readers.duration,
    "checkpoint_signal": readers.signal,
    "labels": _labels,
    "comment": readers.text(LONGEST_COMMENT, lines=True),
    "key": readers.word(REFERENCE, "key"),
}
