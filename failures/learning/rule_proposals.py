"""Derives a signature from a confirmed diagnosis, and replays it on all other stored cases. Pure.

The proposal is the shape of one line: an evidence line if possible, else any line of the bundle. The shape must have
enough fixed words (a shape of holes matches everything) and must not occur in a bundle with another confirmed cause. A
proposal is not trusted by itself: `replay_rule` runs it on every stored bundle, and a single confirmed verdict that
becomes wrong rejects it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from failures.diagnosis import engine, lines
from failures.diagnosis.labels import LABELS, NONE, UNKNOWN
from failures.diagnosis.scan import InvalidPattern, Scanner, shipped_scanner
from failures.diagnosis.signatures import Signature
from failures.diagnosis.values import Blame, LineRole

LEARNED_SPECIFICITY = 74  # a clear cause, but below every shipped signature that names the broken part
MIN_WORDS = 3
MIN_LETTERS = 14
MAX_SHAPE_CHARS = 160
MAX_HOLE_CHARS = 80  # a bound, so that scanning stays linear
HOLE_MARK = "\0"
VARIABLE_PART = re.compile(r"'[^']{0,80}'|\"[^\"]{0,80}\"|(?:/[\w.@+-]+){2,}|\b[\w.-]*\d[\w.:,+-]*")
TRACEBACK_LINE = re.compile(r"(?i)^\s*(?:File \"|Traceback \(|raise |During handling|The above exception)")
REPEATED_ROW = re.compile(r"@\d+ x(\d+) \| (.*)")
MIN_FREQUENT_COUNT = 500
BLAME_BY_CATEGORY = {"Infrastructure": Blame.NODE}


@dataclass(frozen=True, kw_only=True)
class StoredBundle:
    """A stored bundle with its assumed cause. `confirmed` means that a user reviewed it."""

    key: int
    cause: str
    bundle: str
    confirmed: bool = True


@dataclass(frozen=True, kw_only=True)
class RuleProposal:
    name: str
    label: str
    pattern: str
    example: str
    support: int  # number of bundles with this cause that it matches


@dataclass(frozen=True, kw_only=True)
class RuleReplay:
    """The effect of a rule on past cases. `broken` are cases with a correct verdict that the rule makes wrong."""

    hits: int
    right: int
    wrong: int
    mended: tuple[int, ...]
    broken: tuple[int, ...]

    @property
    def accepted(self) -> bool:
        return not self.broken and not self.wrong

    @property
    def precision(self) -> float | None:
        return self.right / (self.right + self.wrong) if self.right + self.wrong else None


def propose_rule(
    confirmed: StoredBundle, evidence: Sequence[str], history: Iterable[StoredBundle]
) -> RuleProposal | None:
    """A rule from the best line; None if every line is too general or also occurs with another cause."""
    if confirmed.cause in (NONE, UNKNOWN) or confirmed.cause not in LABELS:
        return None
    past = [case for case in history if case.confirmed]
    best: RuleProposal | None = None
    for text in candidate_lines(confirmed.bundle, evidence):
        proposal = _build_proposal(text, confirmed, past)
        if proposal and (best is None or proposal.support > best.support):
            best = proposal
        if best and text in evidence and best.example == text:
            return best  # a line that was confirmed as evidence is better than one that is only frequent
    return best


def candidate_lines(bundle: str, evidence: Sequence[str]) -> list[str]:
    """The messages that are specific enough for a rule, evidence first."""
    rows = [lines.parse(0, row).message.strip() for row in bundle.split("\n")]
    shown = [lines.parse(0, row).message.strip() for row in evidence]
    return list(dict.fromkeys(row for row in [*shown, *rows] if _is_specific_enough(row)))[:400]


def _is_specific_enough(message: str) -> bool:
    bare = VARIABLE_PART.sub(" ", message[:MAX_SHAPE_CHARS])
    words = re.findall(r"[A-Za-z]{2,}", bare)
    return len(words) >= MIN_WORDS and sum(map(len, words)) >= MIN_LETTERS and not TRACEBACK_LINE.match(message)


def _build_proposal(text: str, confirmed: StoredBundle, past: Sequence[StoredBundle]) -> RuleProposal | None:
    pattern, parts = shape_pattern(text), _shape_parts(text)
    if any(case.cause != confirmed.cause and _occurs_in_bundle(parts, case.bundle) for case in past):
        return None
    same = {case.key for case in past if case.cause == confirmed.cause and _occurs_in_bundle(parts, case.bundle)}
    same.add(confirmed.key)
    name = f"learned-{hashlib.sha256(f'{confirmed.cause}{pattern}'.encode()).hexdigest()[:10]}"
    return RuleProposal(name=name, label=confirmed.cause, pattern=pattern, example=text[:500], support=len(same))


def shape_pattern(text: str) -> str:
    """A pattern of the fixed words of a text, with bounded holes for its numbers, names and paths."""
    return f".{{0,{MAX_HOLE_CHARS}}}".join(
        re.escape(part).replace(r"\ ", " ").replace("/", r"\/") for part in _shape_parts(text)
    )


def _shape_parts(text: str) -> list[str]:
    return VARIABLE_PART.sub(HOLE_MARK, text[:MAX_SHAPE_CHARS]).split(HOLE_MARK)


def _occurs_in_bundle(parts: Sequence[str], bundle: str) -> bool:
    """Whether a row of the bundle has this shape. Not with Python's `re`, which would backtrack forever."""
    longest = max(parts, key=len)
    return longest in bundle and any(_matches_row(parts, row) for row in bundle.split("\n") if longest in row)


