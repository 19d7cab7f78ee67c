"""Signatures, and the functions that build the rows of the table. Pure.

A signature recognizes one line. Its pattern is for the multi-pattern scanner: Hyperscan syntax, linear in the text,
without look-around or back-references. `unless`, and all code that reads numbers from a line, uses Python's `re` and
runs only on lines that a signature has matched.

To add a signature, add a row in `table/` with an example line in your own words. `specificity` (0 to 100) is how
certain a cause is from this line alone; it orders causes among themselves and never ranks a symptom above a cause.
`traits` says what else is special about a signature: no other code names one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypedDict, Unpack

from .values import Blame, LineRole, RestartAdvice, SignatureTrait

PYTHON_EXCEPTION = "python-exception"


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
    traits: tuple[SignatureTrait, ...] = ()


# One or several patterns; a line matches if any of them does
PatternAlternatives = str | tuple[str, ...]


class SignatureOptions(TypedDict, total=False):
    """Optional columns of a row."""

    blame: Blame
    restart: RestartAdvice
    unless: str
    traits: Iterable[SignatureTrait]
    caseless: bool  # the pattern ignores case


def cause(
    name: str, label: str, specificity: int, pattern: PatternAlternatives, example: str,
    **options: Unpack[SignatureOptions],
) -> Signature:  # fmt: skip
    return _build_signature(LineRole.INITIATING, name, label, specificity, pattern, example, **options)


def symptom(
    name: str, label: str, specificity: int, pattern: PatternAlternatives, example: str,
    **options: Unpack[SignatureOptions],
) -> Signature:  # fmt: skip
    return _build_signature(LineRole.CASCADE, name, label, specificity, pattern, example, **options)


def teardown(
    name: str, specificity: int, pattern: PatternAlternatives, example: str, **options: Unpack[SignatureOptions]
) -> Signature:
    return _build_signature(LineRole.TEARDOWN, name, "", specificity, pattern, example, **options)


def benign(
    name: str, pattern: PatternAlternatives, example: str, specificity: int = 90, **options: Unpack[SignatureOptions]
) -> Signature:
    return _build_signature(LineRole.BENIGN, name, "", specificity, pattern, example, **options)


def rank_location(name: str, pattern: PatternAlternatives, example: str) -> Signature:
    return _build_signature(LineRole.PLACE, name, "", 0, pattern, example)


def _build_signature(
    role: LineRole, name: str, label: str, specificity: int, pattern: PatternAlternatives, example: str, *,
    blame: Blame = Blame.JOB, restart: RestartAdvice | None = None, unless: str = "",
    traits: Iterable[SignatureTrait] = (), caseless: bool = False,
) -> Signature:  # fmt: skip
    words = pattern if isinstance(pattern, str) else "|".join(pattern)
    return Signature(
        name=name, label=label, role=role, specificity=specificity, pattern=f"(?i){words}" if caseless else words,
        example=example, blame=blame, restart=restart, unless=unless, traits=tuple(sorted(traits)),
    )  # fmt: skip
