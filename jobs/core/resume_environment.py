"""Where a job is to go on from, as it is told in its environment. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CHECKPOINT_TEMPLATE_VARIABLE = (
    "ACME_CHECKPOINT_TEMPLATE"  # in a job's own environment: --load {path} --iteration {step}
)


def resume_variables(resume: Mapping[str, Any], template: str) -> dict[str, str]:
    """Where recovery wants it to go on, as variables, and as arguments after the job's own template: `train.py
    $ACME_CHECKPOINT_ARGS`. A shell does not look into the value of a variable, so a path is no command."""
    if not resume:
        return {}
    path, step, skip = str(resume.get("path", "")), str(resume.get("step", "")), resume.get("skip")
    told = {"ACME_CHECKPOINT": path, "ACME_CHECKPOINT_STEP": step}
    if skip:
        told["ACME_SKIP_STEPS"] = f"{skip[0]}-{skip[1]}"
    if template and path:
        filled = template.replace("{step}", step).replace("{path}", path)
        told["ACME_CHECKPOINT_ARGS"] = filled
    return told
