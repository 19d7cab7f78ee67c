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

from jobs.lifecycle import Kind
from jobs.spec import JobSpec

PROGRAM = Path(__file__).parents[1] / "checks" / "evaluate.py"
VARIABLE = "ACME_EVALUATION"
MOST_BYTES = 60_000  # of that variable
GRACE_S = 10
GRACE = f"B:USR1@{GRACE_S}"
SHORTEST_LIMIT = timedelta(minutes=10)
LONGEST_LIMIT = timedelta(days=7)
LIMIT_FACTOR = 4  # times what is expected, and again with each try
COPY = re.compile(r".*/acme-[0-9a-f]{20}", re.ASCII | re.DOTALL)
COPY_LIMIT = timedelta(hours=4)
REMOVAL_LIMIT = timedelta(minutes=30)


@dataclass(frozen=True, kw_only=True)
class Part:
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
    return f"#!/usr/bin/env python3\n{PROGRAM.read_text(encoding='utf-8')}"


def copy_path(stage_root: str, team: str, checkpoint: str) -> str:
    """Teams share no copies: a name of theirs says nothing of who may read the original."""
    digest = hashlib.sha256(f"{team}\0{checkpoint}".encode()).hexdigest()[:20]
    return f"{stage_root.rstrip('/')}/acme-{digest}"


def is_copy(path: str) -> bool:
    return COPY.fullmatch(path) is not None


def fitting(parts: Iterable[Part], model: str, serve: str) -> list[Part]:
    """As many of the first as a job can be told of; always one."""
    kept: list[Part] = []
    size = len(model) + len(serve) + 500
    commands: set[str] = set()
    for part in parts:
        size += len(json.dumps(part.output)) + len(part.dataset) + 200
        size += 0 if part.command in commands else len(json.dumps(part.command))
        if kept and size > MOST_BYTES:
            break
        commands.add(part.command)
        kept.append(part)
    return kept


def told(parts: Sequence[Part], *, model: str, serve: str, nonce: str) -> str:
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


def limit(parts: Sequence[Part]) -> timedelta:
    """Generous, for a prior may be far off: and four times as long for whoever ran into it before."""
    expected_s = sum(part.expected_s for part in parts)
    tries = max((part.tries for part in parts), default=0)
    wide = SHORTEST_LIMIT.total_seconds() + LIMIT_FACTOR * expected_s
    return min(LONGEST_LIMIT, timedelta(seconds=wide * LIMIT_FACTOR ** min(tries, 8)))


def inference(
    name: str, campaign: str, node: str, parts: Sequence[Part], environment: Mapping[str, str], **asked: Any
) -> JobSpec:
    return _spec(name, campaign, environment, on_node=node, time_limit=limit(parts), checkpoint_signal=GRACE, **asked)


def scoring(name: str, campaign: str, parts: Sequence[Part], environment: Mapping[str, str]) -> JobSpec:
    return _spec(name, campaign, environment, time_limit=limit(parts))


def copying(name: str, node: str, nonce: str, source: str, target: str) -> JobSpec:
    what = {"do": "stage", "nonce": nonce, "from": source, "to": target}
    return _spec(name, "", {VARIABLE: json.dumps(what)}, on_node=node, time_limit=COPY_LIMIT)


def removing(name: str, node: str, nonce: str, target: str) -> JobSpec:
    what = {"do": "remove", "nonce": nonce, "to": target}
    return _spec(name, "", {VARIABLE: json.dumps(what)}, on_node=node, time_limit=REMOVAL_LIMIT)


def _spec(name: str, campaign: str, environment: Mapping[str, str], **asked: Any) -> JobSpec:
    return JobSpec(
        name=name,
        command=script(),
        kind=Kind.EVALUATION,
        environment=dict(environment),
        preemptible=True,
        requeue_limit=0,
        labels={"campaign": campaign} if campaign else {},
        **asked,
    )
