"""The commands that submit the same job as a request: curl, acme and sbatch. Pure.

A body is what the API accepts: `team`, `cluster` and the fields of a job. All values are quoted for the shell.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC
from functools import partial
from typing import Any

from jobs.core.deadlines import DeadlineAction
from jobs.core.gpu_models import SEPARATOR
from jobs.core.request_fields import DEFAULT_REQUEUE_LIMIT, REQUEST_FIELDS, Notation
from jobs.core.spec import SHARE_FIELDS, JobSpec

JOBS_PATH = "/api/v1/jobs/"
LINE_WIDTH = 72
SAME_IN_SBATCH = [name for name, field in REQUEST_FIELDS.items() if field.option and field.option.sbatch]
# Fields that `sbatch_command` or `LOST_IN_SBATCH` has a rule for
RULES_FOR_SBATCH = (
    *("command", "gpus_per_node", "cpus_per_node", "gpu_model", "mig_profile", "image", "begin_at", "priority"),
    *("deadline_at", "deadline_action", "requeue_limit", "hold", "environment"),
)
PLACE_OPTIONS = {"team": "--account", "cluster": "--clusters"}


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
    options = _place_options(body)
    for name in REQUEST_FIELDS:
        if name in body:
            options += _field_options(name, body[name])
    return _wrapped_lines(["acme submit", *options, _option("--wrap", body["command"])])


def _place_options(body: Mapping[str, Any]) -> list[str]:
    return [_option(option, body[name]) for name, option in PLACE_OPTIONS.items() if name in body]


def _field_options(name: str, value: Any) -> list[str]:
    option = REQUEST_FIELDS[name].option
    if option is None:
        return []
    match REQUEST_FIELDS[name].value.notation:
        case Notation.FLAG:
            return [option.name] if value else []
        case Notation.PAIRS:
            return [_option(option.name, f"{key}={content}") for key, content in value.items()]
        case _:
            return [_option(option.name, f"{option.gres}{value}")]


def sbatch_command(body: Mapping[str, Any], spec: JobSpec) -> SbatchCommand:
    """The command for Slurm itself. A setting without an option is listed, never silently lost."""
    options = _place_options(body)
    for name in SAME_IN_SBATCH:
        if name in body:
            options += _field_options(name, body[name])
    if spec.gpus_per_node:
        model = f"{spec.gpu_model}:" if spec.gpu_model and SEPARATOR not in spec.gpu_model else ""
        options.append(_option("--gpus-per-node", f"{model}{spec.gpus_per_node}"))
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


def _is_stated(name: str, spec: JobSpec) -> bool:
    """Whether the job differs in this field from one that does not state it."""
    return bool(getattr(spec, name) != getattr(JobSpec, name, {}))  # the class has no attribute for an empty mapping


def _label_in_sentence(label: str) -> str:
    return label if label[1].isupper() else label[0].lower() + label[1:]


LOST_IN_SBATCH: dict[str, Callable[[JobSpec], bool]] = {
    **{
        _label_in_sentence(field.label): partial(_is_stated, name)
        for name, field in REQUEST_FIELDS.items()
        if field.stored and name not in (*SAME_IN_SBATCH, *RULES_FOR_SBATCH)
    },
    # A gres cannot have alternatives
    "GPU model": lambda spec: bool(spec.gpu_model) and (not spec.gpus_per_node or SEPARATOR in spec.gpu_model),
    "deadline without cancel": lambda spec: bool(spec.deadline_at) and spec.deadline_action != DeadlineAction.CANCEL,
    "priority below 0": lambda spec: spec.priority < 0,
    "requeue limit": lambda spec: spec.requeue_limit not in (0, DEFAULT_REQUEUE_LIMIT),
    "environment with commas": lambda spec: not _is_exportable(spec),
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
