"""The jobs of a campaign: their instructions, resources and time limits.

A trial is preemptible: it stops after its current shard if that is expected to end within the grace time, otherwise at
once. The grace time is short, because a job that needs a hundred GPUs waits for the last of them while the others idle.
A trial is never requeued, because its unfinished shards are assigned to new trials. Pure.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

from jobs.core.lifecycle import JobKind
from jobs.core.spec import JobSpec

PROGRAM_PATH = Path(__file__).parents[1] / "program.py"
INSTRUCTIONS_VARIABLE = "ACME_EVALUATION"
MAX_INSTRUCTIONS_BYTES = 60_000  # size of this variable
GRACE_S = 10
CHECKPOINT_SIGNAL = f"B:USR1@{GRACE_S}"
MIN_TIME_LIMIT = timedelta(minutes=10)
MAX_TIME_LIMIT = timedelta(days=7)
LIMIT_FACTOR = 4  # time limit relative to the estimate; multiplied again at each retry
COPY_PATH_PATTERN = re.compile(r".*/acme-[0-9a-f]{20}", re.ASCII | re.DOTALL)
COPY_LIMIT = timedelta(hours=4)
REMOVAL_LIMIT = timedelta(minutes=30)


@dataclass(frozen=True, kw_only=True)
class TrialPart:
    """A shard in the instructions of its job."""

    shard: int
    dataset: str
    start: int
    samples: int
    whole: bool  # all samples of its dataset
    output: str
    command: str
    scores: bool  # whether the command must write a result
    expected_s: float
    tries: int = 0


@cache
def script() -> str:
    """Return the program as a script, so that nodes need no installation."""
    return f"#!/usr/bin/env python3\n{PROGRAM_PATH.read_text(encoding='utf-8')}"


def copy_path(stage_root: str, team: str, checkpoint: str) -> str:
    """Return the path of a copy. Teams share no copies, because others may not be allowed to read the original."""
    digest = hashlib.sha256(f"{team}\0{checkpoint}".encode()).hexdigest()[:20]
    return f"{stage_root.rstrip('/')}/acme-{digest}"


def is_copy(path: str) -> bool:
    return COPY_PATH_PATTERN.fullmatch(path) is not None


def parts_that_fit(parts: Iterable[TrialPart], checkpoint: str, model: str, serve: str) -> list[TrialPart]:
    """Return the first parts that fit into a job's environment; at least one."""
    fitting: list[TrialPart] = []
    size = len(checkpoint) + len(model) + len(serve) + 500
    commands: set[str] = set()
    for part in parts:
        size += len(json.dumps(part.output)) + len(part.dataset) + 200
        size += 0 if part.command in commands else len(json.dumps(part.command))
        if fitting and size > MAX_INSTRUCTIONS_BYTES:
            break
        commands.add(part.command)
        fitting.append(part)
    return fitting


def trial_instructions(parts: Sequence[TrialPart], *, checkpoint: str, serve: str, nonce: str, model: str = "") -> str:
    """Return the instructions. `model` is the copy of the checkpoint on the node; without one, the model is loaded from
    the checkpoint itself."""
    commands = list(dict.fromkeys(part.command for part in parts))
    return json.dumps(
        {
            "do": "run",
            "nonce": nonce,
            "checkpoint": checkpoint,
            "model": model or checkpoint,
            "serve": serve,
            "grace_s": GRACE_S,
            "commands": commands,
            "parts": [
                {
                    "id": part.shard,
                    "dataset": part.dataset,
                    "start": part.start,
                    "samples": part.samples,
                    "whole": part.whole,
                    "output": part.output,
                    "command": commands.index(part.command),
                    "scores": part.scores,
                    "expected_s": round(part.expected_s, 3),
                }
                for part in parts
            ],
        }
    )


def trial_time_limit(parts: Sequence[TrialPart]) -> timedelta:
    """Return the time limit of a trial. It is generous because estimates may be wrong, and four times longer after each
    failed try."""
    expected_s = sum(part.expected_s for part in parts)
    tries = max((part.tries for part in parts), default=0)
    wide = MIN_TIME_LIMIT.total_seconds() + LIMIT_FACTOR * expected_s
    return min(MAX_TIME_LIMIT, timedelta(seconds=wide * LIMIT_FACTOR ** min(tries, 8)))


def inference_job(
    name: str, campaign: str, node: str, parts: Sequence[TrialPart], environment: Mapping[str, str], **fields: Any
) -> JobSpec:
    return _job_spec(
        name,
        campaign,
        environment,
        required_node=node,
        time_limit=trial_time_limit(parts),
        checkpoint_signal=CHECKPOINT_SIGNAL,
        **fields,
    )


def scoring_job(name: str, campaign: str, parts: Sequence[TrialPart], environment: Mapping[str, str]) -> JobSpec:
    return _job_spec(name, campaign, environment, time_limit=trial_time_limit(parts))


def staging_job(name: str, node: str, nonce: str, source: str, target: str) -> JobSpec:
    what = {"do": "stage", "nonce": nonce, "from": source, "to": target}
    return _job_spec(name, "", {INSTRUCTIONS_VARIABLE: json.dumps(what)}, required_node=node, time_limit=COPY_LIMIT)


def removal_job(name: str, node: str, nonce: str, target: str) -> JobSpec:
    what = {"do": "remove", "nonce": nonce, "to": target}
    return _job_spec(name, "", {INSTRUCTIONS_VARIABLE: json.dumps(what)}, required_node=node, time_limit=REMOVAL_LIMIT)


def _job_spec(name: str, campaign: str, environment: Mapping[str, str], **fields: Any) -> JobSpec:
    return JobSpec(
        name=name,
        command=script(),
        kind=JobKind.EVALUATION,
        environment=dict(environment),
        preemptible=True,
        requeue_limit=0,
        labels={"campaign": campaign} if campaign else {},
        **fields,
    )
