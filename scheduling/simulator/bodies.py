"""Bodies of requests, in the words of slurmrestd v0.0.42, read into values of the world. Pure.

A body is hostile until it is parsed: what cannot be understood is a `BadBody`, never a traceback.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from signal import Signals
from typing import Any

from jobs.hostlist import BadHostlist, expand

from .troubles import Breakage
from .values import Aim, Refusal, Request
from .wire import (
    BAD_FLAG,
    BAD_TYPE,
    EMPTY_QUERY,
    NO_ENVIRONMENT,
    NO_WORKDIR,
    NOT_AN_OBJECT,
    BadBody,
)

MOST_NODES = 10_000
GRES = re.compile(r"^(?:gres[/:])?gpu(?::([^:,]+))?(?::(\d+))?$")


def request_of(body: object, user: str) -> Request:
    """A submission's body, in the words of v0.0.42."""
    asked = _object(body, "#/")
    wanted = _object(asked.get("job"), "#/job/")
    script = wanted.get("script") or asked.get("script")
    if not isinstance(script, str) or not script:
        words = "Query empty or not RFC7320 compliant"
        raise BadBody(EMPTY_QUERY, words, 'Populated "script" field is required for job submission')
    if not script.startswith("#!"):
        raise BadBody(BAD_TYPE, "The script has no interpreter line (#!)", "#/job/script/")
    environment = _environment(wanted.get("environment"))
    workdir = _text(wanted, "current_working_directory")
    if not workdir.startswith("/"):
        words = "Job cannot be submitted without the current working directory specified."
        raise BadBody(NO_WORKDIR, words, "Batch job submission failed")
    model, gpus = _gres(_text(wanted, "tres_per_node"))
    pinned = _pinned(wanted.get("required_nodes"))
    return Request(
        name=_text(wanted, "name") or "sbatch",
        user=user,
        account=_text(wanted, "account"),
        partition=_text(wanted, "partition"),
        comment=_text(wanted, "comment"),
        script=script,
        workdir=workdir,
        environment=environment,
        required_nodes=pinned,
        node_count=_node_count(wanted, len(pinned)),
        gpus_per_node=gpus,
        gpu_model=model,
        cpus_per_node=_cpus(wanted),
        memory_per_node_mb=_count(wanted, "memory_per_node") or 0,
        limit_s=_limit_s(wanted),
        stdout=_text(wanted, "standard_output"),
        held=_flag(wanted, "hold"),
    )


def job_update_of(body: object) -> Mapping[str, object]:
    asked = _object(body, "#/")
    readers: dict[str, tuple[str, Callable[[], object]]] = {
        "time_limit": ("limit_s", lambda: _limit_s(asked)),
        "comment": ("comment", lambda: _text(asked, "comment")),
        "hold": ("held", lambda: _flag(asked, "hold")),
    }
    unknown = sorted(set(asked) - set(readers))
    if unknown:
        raise BadBody(BAD_FLAG, "Field cannot be updated", f"#/{unknown[0]:.40}/")
    return {ours: read() for theirs, (ours, read) in readers.items() if theirs in asked}


@dataclass(frozen=True, kw_only=True)
class NodeUpdate:
    state: str  # DRAIN, RESUME, DOWN or, to change the reason only, nothing
    reason: str


NODE_STATES = frozenset({"DRAIN", "RESUME", "UNDRAIN", "DOWN"})


def node_update_of(body: object) -> NodeUpdate:
    asked = _object(body, "#/")
    states = asked.get("state", [])
    states = [states] if isinstance(states, str) else states
    if not isinstance(states, list) or not all(isinstance(s, str) for s in states) or len(states) > 1:
        raise BadBody(BAD_TYPE, "Unable to convert Data type", "#/state/")
    state = states[0].upper() if states else ""
    if state and state not in NODE_STATES:
        raise BadBody(BAD_FLAG, "Data parser unable to parse invalid flag", f"#/state[0]/ {state:.40}")
    return NodeUpdate(state=state, reason=_text(asked, "reason"))


def breakage_of(body: object) -> tuple[Breakage, str, int]:
    """`{"kind": "ecc", "node": "seren-003", "gpu": 2}`; the GPU is drawn where it is not named."""
    asked = _object(body, "#/")
    kind = _text(asked, "kind")
    if kind not in set(Breakage):
        raise BadBody(EMPTY_QUERY, f"kind: {kind!r:.40} is none of {', '.join(Breakage)}", "#/kind/")
    gpu = _count(asked, "gpu")
    return Breakage(kind), _text(asked, "node"), -1 if gpu is None else gpu


