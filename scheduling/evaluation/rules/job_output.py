"""Parses the reports of a campaign's job in its log. Only lines with the job's nonce count.

`scheduling/evaluation/program.py` writes these lines. The nonce is random for each job, so the output of a model cannot
imitate such a line. Values are validated: known shards, finite numbers, short texts.
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
    at_s: float  # since the start of the job
    code: int
    scores: Mapping[str, float] | None = None
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class JobOutput:
    parts: tuple[PartResult, ...] = ()
    ready: bool = False  # the checkpoint exists and the server, if any, is ready
    gb: float | None = None  # size of the new copy
    at_s: float = 0.0
    removed: bool = False
    failed: str = ""
    stray: tuple[str, ...] = field(default=())  # lines that could not be parsed


def parse_job_output(lines: Iterable[str], nonce: str) -> JobOutput:
    """Parse the report lines. The last report of each part counts."""
    parts: dict[int, PartResult] = {}
    fields: dict[str, Any] = {}
    stray = []
    for line in lines:
        if not nonce or not line.startswith(f"acme:{nonce} ") or len(line) > MAX_LINE_LENGTH:
            continue
        document = _parse_json_object(line.partition(" ")[2])
        if document is None:
            stray.append(line[:200])
        elif "part" in document:
            result = _parse_part(document)
            if result is None:
                stray.append(line[:200])
            else:
                parts[result.part] = result
        else:
            fields |= document
    return JobOutput(
        parts=tuple(parts.values()),
        ready="ready" in fields,
        gb=_finite_number(fields.get("gb")) if "staged" in fields else None,
        at_s=_finite_number(fields.get("at")) or 0.0,
        removed="removed" in fields,
        failed=_clean_text(fields.get("failed")),
        stray=tuple(stray),
    )


def _parse_json_object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _parse_part(document: Mapping[str, Any]) -> PartResult | None:
    number, code = document.get("part"), document.get("code")
    took, at = _finite_number(document.get("took")), _finite_number(document.get("at"))
    if not _is_integer(number) or not _is_integer(code) or took is None or at is None or took < 0 or at < 0:
        return None
    scores, why = parse_scores(document.get("scores"))
    why = _clean_text(document.get("why")) or why
    failed = code != 0 or bool(why)
    return PartResult(
        part=int(number or 0), took_s=took, at_s=at, code=int(code or 0) or int(failed), scores=scores, why=why
    )


def parse_scores(value: object) -> tuple[Mapping[str, float] | None, str]:
    """Return the scores as finite numbers by name, or the reason why the value is invalid."""
    if value is None:
        return None, ""
    if not isinstance(value, dict) or not value:
        return None, "the result is not an object of names and numbers"
    if len(value) > MAX_SCORES:
        return None, f"the result has {len(value)} entries; at most {MAX_SCORES} are allowed"
    for name, number in value.items():
        if not SCORE_NAME_PATTERN.fullmatch(name):
            return None, f"the result has an invalid name: {ascii(name)[:60]}"
        if _finite_number(number) is None:
            return None, f"the result has a value for {name} that is not a finite number"
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
    """Return the mean of the shards' scores, weighted by samples. Names missing in some shards are omitted."""
    rows = list(shards)
    if not rows:
        return {}
    whole = sum(samples for samples, _ in rows)
    names = [name for name in rows[0][1] if all(name in scores for _, scores in rows)]
    return {name: sum(samples * scores[name] for samples, scores in rows) / whole for name in names}
