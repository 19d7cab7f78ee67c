"""Builds the environment variables that tell a job where to resume. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CHECKPOINT_TEMPLATE_VARIABLE = (
    "ACME_CHECKPOINT_TEMPLATE"  # set in the job's environment, for example: --load {path} --iteration {step}
)


def resume_variables(resume: Mapping[str, Any], template: str) -> dict[str, str]:
    """Return the variables of the checkpoint to resume from, and its arguments built from the job's own template:
    `train.py $ACME_CHECKPOINT_ARGS`. A shell does not evaluate the value of a variable, so a path cannot inject a
    command."""
    if not resume:
        return {}
    path, step, skip = str(resume.get("path", "")), str(resume.get("step", "")), resume.get("skip")
    variables = {"ACME_CHECKPOINT": path, "ACME_CHECKPOINT_STEP": step}
    if skip:
        variables["ACME_SKIP_STEPS"] = f"{skip[0]}-{skip[1]}"
    if template and path:
        # {step} first: a path may contain the text {step}, a step cannot contain {path}
        arguments = template.replace("{step}", step).replace("{path}", path)
        variables["ACME_CHECKPOINT_ARGS"] = arguments
    return variables
