"""The commands that submit the same job as a request: curl, acme and sbatch. Pure.

A body is what the API accepts: `team`, `cluster` and the fields of a job. All values are quoted for the shell.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC
from typing import Any

from jobs.core.deadlines import DeadlineAction
from jobs.core.gpu_models import SEPARATOR
from jobs.core.gpu_shares import MIG_RESOURCE_PREFIX
from jobs.core.spec import SHARE_FIELDS, JobSpec

JOBS_PATH = "/api/v1/jobs/"
LINE_WIDTH = 72
DEFAULT_REQUEUE_LIMIT = 3

# Options that acme and sbatch share, in the order in which they are written
SHARED_OPTIONS: dict[str, str] = {
    "team": "--account",
    "cluster": "--clusters",
    "name": "--job-name",
    "nodes": "--nodes",
    "memory_per_node": "--mem",
    "time_limit": "--time",
    "workdir": "--chdir",
    "array": "--array",
    "dependencies": "--dependency",
    "checkpoint_signal": "--signal",
    "comment": "--comment",
}
ACME_OPTIONS: dict[str, str] = SHARED_OPTIONS | {
    "kind": "--kind",
    "gpus_per_node": "--gpus-per-node",
    "cpus_per_node": "--cpus-per-task",
    "gpu_model": "--gpu-model",
    "nic_type": "--nic-type",
    "image": "--image",
    "mounts": "--mount",
    "priority": "--priority",
    "requeue_limit": "--requeue-limit",
    "begin_at": "--begin",
    "deadline_at": "--deadline",
    "deadline_action": "--deadline-action",
    "checkpoint_dir": "--checkpoint-dir",
    "checkpoint_interval": "--checkpoint-interval",
    "preempt_exempt_time": "--preempt-exempt-time",
    "preemptions_per_day": "--preemptions-per-day",
}
ACME_PAIRS = {"environment": "--env", "labels": "--label"}
GRES = {"gpu_shards": "shard:", "gpu_mps": "mps:", "mig_profile": MIG_RESOURCE_PREFIX}  # parts of a GPU
SWITCHES = {"preemptible": "--preemptible", "preempt_at_checkpoint": "--preempt-at-checkpoint", "hold": "--hold"}


@dataclass(frozen=True, kw_only=True)
class SbatchCommand:
    """A command for sbatch, and the settings of the job that sbatch has no option for."""

    text: str
    left_out: tuple[str, ...]


def without_defaults(request: Mapping[str, Any]) -> dict[str, Any]:
    """The request without the values that a job has anyway, so that the commands stay short."""
    defaults = {name: one.default for name, one in JobSpec.__dataclass_fields__.items()}
    return {name: value for name, value in request.items() if name not in defaults or value != defaults[name]}


def curl_command(body: Mapping[str, Any], url: str) -> str:
    parts = [
        f"curl -X POST {shlex.quote(url + JOBS_PATH)}",
        '-H "Authorization: Bearer $ACME_TOKEN"',
        "-H 'Content-Type: application/json'",
        f"-d {shlex.quote(json.dumps(body, indent=2))}",
    ]
    return " \\\n  ".join(parts)


def acme_command(body: Mapping[str, Any]) -> str:
    options = [_option(option, body[name]) for name, option in ACME_OPTIONS.items() if name in body]
    options += [_option("--gres", f"{name}{body[field]}") for field, name in GRES.items() if field in body]
    options += [option for name, option in SWITCHES.items() if body.get(name)]
    for name, option in ACME_PAIRS.items():
        options += [_option(option, f"{key}={value}") for key, value in body.get(name, {}).items()]
    return _wrapped_lines(["acme submit", *options, _option("--wrap", body["command"])])


def sbatch_command(body: Mapping[str, Any], spec: JobSpec) -> SbatchCommand:
    """The command for Slurm itself. A setting without an option is listed, never silently lost."""
    options = [_option(option, body[name]) for name, option in SHARED_OPTIONS.items() if name in body]
    if spec.gpus_per_node:
        model = f"{spec.gpu_model}:" if spec.gpu_model and SEPARATOR not in spec.gpu_model else ""
        options.append(_option("--gpus-per-node", f"{model}{spec.gpus_per_node}"))
    options += [_option("--gres", f"{GRES[field]}{body[field]}") for field in SHARE_FIELDS if field in body]
    # sbatch would allocate one CPU, whatever the number of GPUs
    options += ["--ntasks-per-node=1", _option("--cpus-per-task", spec.cpus_per_node)]
    if spec.image:
        options.append(_option("--container-image", spec.image))
    if spec.begin_at:
        options.append(_option("--begin", f"{spec.begin_at.astimezone(UTC):%Y-%m-%dT%H:%M:%S}"))
    if spec.deadline_at and spec.deadline_action == DeadlineAction.CANCEL:
        options.append(_option("--deadline", f"{spec.deadline_at.astimezone(UTC):%Y-%m-%dT%H:%M:%S}"))
    if spec.priority > 0:
        options.append(_option("--priority", spec.priority))
    options.append("--requeue" if spec.requeue_limit else "--no-requeue")
    options += ["--hold"] if spec.hold else []
    if spec.environment and _is_exportable(spec):
        options.append(_option("--export", ",".join(f"{key}={value}" for key, value in spec.environment.items())))
    left_out = tuple(label for label, is_lost in LOST_IN_SBATCH.items() if is_lost(spec))
    if spec.gpu_milli and not SHARE_FIELDS.keys() & body.keys():
        left_out = ("MIG slice" if spec.mig_profile else "part of a GPU", *left_out)
    return SbatchCommand(text=_wrapped_lines(["sbatch", *options, _option("--wrap", spec.command)]), left_out=left_out)


def _is_exportable(spec: JobSpec) -> bool:
    """Whether --export can hold the variables: it separates them with commas."""
    return not any("," in value for value in spec.environment.values())


LOST_IN_SBATCH: dict[str, Callable[[JobSpec], bool]] = {
    "kind": lambda spec: spec.kind != JobSpec.kind,
    # A gres cannot have alternatives
    "GPU model": lambda spec: bool(spec.gpu_model) and (not spec.gpus_per_node or SEPARATOR in spec.gpu_model),
    "NIC type": lambda spec: bool(spec.nic_type),
    "preemptible": lambda spec: spec.preemptible,
    "protection after a start": lambda spec: bool(spec.preempt_exempt_time),
    "preemption only at checkpoints": lambda spec: spec.preempt_at_checkpoint,
    "preemptions per day": lambda spec: spec.preemptions_per_day is not None,
    "deadline without cancel": lambda spec: bool(spec.deadline_at) and spec.deadline_action != DeadlineAction.CANCEL,
    "priority below 0": lambda spec: spec.priority < 0,
    "requeue limit": lambda spec: spec.requeue_limit not in (0, DEFAULT_REQUEUE_LIMIT),
    "environment with commas": lambda spec: not _is_exportable(spec),
    "checkpoint directory": lambda spec: bool(spec.checkpoint_dir),
    "checkpoint interval": lambda spec: spec.checkpoint_interval is not None,
    "mounts": lambda spec: bool(spec.mounts),
    "labels": lambda spec: bool(spec.labels),
}


def _option(name: str, value: Any) -> str:
    return f"{name}={shlex.quote(str(value))}"


def _wrapped_lines(words: Iterable[str]) -> str:
    """The words in lines of about `LINE_WIDTH` characters, joined so that the shell reads one command."""
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + len(word) < LINE_WIDTH and "\n" not in word:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return " \\\n  ".join(lines)
