"""Signatures, and the functions that build the rows of the table. Pure.

A signature recognises one line. Its pattern is for the multi-pattern scanner: Hyperscan syntax, linear in the text,
without look-around or back-references. `unless`, and all code that reads numbers from a line, uses Python's `re` and
runs only on lines that a signature has matched.

To add a signature, add a row in `table/` with an example line in your own words. `specificity` (0 to 100) is how
certain a cause is from this line alone; it orders causes among themselves and never ranks a symptom above a cause.
"""

from __future__ import annotations

from dataclasses import dataclass

from .values import Blame, LineRole, RestartAdvice

PYTHON_EXCEPTION = "python-exception"
XID = "xid"
SXID = "sxid"
DCGM = "dcgm"
CHILD_EXIT = "child-exit"
TRACEBACK = "traceback"


@dataclass(frozen=True, kw_only=True)
class Signature:
    name: str
    label: str
    role: LineRole
    specificity: int
    pattern: str
    example: str
    blame: Blame = Blame.JOB
    restart: RestartAdvice | None = None
    unless: str = ""


# One or several patterns; a line matches if any of them does
PatternAlternatives = str | tuple[str, ...]


def cause(
    name: str, label: str, specificity: int, pattern: PatternAlternatives, example: str, **more: object
) -> Signature:
    return _build_signature(LineRole.INITIATING, name, label, specificity, pattern, example, more)


def symptom(
    name: str, label: str, specificity: int, pattern: PatternAlternatives, example: str, **more: object
) -> Signature:
    return _build_signature(LineRole.CASCADE, name, label, specificity, pattern, example, more)


def teardown(name: str, specificity: int, pattern: PatternAlternatives, example: str, **more: object) -> Signature:
    return _build_signature(LineRole.TEARDOWN, name, "", specificity, pattern, example, more)


def benign(name: str, pattern: PatternAlternatives, example: str, specificity: int = 90, **more: object) -> Signature:
    return _build_signature(LineRole.BENIGN, name, "", specificity, pattern, example, more)


def rank_location(name: str, pattern: PatternAlternatives, example: str) -> Signature:
    return _build_signature(LineRole.PLACE, name, "", 0, pattern, example, {})


def _build_signature(
    role: LineRole,
    name: str,
    label: str,
    specificity: int,
    pattern: PatternAlternatives,
    example: str,
    more: dict[str, object],
) -> Signature:
    words = pattern if isinstance(pattern, str) else "|".join(pattern)
    restart = more.get("restart")
    return Signature(
        name=name,
        label=label,
        role=role,
        specificity=specificity,
        pattern=f"(?i){words}" if more.get("caseless") else words,
        example=example,
        blame=Blame(str(more.get("blame", Blame.JOB))),
        restart=RestartAdvice(str(restart)) if restart else None,
        unless=str(more.get("unless", "")),
    )
