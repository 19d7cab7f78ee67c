"""A confirmed diagnosis → a signature that would have found it, and what it would have done to all the others. Pure.

The proposal is one line's shape: of the evidence first, else of any line of the bundle. It must be of words (a shape of
holes matches everything), and must occur in no bundle whose confirmed cause is another. A proposal is never right by
itself: `replayed` runs it against every stored bundle, and one confirmed verdict changed for the worse refuses it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from failures.diagnosis import engine, lines
from failures.diagnosis.labels import LABELS, NONE, UNKNOWN
from failures.diagnosis.scan import InvalidPatternError, Scanner
from failures.diagnosis.signatures import Signature
from failures.diagnosis.table import SIGNATURES
from failures.diagnosis.values import Blame, LineRole

LEARNED_SPECIFICITY = 74  # a clear cause, and still below every shipped signature that names the broken part
MIN_WORDS = 3
MIN_LETTERS = 14
MAX_SHAPE_CHARS = 160
MAX_HOLE_CHARS = 80  # characters of a hole
HOLE_MARK = "\0"
VARIABLE_PART = re.compile(r"'[^']{0,80}'|\"[^\"]{0,80}\"|(?:/[\w.@+-]+){2,}|\b[\w.-]*\d[\w.:,+-]*")
TRACEBACK_LINE = re.compile(r"(?i)^\s*(?:File \"|Traceback \(|raise |During handling|The above exception)")
REPEATED_ROW = re.compile(r"@\d+ x(\d+) \| (.*)")
MIN_FREQUENT_COUNT = 500
BLAME_BY_CATEGORY = {"Infrastructure": Blame.NODE}


@dataclass(frozen=True, kw_only=True)
class StoredBundle:
    """A stored bundle, what is held to be its cause, and whether a person or a recovery confirmed that."""

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
    support: int  # bundles of this cause that it finds


@dataclass(frozen=True, kw_only=True)
class RuleReplay:
    """What a rule did to history. `broken` are confirmed verdicts that were right without it."""

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
    """The most telling line; None where every line also occurs under another cause, or says too little."""
    if confirmed.cause in (NONE, UNKNOWN) or confirmed.cause not in LABELS:
        return None
    past = [one for one in history if one.confirmed]
    best: RuleProposal | None = None
    for text in candidate_lines(confirmed.bundle, evidence):
        one = _build_proposal(text, confirmed, past)
        if one and (best is None or one.support > best.support):
            best = one
        if best and text in evidence and best.example == text:
            return best  # what a person was shown as evidence is better than what only recurs
    return best


def candidate_lines(bundle: str, evidence: Sequence[str]) -> list[str]:
    rows = [lines.parse(0, row).message.strip() for row in bundle.split("\n")]
    shown = [lines.parse(0, row).message.strip() for row in evidence]
    return list(dict.fromkeys(row for row in [*shown, *rows] if _is_specific_enough(row)))[:400]


def _is_specific_enough(message: str) -> bool:
    bare = VARIABLE_PART.sub(" ", message[:MAX_SHAPE_CHARS])
    words = re.findall(r"[A-Za-z]{2,}", bare)
    return len(words) >= MIN_WORDS and sum(map(len, words)) >= MIN_LETTERS and not TRACEBACK_LINE.match(message)


def _build_proposal(text: str, confirmed: StoredBundle, past: Sequence[StoredBundle]) -> RuleProposal | None:
    pattern, parts = shape_pattern(text), _shape_parts(text)
    if any(one.cause != confirmed.cause and _occurs_in_bundle(parts, one.bundle) for one in past):
        return None
    same = {one.key for one in past if one.cause == confirmed.cause and _occurs_in_bundle(parts, one.bundle)}
    same.add(confirmed.key)
    name = f"learned-{hashlib.sha256(f'{confirmed.cause}{pattern}'.encode()).hexdigest()[:10]}"
    return RuleProposal(name=name, label=confirmed.cause, pattern=pattern, example=text[:500], support=len(same))


def shape_pattern(text: str) -> str:
    """Its words, with room where it had numbers, names or paths. Holes are bounded, so scanning stays linear."""
    return f".{{0,{MAX_HOLE_CHARS}}}".join(
        re.escape(part).replace(r"\ ", " ").replace("/", r"\/") for part in _shape_parts(text)
    )


def _shape_parts(text: str) -> list[str]:
    return VARIABLE_PART.sub(HOLE_MARK, text[:MAX_SHAPE_CHARS]).split(HOLE_MARK)


def _occurs_in_bundle(parts: Sequence[str], bundle: str) -> bool:
    """Whether the shape of these parts is found. Python's `re` would try every way to fill the holes."""
    longest = max(parts, key=len)
    return longest in bundle and any(_matches_row(parts, row) for row in bundle.split("\n") if longest in row)


def _matches_row(parts: Sequence[str], row: str) -> bool:
    """All ends of each part that can be reached, part by part: linear in the row for each part."""
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
    """The shipped table and these; raises BadPattern with a sentence that names the row."""
    return Scanner((*SIGNATURES, *rules))


def signature_error(rule: Signature) -> str:
    """Why this pattern cannot be used, in a sentence; nothing when it can."""
    try:
        scanner = Scanner((rule,))
    except InvalidPatternError as trouble:
        return f"{trouble}."
    if not scanner.hits(rule.example.encode()):
        return "The pattern does not find its own example."
    return "The pattern finds an empty line." if scanner.hits(b"\n") or scanner.hits(b" ") else ""


def replay_rule(rule: Signature, history: Iterable[StoredBundle]) -> RuleReplay:
    """Every stored bundle judged with the rule, and where that changed a confirmed verdict, without it too."""
    alone, together = Scanner((rule,)), scanner_with_rules([rule])
    hits = right = wrong = 0
    mended: list[int] = []
    broken: list[int] = []
    for one in history:
        if not alone.hits(one.bundle.encode()):
            continue  # a rule that sees nothing changes nothing
        hits += 1
        if not one.confirmed:
            continue
        right, wrong = right + (one.cause == rule.label), wrong + (one.cause != rule.label)
        after = engine.diagnose_text(one.bundle, scanner=together).root_cause
        before = engine.diagnose_text(one.bundle).root_cause
        if before != after:
            (mended if after == one.cause else broken if before == one.cause else []).append(one.key)
    return RuleReplay(hits=hits, right=right, wrong=wrong, mended=tuple(mended), broken=tuple(broken))


def routine_shapes(bundle: str) -> list[tuple[str, str]]:
    """(pattern, example) of what came back by the hundred without a sign of trouble."""
    counted = [
        found
        for row in bundle.split("\n")
        if (found := REPEATED_ROW.match(row)) and int(found[1]) >= MIN_FREQUENT_COUNT
    ]
    pairs = [
        (shape_pattern(found[2].strip()), found[2].strip()[:500]) for found in counted if _is_specific_enough(found[2])
    ]
    return [(pattern, example) for pattern, example in pairs if not filter_error(pattern, example)]


def filter_error(pattern: str, example: str) -> str:
    """Beside what a signature must hold: no line of trouble may be its example."""
    rule = Signature(name="filter", label="", role=LineRole.BENIGN, specificity=0, pattern=pattern, example=example)
    if trouble := signature_error(rule):
        return trouble
    judged = engine.diagnose_text(example).root_cause
    return "" if judged in (NONE, UNKNOWN) else f"Its example speaks of trouble: {judged}."


def filter_name(pattern: str) -> str:
    return f"filter-{hashlib.sha256(pattern.encode()).hexdigest()[:10]}"
