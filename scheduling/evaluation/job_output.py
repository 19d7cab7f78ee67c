"""What a campaign's job says of itself in its log, which is a stranger's text: only lines with its own word count.

`checks/evaluate.py` writes such lines, and the word is drawn for each job: an answer of a model that looks like one
cannot know it. A claim is believed only as far as it could be true: known shards, finite numbers, short texts.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_SCORES = 64
MAX_LINE_LENGTH = 128 * 1024
SCORE_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9 _.,:/()@+-]{0,79}", re.ASCII)
UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]+")


@dataclass(frozen=True, kw_only=True)
class PartResult:
    part: int
    took_s: float
    at_s: float  # since its job began
    code: int
    scores: Mapping[str, float] | None = None
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class JobOutput:
    parts: tuple[PartResult, ...] = ()
    ready: bool = False  # the model is there, and is served where it is to be
    gb: float | None = None  # of the copy that is there now
    at_s: float = 0.0
    removed: bool = False
    failed: str = ""
    stray: tuple[str, ...] = field(default=())  # lines that were not understood


def parse_job_output(lines: Iterable[str], nonce: str) -> JobOutput:
    """The last word on each part counts."""
    parts: dict[int, PartResult] = {}
    rest: dict[str, Any] = {}
    stray = []
    for line in lines:
        if not nonce or not line.startswith(f"acme:{nonce} ") or len(line) > MAX_LINE_LENGTH:
            continue
        said = _parse_json_object(line.partition(" ")[2])
        if said is None:
            stray.append(line[:200])
        elif "part" in said:
            done = _parse_part(said)
            if done is None:
                stray.append(line[:200])
            else:
                parts[done.part] = done
        else:
            rest |= said
    return JobOutput(
        parts=tuple(parts.values()),
        ready="ready" in rest,
        gb=_finite_number(rest.get("gb")) if "staged" in rest else None,
        at_s=_finite_number(rest.get("at")) or 0.0,
        removed="removed" in rest,
        failed=_clean_text(rest.get("failed")),
        stray=tuple(stray),
    )


def _parse_json_object(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _parse_part(said: Mapping[str, Any]) -> PartResult | None:
    number, code = said.get("part"), said.get("code")
    took, at = _finite_number(said.get("took")), _finite_number(said.get("at"))
    if not _is_integer(number) or not _is_integer(code) or took is None or at is None or took < 0 or at < 0:
        return None
    scores, why = parse_scores(said.get("scores"))
    why = _clean_text(said.get("why")) or why
    failed = code != 0 or bool(why)
    return PartResult(
        part=int(number or 0), took_s=took, at_s=at, code=int(code or 0) or int(failed), scores=scores, why=why
    )


def parse_scores(value: object) -> tuple[Mapping[str, float] | None, str]:
    """Names and finite numbers, or why that is no result."""
    if value is None:
        return None, ""
    if not isinstance(value, dict) or not value:
        return None, "its result is no object of names and numbers"
    if len(value) > MAX_SCORES:
        return None, f"its result has {len(value)} entries, more than the {MAX_SCORES} allowed"
    for name, number in value.items():
        if not SCORE_NAME_PATTERN.fullmatch(name):
            return None, f"its result has a name that is none: {ascii(name)[:60]}"
        if _finite_number(number) is None:
            return None, f"its result says of {name} what is no number"
    return {name: float(number) for name, number in value.items()}, ""


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**62


def _finite_number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _clean_text(value: object) -> str:
    return UNPRINTABLE.sub(" ", value)[:500] if isinstance(value, str) else ""


def merge_scores(shards: Iterable[tuple[int, Mapping[str, float]]]) -> dict[str, float]:
    """Of several shards the mean, each by its samples; a name that one of them lacks is left out."""
    known = list(shards)
    if not known:
        return {}
    whole = sum(samples for samples, _ in known)
    names = [name for name in known[0][1] if all(name in scores for _, scores in known)]
    return {name: sum(samples * scores[name] for samples, scores in known) / whole for name in names}
