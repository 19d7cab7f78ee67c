"""What the owner of an attempt's pods says in its annotations: the nodes, the admitted pods, and the end. Pure.

These annotations are the only memory that the backend has, so any process continues where another one stopped:

| annotation | written |
|---|---|
| `acme/nodes` | with the owner: the nodes in the order of the ranks |
| `acme/admitted` | empty with the owner; before the first pod is placed: the uids of all pods, in the same order |
| `acme/ended` | before the pods of an attempt are deleted: how it ended |

Only admitted pods are ever placed. A pod that a controller creates later has another uid, so an attempt runs at most
once. A single pod that is its own owner is admitted when it has its node.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jobs.core.lifecycle import FINAL_STATES, State

from .ends import PodEnd
from .fields import count_at, mapping_at, text_at, time_at
from .pod_objects import ADMITTED_ANNOTATION, NODES_ANNOTATION

ENDED_ANNOTATION = "acme/ended"
MAX_PODS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptPlan:
    nodes: tuple[str, ...]
    admitted: tuple[str, ...]  # uids of pods, one for each node; empty until the gang is admitted
    ended: PodEnd | None


def read_plan(item: Mapping[str, Any]) -> AttemptPlan | None:
    """The plan of an owner; None if it has none, or an invalid one."""
    annotations = mapping_at(item, "metadata", "annotations")
    nodes, admitted = (_texts(annotations.get(name)) for name in (NODES_ANNOTATION, ADMITTED_ANNOTATION))
    if not nodes:
        return None
    admitted = admitted if len(admitted) == len(nodes) else ()
    return AttemptPlan(nodes=nodes, admitted=admitted, ended=_read_end(annotations.get(ENDED_ANNOTATION)))


def _texts(value: object) -> tuple[str, ...]:
    entries = _parse(value)
    if not isinstance(entries, list) or len(entries) > MAX_PODS:
        return ()
    return tuple(entries) if all(isinstance(entry, str) and entry for entry in entries) else ()


def _parse(value: object) -> object:
    try:
        return json.loads(value) if isinstance(value, str) and value else None
    except (ValueError, RecursionError):
        return None


def texts_annotation(texts: Sequence[str]) -> str:
    """The annotation that names nodes or pods."""
    return json.dumps(list(texts))


def end_annotation(end: PodEnd, now: datetime) -> str:
    """The annotation that records an end."""
    at = (end.at or now).strftime("%Y-%m-%dT%H:%M:%SZ")
    values = {"state": end.state, "at": at, "exitCode": end.exit_code, "signal": end.signal, "reason": end.reason}
    return json.dumps({name: value for name, value in values.items() if value not in (None, "")})


def _read_end(value: object) -> PodEnd | None:
    recorded = _parse(value)
    state = text_at(recorded, "state")
    if state not in FINAL_STATES:
        return None
    return PodEnd(
        state=State(state),
        at=time_at(recorded, "at"),
        exit_code=count_at(recorded, "exitCode"),
        signal=count_at(recorded, "signal"),
        reason=text_at(recorded, "reason"),
    )