MOST_OFFSET_S = 86_400


def clock_offset_of(body: object) -> float:
    """`{"offset_s": 300}`: five minutes ahead of the true time; a negative number is behind it."""
    offset: Any = _object(body, "#/").get("offset_s")
    if type(offset) not in (int, float) or not -MOST_OFFSET_S <= offset <= MOST_OFFSET_S:
        words = f"offset_s: {offset!r:.40} is not a number of seconds from -{MOST_OFFSET_S} to {MOST_OFFSET_S}"
        raise BadBody(EMPTY_QUERY, words, "#/offset_s/")
    return float(offset)


def signal_of(text: str) -> int:
    """9, KILL or SIGKILL."""
    name = text.upper().removeprefix("SIG")
    if name.isascii() and name.isdigit() and 0 < int(name[:4]) < 65:
        return int(name)
    try:
        return int(Signals[f"SIG{name}"])
    except KeyError:
        raise BadBody(BAD_FLAG, "Invalid signal specified", f"signal={text:.20}") from None


def aim_of(text: str) -> Aim:
    """Who of the job gets it, by Slurm's flags; everybody where none is given."""
    try:
        return Aim(text or Aim.ALL)
    except ValueError:
        raise BadBody(BAD_FLAG, "Invalid flag specified", f"flags={text:.40}") from None


def _object(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise BadBody(NOT_AN_OBJECT, "Data parser expected a dictionary or object", where)
    return value


def _text(asked: Mapping[str, Any], field: str) -> str:
    value = asked.get(field)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BadBody(BAD_TYPE, "Unable to convert Data type", f"#/job/{field}/")
    return value


def _flag(asked: Mapping[str, Any], field: str) -> bool:
    value = asked.get(field, False)
    if not isinstance(value, bool):
        raise BadBody(BAD_TYPE, "Unable to convert Data type", f"#/job/{field}/")
    return value


def _count(asked: Mapping[str, Any], field: str) -> int | None:
    """A number, plain or as a structure; None where it is not set or infinite."""
    value = asked.get(field)
    if isinstance(value, Mapping):
        if not value.get("set", True) or value.get("infinite"):
            return None
        value = value.get("number")
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < 2**31:
        raise BadBody(BAD_TYPE, "Unable to convert Data type", f"#/job/{field}/")
    return value


def _environment(value: object) -> dict[str, str]:
    if not isinstance(value, list) or not value:
        raise BadBody(NO_ENVIRONMENT, "environment must be set", "#/job/environment/")
    if not all(isinstance(entry, str) and "=" in entry and "\0" not in entry for entry in value):
        raise BadBody(BAD_TYPE, "Unable to convert Data type", "#/job/environment/")
    return dict(entry.split("=", 1) for entry in value)


def _pinned(value: object) -> tuple[str, ...]:
    """["a", "b"] or "a,b", each perhaps a host list."""
    texts = [value] if isinstance(value, str) else value or []
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise BadBody(BAD_TYPE, "Unable to convert Data type", "#/job/required_nodes/")
    try:
        names = dict.fromkeys(name for text in texts for name in expand(text))
    except BadHostlist as odd:
        raise BadBody(BAD_TYPE, str(odd), "#/job/required_nodes/") from None
    return tuple(names)


def _node_count(wanted: Mapping[str, Any], pinned: int) -> int:
    count = _count(wanted, "minimum_nodes") or pinned or 1
    if count > MOST_NODES:
        raise Refusal(2014, "Requested node configuration is not available")
    return max(count, pinned)


def _cpus(wanted: Mapping[str, Any]) -> int:
    tasks, each = _count(wanted, "tasks_per_node") or 1, _count(wanted, "cpus_per_task") or 1
    return max(tasks * each, _count(wanted, "minimum_cpus_per_node") or 1)


def _limit_s(wanted: Mapping[str, Any]) -> float | None:
    minutes = _count(wanted, "time_limit")
    return None if minutes is None else minutes * 60.0


def _gres(text: str) -> tuple[str, int]:
    if not text:
        return "", 0
    match = GRES.match(text)
    if match is None:
        raise BadBody(2072, "Invalid generic resource (gres) specification", "#/job/tres_per_node/")
    first, second = match[1] or "", match[2]
    if first.isdigit() and second is None:  # gpu:8
        return "", int(first[:6])
    return first, int((second or "1")[:6])
