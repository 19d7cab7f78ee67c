"""Validates job requests. The API, the form and imports all use `parse()`, so they report the same errors.

A request is a mapping of plain values (JSON). The result is a `JobSpec`, whose values can be stored unchanged, or an
`InvalidField` that names the field and says what is wrong. Nothing is looked up here: the hardware of the cluster is an
argument (`ClusterShape`), and ids of other jobs stay text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from graphlib import CycleError, TopologicalSorter
from itertools import dropwhile
from typing import Any

from acmeweb.common.errors import InvalidField, InvalidInput
from jobs.core import parsing, slurm_notation
from jobs.core.container_offers import MAX_MOUNTS, MOUNT_NAME, NO_OFFERS, ContainerOffers
from jobs.core.deadlines import DeadlineAction
from jobs.core.gpu_models import HARDWARE_NAME, accepts_model, gpu_models, models_text, read_gpu_models
from jobs.core.gpu_shares import (
    MAX_MIG_PROFILE_LENGTH,
    MIG_PROFILE,
    MIG_RESOURCE_PREFIX,
    MPS,
    SHARD,
    WHOLE_GPU,
    charged_milli,
    gpu_number,
    is_whole_shards,
    milli_of_shards,
    nearest_shares,
    profile_milli,
)
from jobs.core.lifecycle import JobKind
from jobs.core.parsing import FieldReader
from jobs.core.preemption_contract import CONTRACT_FIELDS, NO_CONTRACTS, ContractLimits, PreemptionContract
from jobs.core.request_fields import DEFAULT_REQUEUE_LIMIT, MAX_IMAGE_LENGTH, REQUEST_FIELDS, Notation, Value

MAX_ENVIRONMENT_BYTES = 64 * 1024
MAX_LABELS = 64
MAX_ARRAY_TASKS = 5000
MAX_DEPENDENCIES = 100

ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
LABEL_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?", re.ASCII)
JOB_REFERENCE = re.compile(r"@?[A-Za-z0-9][A-Za-z0-9_-]{0,39}", re.ASCII)
DEPENDENCY_CONDITIONS = ("afterok", "afterany", "afternotok")
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
SHARE_FIELDS = {"gpu_shards": SHARD, "gpu_mps": MPS}  # requests of a part of a GPU, as in Slurm


@dataclass(frozen=True, kw_only=True)
class NodeShape:
    """A number of nodes with equal hardware."""

    count: int
    gpus: int
    cpus: int
    memory_mb: int
    gpu_model: str = ""
    nic_type: str = ""
    shards_per_gpu: int = 0  # 0: its GPUs cannot be shared
    share_gres: str = SHARD
    mig_slices: tuple[tuple[str, int], ...] = ()  # profile and number; `gpus` are the whole ones

    @property
    def gpu_milli(self) -> int:
        """What accounts count for all its GPUs and slices, in thousandths."""
        return WHOLE_GPU * self.gpus + sum(count * profile_milli(profile) for profile, count in self.mig_slices)


@dataclass(frozen=True, kw_only=True)
class ClusterShape:
    """What a cluster offers to jobs, independent of its load: hardware, container images, terms of preemption."""

    name: str
    nodes: tuple[NodeShape, ...] = ()
    runs_images: bool = False
    container_offers: ContainerOffers = NO_OFFERS  # if it runs images
    contract_limits: ContractLimits = NO_CONTRACTS
    gpu_share_kinds: tuple[str, ...] = ()  # kinds of jobs that may request a part of a GPU


@dataclass(frozen=True, kw_only=True)
class DependencySpec:
    """A dependency. `on` is a public id, or `@key` of another job in the same request."""

    after: str
    on: str


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """A validated job request."""

    name: str
    command: str
    kind: JobKind = JobKind.OTHER
    image: str = ""
    mounts: tuple[str, ...] = ()
    workdir: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    nodes: int = 1
    gpus_per_node: int = 0
    gpu_milli: int = 0  # thousandths of one GPU, instead of whole GPUs
    share_gres: str = ""  # what Slurm must call the parts of the GPU; empty: any name
    mig_profile: str = ""  # the profile of the MIG slice that these thousandths are
    cpus_per_node: int = 1
    memory_per_node_mb: int = 0
    gpu_model: str = ""  # several in order of preference, see `gpu_models`
    nic_type: str = ""
    required_node: str = ""  # set by the scheduler's own coordinators; requests cannot set it
    time_limit: timedelta | None = None
    priority: int = 0
    preemptible: bool = False
    preempt_exempt_time: timedelta = timedelta(0)
    preempt_at_checkpoint: bool = False
    preemptions_per_day: int | None = None
    requeue_limit: int = DEFAULT_REQUEUE_LIMIT
    begin_at: datetime | None = None
    deadline_at: datetime | None = None
    deadline_action: DeadlineAction = DeadlineAction.CONTINUE
    deadline_probability: float | None = None  # set when the request is judged; requests cannot set it
    deadline_why: str = ""
    hold: bool = False
    array: tuple[int, ...] = ()
    array_limit: int | None = None
    dependencies: tuple[DependencySpec, ...] = ()
    checkpoint_dir: str = ""
    checkpoint_interval: timedelta | None = None
    checkpoint_signal: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    comment: str = ""
    wckey: str = ""
    key: str = ""  # name by which other jobs of the request refer to it

    @property
    def preemption_contract(self) -> PreemptionContract:
        return PreemptionContract.of(self)


def parse(request: Mapping[str, Any], shape: ClusterShape) -> JobSpec:
    """Return one validated job. Raises InvalidField."""
    if not isinstance(request, Mapping):
        raise InvalidField("job", "is not an object")
    requested = parsing.read_fields(request, READERS, "a job", required=["command"])
    values = {REQUEST_FIELDS[name].value.column or name: value for name, value in requested.items()}
    # The reader returns indices and limit together, because both come from one text
    if "array" in values:
        values["array"], values["array_limit"] = values["array"]
    values.setdefault("name", _default_name(values["command"]))
    values |= _read_share(values, shape)
    # One CPU would starve the data loading of a GPU job, so the default is its share of the node
    values.setdefault(
        "cpus_per_node", _default_cpus(charged_milli(values["gpus_per_node"], values["gpu_milli"]), shape)
    )
    stated = {name: values.pop(name) for name in CONTRACT_FIELDS if name in values}
    preemptible = values.get("preemptible", False)
    values |= shape.contract_limits.columns(stated, cluster=shape.name, preemptible=preemptible)
    job = JobSpec(**values)
    _check_share(job, shape)
    check_fits_cluster(job, shape)
    return job


def refuse_dependency_cycle(waits_for: Mapping[str, Sequence[str]]) -> None:
    try:
        TopologicalSorter(waits_for).prepare()
    except CycleError as error:
        # CycleError lists the nodes of the cycle in its second argument
        circle = " → ".join(name.lstrip("@") for name in error.args[1])
        raise InvalidField("dependencies", f"{circle} is a cycle: none of these jobs could start") from None


def refuse_priority(priority: int, is_operator: bool) -> None:
    """Reject priorities above 0 for everyone except operators of the team. As with nice, lowering is always allowed."""
    if priority > 0 and not is_operator:
        raise InvalidField("priority", "must be 0 or lower; only operators of the team may set a higher value")


def check_fits_cluster(job: JobSpec, shape: ClusterShape) -> None:
    """Check that the cluster could run the job when empty. The error names the first field that rules out every
    node."""
    candidates = list(shape.nodes)
    if not candidates:
        raise InvalidField("cluster", f"{shape.name} has reported no nodes yet")
    _check_container(job, shape)
    for name, test, why in FIT_RULES:
        fitting = [node for node in candidates if test(job, node)]
        if not fitting:
            raise InvalidField(name, why(job, shape))
        candidates = fitting
    available = _most_nodes(job, candidates)
    if job.nodes > available:
        raise InvalidField("nodes", f"{job.nodes} is more than the {available} matching nodes of {shape.name}")


def _most_nodes(job: JobSpec, candidates: Sequence[NodeShape]) -> int:
    """How many nodes the job could use at once. A job that names several GPU models runs on one of them."""
    if len(models := gpu_models(job.gpu_model)) < 2:
        return sum(node.count for node in candidates)
    return max(sum(node.count for node in candidates if node.gpu_model == model) for model in models)


def _check_container(job: JobSpec, shape: ClusterShape) -> None:
    """Check that the cluster offers the image and the mounts of the job."""
    if shape.runs_images:
        errors = {
            "image": shape.container_offers.image_error(job.image, shape.name),
            "mounts": shape.container_offers.mounts_error(job.mounts, shape.name),
        }
    else:
        errors = {
            "image": f"{shape.name} cannot run container images" if job.image else "",
            "mounts": f"{shape.name} runs jobs without containers, so it has no mounts" if job.mounts else "",
        }
    for name, error in errors.items():
        if error:
            raise InvalidField(name, error)


def _read_share(values: dict[str, Any], shape: ClusterShape) -> dict[str, Any]:
    """Return whole GPUs, thousandths of one and, if it is named, the resource of Slurm. A part of a GPU is a number
    below 1 or, as in Slurm, shards, or a MIG slice."""
    gpus = values.get("gpus_per_node", 0)
    stated = [name for name in ("gpus_per_node", "mig_profile", *SHARE_FIELDS) if values.get(name)]
    if len(stated) > 1:
        raise InvalidField(stated[1], f"is a part of one GPU; leave out {stated[0]}")
    if profile := values.get("mig_profile", ""):
        return {"gpus_per_node": 0, "gpu_milli": profile_milli(profile)}
    for name, gres in SHARE_FIELDS.items():
        if (shards := values.pop(name, None)) is not None:
            return {"gpus_per_node": 0, "gpu_milli": _shards_milli(name, shards, gres, shape), "share_gres": gres}
    whole = int(gpus)
    return {"gpus_per_node": whole, "gpu_milli": round((gpus - whole) * WHOLE_GPU)}


def _shards_milli(field: str, shards: int, gres: str, shape: ClusterShape) -> int:
    per_gpu = max((node.shards_per_gpu for node in shape.nodes if node.share_gres == gres), default=0)
    if shards >= per_gpu > 0:
        one = f"a whole GPU of {shape.name}; request gpus_per_node 1"
        several = f"more than the {per_gpu} parts of a GPU of {shape.name}"
        raise InvalidField(field, f"{shards} is {one if shards == per_gpu else several}")
    if not per_gpu and any(node.shards_per_gpu for node in shape.nodes):
        raise InvalidField(field, f"no node of {shape.name} has gres/{gres}")
    # Without shards, `_check_share` or FIT_RULES refuse the job, whatever the number is
    return milli_of_shards(shards, per_gpu) if per_gpu else 1


def _check_share(job: JobSpec, shape: ClusterShape) -> None:
    """Check that the cluster lets this kind of job share a GPU, and that the job can."""
    if not job.gpu_milli:
        return
    if job.kind not in shape.gpu_share_kinds:
        kinds = " or ".join(shape.gpu_share_kinds)
        allowed = f"only jobs of kind {kinds} may" if kinds else "no job may"
        field = "mig_profile" if job.mig_profile else "gpus_per_node"
        raise InvalidField(field, f"{allowed} request a part of a GPU on {shape.name}")
    if job.nodes > 1:
        raise InvalidField("nodes", "a part of a GPU is on one node; request whole GPUs for several nodes")
    if job.preemptible:
        raise InvalidField(
            "preemptible", "a job with a part of a GPU cannot be preempted, because others share the GPU"
        )


def _no_share_text(job: JobSpec, shape: ClusterShape) -> str:
    sharing = [node for node in shape.nodes if node.shards_per_gpu and job.share_gres in ("", node.share_gres)]
    per_gpu = max((node.shards_per_gpu for node in sharing), default=0)
    if not per_gpu:
        return f"no matching node of {shape.name} has GPUs with shards; request whole GPUs"
    near = " or ".join(str(gpu_number(milli)) for milli in nearest_shares(job.gpu_milli, per_gpu))
    units = "units of MPS" if all(node.share_gres == MPS for node in sharing) else "shards"
    asked = gpu_number(job.gpu_milli)
    return f"{asked} is not a whole number of {units}; a GPU of {shape.name} has {per_gpu}, so request {near or 1}"


def _no_slice_text(job: JobSpec, shape: ClusterShape) -> str:
    offered = sorted({profile for node in shape.nodes for profile, _ in node.mig_slices})
    others = f"; it has {', '.join(offered)}" if offered else ""
    return f"no matching node of {shape.name} has MIG slices {job.mig_profile}{others}"


def _too_many_gpus_text(job: JobSpec, shape: ClusterShape) -> str:
    """Explain how to request several nodes: 12 GPUs on nodes with 8 is a common mistake."""
    largest = max((node.gpus for node in shape.nodes), default=0)
    if largest and job.gpus_per_node > largest and job.nodes == 1:
        return (
            f"{job.gpus_per_node} is more than the {largest} GPUs of a node; "
            f"request {-(-job.gpus_per_node // largest)} nodes with at most {largest} GPUs each"
        )
    return f"{job.gpus_per_node} is more than the {largest} GPUs of the largest node of {shape.name}"


def _missing_hardware_text(
    what: Callable[[JobSpec], str], qualifier: str = "matching "
) -> Callable[[JobSpec, ClusterShape], str]:
    return lambda job, shape: f"no {qualifier}node of {shape.name} has {what(job)}"


def _gres_rule(
    field: str, gres: str
) -> tuple[str, Callable[[JobSpec, NodeShape], bool], Callable[[JobSpec, ClusterShape], str]]:
    return (
        field,
        lambda job, node: job.share_gres != gres or node.share_gres == gres,
        _missing_hardware_text(lambda job: f"gres/{gres}"),
    )


# Checked in this order: the field, whether a node satisfies it, and the error if no remaining node does
FIT_RULES: tuple[tuple[str, Callable[[JobSpec, NodeShape], bool], Callable[[JobSpec, ClusterShape], str]], ...] = (
    (
        "gpu_model",
        lambda j, n: accepts_model(j.gpu_model, n.gpu_model),
        _missing_hardware_text(lambda j: f"{models_text(j.gpu_model)} GPUs", ""),
    ),
    (
        "nic_type",
        lambda j, n: j.nic_type in ("", n.nic_type),
        _missing_hardware_text(lambda j: f"{j.nic_type} NICs", ""),
    ),
    ("gpus_per_node", lambda j, n: j.gpus_per_node <= n.gpus, _too_many_gpus_text),
    ("mig_profile", lambda j, n: not j.mig_profile or j.mig_profile in dict(n.mig_slices), _no_slice_text),
    *(_gres_rule(field, gres) for field, gres in SHARE_FIELDS.items()),
    (
        "gpus_per_node",
        lambda j, n: (
            not j.gpu_milli or bool(j.mig_profile) or (n.gpus > 0 and is_whole_shards(j.gpu_milli, n.shards_per_gpu))
        ),
        _no_share_text,
    ),
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


def _default_cpus(milli: int, shape: ClusterShape) -> int:
    """Return the CPUs per node for these thousandths of GPUs: the smallest share of any GPU node, as DefCpuPerGPU."""
    nodes = [node for node in shape.nodes if node.gpu_milli]
    if not milli or not nodes:
        return 1
    # The smallest share fits on every GPU node of the cluster
    smallest = min(node.cpus * WHOLE_GPU // node.gpu_milli for node in nodes)
    return max(1, milli * smallest // WHOLE_GPU)


def _default_name(command: str) -> str:
    """Return the name of the program in the command, as sbatch uses the name of the script."""
    for line in command.splitlines():
        # `HF_TOKEN=abc python train.py` is named python: the value of an assignment may be a secret
        words = list(dropwhile(ASSIGNMENT.match, line.split()))
        if words and not words[0].startswith("#"):
            name = parsing.UNPRINTABLE.sub("", words[0].rsplit("/", 1)[-1])
            return name[:120] or "job"
    return "job"


# --- one reader per field


def _read_gpus(name: str, value: Any) -> float:
    """Read a whole number of GPUs, or a part of one GPU with at most three decimals."""
    if not isinstance(value, float) or value.is_integer():
        read = parsing.integer_reader(0, REQUEST_FIELDS[name].value.high)
        return read(name, int(value) if isinstance(value, float) else value)
    if not 0 < value < 1:
        parsing.raise_invalid_field(name, f"{parsing.short_repr(value)} is neither a whole number nor below 1")
    if round(value * WHOLE_GPU) / WHOLE_GPU != value:
        parsing.raise_invalid_field(name, f"{parsing.short_repr(value)} has more than three decimals")
    return value


def _read_mig_profile(name: str, value: Any) -> str:
    """Read `1g.10gb`, also as nvidia-smi writes it (`1g.10gb+me`) and as the resource of Kubernetes."""
    text = parsing.text_reader(len(MIG_RESOURCE_PREFIX) + MAX_MIG_PROFILE_LENGTH)(name, value)
    profile = text.removeprefix(MIG_RESOURCE_PREFIX).replace("+", ".")
    if text and not MIG_PROFILE.fullmatch(profile):
        parsing.raise_invalid_field(name, f"{parsing.short_repr(value)} is not a MIG profile such as 1g.10gb")
    return profile


def _read_image(name: str, value: Any) -> str:
    image = parsing.text_reader(MAX_IMAGE_LENGTH)(name, value)
    if any(character.isspace() for character in image):
        parsing.raise_invalid_field(name, "contains a space")
    return image


def _read_mounts(name: str, value: Any) -> tuple[str, ...]:
    """Read names as text, separated by commas, or as a list."""
    words = [word.strip() for word in value.split(",") if word.strip()] if isinstance(value, str) else value
    if not isinstance(words, list):
        parsing.raise_invalid_field(name, f"is {parsing.json_type_name(value)}, not a list of names")
    if len(words) > MAX_MOUNTS:
        parsing.raise_invalid_field(name, f"has {len(words)} names, more than the {MAX_MOUNTS} allowed")
    if wrong := [word for word in words if not isinstance(word, str) or not MOUNT_NAME.fullmatch(word)]:
        parsing.raise_invalid_field(name, f"{parsing.short_repr(wrong[0])} is not a valid name of a mount")
    return tuple(dict.fromkeys(words))


def _read_array(name: str, value: Any) -> tuple[tuple[int, ...], int | None]:
    try:
        text = parsing.text_reader(REQUEST_FIELDS[name].value.most)(name, value)
        indices, limit = slurm_notation.parse_array(text, MAX_ARRAY_TASKS)
    except InvalidInput as error:
        parsing.raise_invalid_field(name, str(error))
    return tuple(indices), limit


def _read_dependencies(name: str, value: Any) -> tuple[DependencySpec, ...]:
    """Read `afterok:ID:ID,afterany:ID` as text, or a list of such entries."""
    words = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        parsing.raise_invalid_field(
            name, f"is {parsing.json_type_name(value)}, not afterok:ID or a list of such entries"
        )
    dependencies = [
        dependency for word in words if word.strip() for dependency in _parse_dependency(name, word.strip())
    ]
    if len(dependencies) > MAX_DEPENDENCIES:
        parsing.raise_invalid_field(name, f"has {len(dependencies)} entries, more than the {MAX_DEPENDENCIES} allowed")
    targets = [dependency.on for dependency in dependencies]
    # One row per pair of jobs, so there can be only one condition
    if len(set(targets)) < len(targets):
        parsing.raise_invalid_field(name, "names the same job twice")
    return tuple(dependencies)


def _parse_dependency(name: str, word: str) -> list[DependencySpec]:
    after, *ids = word.split(":")
    if after not in DEPENDENCY_CONDITIONS:
        parsing.raise_invalid_field(name, f"{after[:40]!r} is not one of {', '.join(DEPENDENCY_CONDITIONS)}")
    if not ids or not all(JOB_REFERENCE.fullmatch(reference) for reference in ids):
        parsing.raise_invalid_field(name, f"{word[:60]!r} contains no job id; write {after}:ID")
    return [DependencySpec(after=after, on=reference) for reference in ids]


def _read_exempt_time(name: str, value: Any) -> timedelta:
    return parsing.read_duration(name, value) or parsing.raise_invalid_field(name, "is unlimited; state a duration")


def _read_environment(name: str, value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        parsing.raise_invalid_field(name, f"is {parsing.json_type_name(value)}, not an object of names and strings")
    for key, content in value.items():
        if not isinstance(key, str) or not ENVIRONMENT_NAME.fullmatch(key):
            parsing.raise_invalid_field(name, f"{parsing.short_repr(key)} is not a valid variable name")
        parsing.text_reader(MAX_ENVIRONMENT_BYTES, lines=True)(f"{name}.{key}", content)
    if sum(len(k) + len(v) for k, v in value.items()) > MAX_ENVIRONMENT_BYTES:
        parsing.raise_invalid_field(name, f"is larger than {MAX_ENVIRONMENT_BYTES} bytes")
    return dict(value)


def _read_labels(name: str, value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        parsing.raise_invalid_field(name, f"is {parsing.json_type_name(value)}, not an object of names and strings")
    if len(value) > MAX_LABELS:
        parsing.raise_invalid_field(name, f"has {len(value)} entries, more than the {MAX_LABELS} allowed")
    for key, content in value.items():
        if not isinstance(key, str) or not LABEL_NAME.fullmatch(key):
            parsing.raise_invalid_field(name, f"{parsing.short_repr(key)} is not a valid label name")
        parsing.text_reader(200)(f"{name}.{key}", content)
    return dict(value)


# Fields whose values have rules of their own
OWN_READERS: dict[str, FieldReader] = {
    "name": parsing.nonempty_reader(parsing.text_reader(REQUEST_FIELDS["name"].value.most)),
    "command": parsing.nonempty_reader(parsing.text_reader(REQUEST_FIELDS["command"].value.most, lines=True)),
    "gpus_per_node": _read_gpus,
    "gpu_model": read_gpu_models,
    "mig_profile": _read_mig_profile,
    "nic_type": parsing.pattern_reader(HARDWARE_NAME, "NIC type"),
    "dependencies": _read_dependencies,
    "array": _read_array,
    "preempt_exempt_time": _read_exempt_time,
    "image": _read_image,
    "mounts": _read_mounts,
    "environment": _read_environment,
    "checkpoint_signal": parsing.read_checkpoint_signal,
    "labels": _read_labels,
    "key": parsing.pattern_reader(JOB_REFERENCE, "key"),
}


def _plain_reader(name: str, value: Value) -> FieldReader:
    match value.notation:
        case Notation.CHOICE:
            return _choice_reader(CHOICES[name])
        case Notation.TEXT | Notation.LINES:
            return parsing.text_reader(value.most, lines=value.notation == Notation.LINES)
        case Notation.NUMBER:
            return parsing.integer_reader(value.low, value.high)
        case notation:
            return NOTATION_READERS[notation]


def _choice_reader(choices: type[StrEnum]) -> FieldReader:
    read = parsing.choice_reader(list(choices))
    return lambda name, value: choices(read(name, value))


CHOICES: dict[str, type[StrEnum]] = {"kind": JobKind, "deadline_action": DeadlineAction}
NOTATION_READERS: dict[Notation, FieldReader] = {
    Notation.PATH: parsing.read_absolute_path,
    Notation.FLAG: parsing.read_bool,
    Notation.MEMORY: parsing.read_memory_mb,
    Notation.DURATION: parsing.read_duration,
    Notation.TIME: parsing.read_timestamp,
}
READERS = {name: OWN_READERS.get(name) or _plain_reader(name, field.value) for name, field in REQUEST_FIELDS.items()}