def _matches_row(parts: Sequence[str], row: str) -> bool:
    """Whether the parts occur in order, with holes of at most MAX_HOLE_CHARS. Linear in the row for each part.

    `ends` holds every position at which the parts so far can end.
    """
    ends = list(range(len(row) + 1))
    for number, part in enumerate(parts):
        widest = MAX_HOLE_CHARS if number else 0
        reached, place = [], 0
        for start in _occurrences(part, row):
            while place < len(ends) and ends[place] < start - widest:
                place += 1
            if place < len(ends) and ends[place] <= start:
                reached.append(start + len(part))
        ends = reached
    return bool(ends)


def _occurrences(part: str, row: str) -> Iterator[int]:
    at = row.find(part)
    while at >= 0:
        yield at
        at = row.find(part, at + 1) if at < len(row) else -1


def as_signature(name: str, label: str, pattern: str, example: str) -> Signature:
    return Signature(
        name=name, label=label, role=LineRole.INITIATING, specificity=LEARNED_SPECIFICITY, pattern=pattern,
        example=example, blame=BLAME_BY_CATEGORY.get(LABELS[label].category, Blame.JOB),
    )  # fmt: skip


def scanner_with_rules(rules: Iterable[Signature]) -> Scanner:
    """A scanner of the shipped table and these rules. Raises InvalidPattern, which names the rule."""
    return shipped_scanner().with_rules(rules)


def signature_error(rule: Signature) -> str:
    """A sentence that explains why the pattern cannot be used; empty if it can."""
    try:
        scanner = Scanner((rule,))
    except InvalidPattern as error:
        return f"{error}."
    if not scanner.hits(rule.example.encode()):
        return "The pattern does not match its own example."
    return "The pattern matches an empty line." if scanner.hits(b"\n") or scanner.hits(b" ") else ""


def replay_rule(rule: Signature, history: Iterable[StoredBundle]) -> RuleReplay:
    """The effect of the rule on every stored bundle: confirmed cases are diagnosed with and without it."""
    alone, together = Scanner((rule,)), scanner_with_rules([rule])
    hits = right = wrong = 0
    mended: list[int] = []
    broken: list[int] = []
    for case in history:
        if not alone.hits(case.bundle.encode()):
            continue  # without a match the rule cannot change the verdict
        hits += 1
        if not case.confirmed:
            continue
        right, wrong = right + (case.cause == rule.label), wrong + (case.cause != rule.label)
        after = engine.diagnose_text(case.bundle, scanner=together).root_cause
        before = engine.diagnose_text(case.bundle).root_cause
        if before != after:
            (mended if after == case.cause else broken if before == case.cause else []).append(case.key)
    return RuleReplay(hits=hits, right=right, wrong=wrong, mended=tuple(mended), broken=tuple(broken))


def routine_shapes(bundle: str) -> list[tuple[str, str]]:
    """(pattern, example) of the rows that occur hundreds of times and do not indicate a failure."""
    frequent = [
        match[2]
        for row in bundle.split("\n")
        if (match := REPEATED_ROW.match(row)) and int(match[1]) >= MIN_FREQUENT_COUNT
    ]
    pairs = [(shape_pattern(text.strip()), text.strip()[:500]) for text in frequent if _is_specific_enough(text)]
    return [(pattern, example) for pattern, example in pairs if not filter_error(pattern, example)]


def filter_error(pattern: str, example: str) -> str:
    """A sentence that explains why the filter cannot be used; empty if it can.

    It must meet the conditions of a signature, and its example must not indicate a failure.
    """
    rule = Signature(name="filter", label="", role=LineRole.BENIGN, specificity=0, pattern=pattern, example=example)
    if error := signature_error(rule):
        return error
    judged = engine.diagnose_text(example).root_cause
    return "" if judged in (NONE, UNKNOWN) else f"The example indicates a failure: {judged}."


def filter_name(pattern: str) -> str:
    return f"filter-{hashlib.sha256(pattern.encode()).hexdigest()[:10]}"
