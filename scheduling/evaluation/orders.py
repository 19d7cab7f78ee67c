"""The jobs of a campaign, as they are submitted: what each is told to do, what it asks for, how long it may take.

A trial is best effort: it gives way to whoever owns the GPUs, after the shard that it is at if that is expected to end
within the grace, else at once. The grace is short: a gang that needs a hundred GPUs waits for the last of them, and the
others idle meanwhile. It is never put back into the queue by itself, because what it leaves is dealt out anew. Pure.
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

PROGRAM_PATH = Path(__file__).parents[1] / "checks" / "evaluate.py"
INSTRUCTIONS_VARIABLE = "ACME_EVALUATION"
MAX_INSTRUCTIONS_BYTES = 60_000  # of that variable
GRACE_S = 10
CHECKPOINT_SIGNAL = f"B:USR1@{GRACE_S}"
MIN_TIME_LIMIT = timedelta(minutes=10)
MAX_TIME_LIMIT = timedelta(days=7)
LIMIT_FACTOR = 4  # times what is expected, and again with each try
COPY_PATH_PATTERN = re.compile(r".*/acme-[0-9a-f]{20}", re.ASCII | re.DOTALL)
COPY_LIMIT = timedelta(hours=4)
REMOVAL_LIMIT = timedelta(minutes=30)


@dataclass(frozen=True, kw_only=True)
class TrialPart:
    """A shard, as its job is told of it."""

    shard: int
    dataset: str
    start: int
    samples: int
    whole: bool  # all samples of its dataset
    output: str
    command: str
    scores: bool  # whether a result is expected of the command
    expected_s: float
    tries: int = 0


@cache
def script() -> str:
    """The program itself: the node need not have anything of ours."""
    return f"#!/usr/bin/env python3\n{PROGRAM_PATH.read_text(encoding='utf-8')}"


def copy_path(stage_root: str, team: str, checkpoint: str) -> str:
    """Teams share no copies: a name of theirs says nothing of who may read the original."""
    digest = hashlib.sha256(f"{team}\0{checkpoint}".encode()).hexdigest()[:20]
    return f"{stage_root.rstrip('/')}/acme-{digest}"


def is_copy(path: str) -> bool:
    return COPY_PATH_PATTERN.fullmatch(path) is not None


def parts_that_fit(parts: Iterable[TrialPart], model: str, serve: str) -> list[TrialPart]:
    """As many of the first as a job can be told of; always one."""
    kept: list[TrialPart] = []
    size = len(model) + len(serve) + 500
    commands: set[str] = set()
    for part in parts:
        size += len(json.dumps(part.output)) + len(part.dataset) + 200
        size += 0 if part.command in commands else len(json.dumps(part.command))
        if kept and size > MAX_INSTRUCTIONS_BYTES:
            break
        commands.add(part.command)
        kept.append(part)
    return kept


def trial_instructions(parts: Sequence[TrialPart], *, model: str, serve: str, nonce: str) -> str:
    commands = list(dict.fromkeys(part.command for part in parts))
    return json.dumps(
        {
            "do": "run",
            "nonce": nonce,
            "model": model,
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
    """Generous, for a prior may be far off: and four times as long for whoever ran into it before."""
    expected_s = sum(part.expected_s for part in parts)
    tries = max((part.tries for part in parts), default=0)
    wide = MIN_TIME_LIMIT.total_seconds() + LIMIT_FACTOR * expected_s
    return min(MAX_TIME_LIMIT, timedelta(seconds=wide * LIMIT_FACTOR ** min(tries, 8)))


def inference_job(
    name: str, campaign: str, node: str, parts: Sequence[TrialPart], environment: Mapping[str, str], **asked: Any
) -> JobSpec:
    return _job_spec(
        name,
        campaign,
        environment,
        on_node=node,
        time_limit=trial_time_limit(parts),
        checkpoint_signal=CHECKPOINT_SIGNAL,
        **asked,
    )


def scoring_job(name: str, campaign: str, parts: Sequence[TrialPart], environment: Mapping[str, str]) -> JobSpec:
    return _job_spec(name, campaign, environment, time_limit=trial_time_limit(parts))


def staging_job(name: str, node: str, nonce: str, source: str, target: str) -> JobSpec:
    what = {"do": "stage", "nonce": nonce, "from": source, "to": target}
    return _job_spec(name, "", {INSTRUCTIONS_VARIABLE: json.dumps(what)}, on_node=node, time_limit=COPY_LIMIT)


def removal_job(name: str, node: str, nonce: str, target: str) -> JobSpec:
    what = {"do": "remove", "nonce": nonce, "to": target}
    return _job_spec(name, "", {INSTRUCTIONS_VARIABLE: json.dumps(what)}, on_node=node, time_limit=REMOVAL_LIMIT)


def _job_spec(name: str, campaign: str, environment: Mapping[str, str], **asked: Any) -> JobSpec:
    return JobSpec(
        name=name,
        command=script(),
        kind=JobKind.EVALUATION,
        environment=dict(environment),
        preemptible=True,
        requeue_limit=0,
        labels={"campaign": campaign} if campaign else {},
        **asked,
    )
