"""The answers that a model may give, and how several answers become one vote. Pure.

The schema is closed: a known label or an abstention, numbers of lines that were sent, and a short sentence. Anything
else in an answer is ignored, including text that a log tricked the model into writing. A result needs a majority of all
requested votes; an answer that cites a line which was not sent counts as an abstention.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from acmeweb.common.errors import MalformedResponse
from failures.diagnosis.labels import LABELS, UNKNOWN

CAUSES = tuple(LABELS)
MAX_CITED_LINES = 8
MAX_WHY_CHARS = 400

VERDICT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["root_cause", "lines", "why"],
    "properties": {
        "root_cause": {"type": "string", "enum": list(CAUSES)},
        "lines": {"type": "array", "maxItems": MAX_CITED_LINES, "items": {"type": "integer"}},
        "why": {"type": "string", "maxLength": MAX_WHY_CHARS},
    },
}
FILTER_SCHEMA: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["rules"],
    "properties": {
        "rules": {
            "type": "array",
            "maxItems": 12,
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["pattern", "example"],
                "properties": {
                    "pattern": {"type": "string", "maxLength": 300},
                    "example": {"type": "string", "maxLength": 600},
                },
            },
        }
    },
}


@dataclass(frozen=True, kw_only=True)
class ModelVote:
    root_cause: str
    lines: tuple[int, ...]
    why: str


@dataclass(frozen=True, kw_only=True)
class VoteResult:
    """The result of all votes. `root_cause` is empty if the model abstains."""

    root_cause: str
    lines: tuple[int, ...]
    why: str
    votes: int
    calls: int
    errors: tuple[str, ...] = ()


def parse_json_object(text: str) -> dict[str, Any]:
    """The object in the answer; models like to wrap it in a fence."""
    words = text.strip().removeprefix("```json").removeprefix("```").removesuffix("```").strip()
    try:
        value = json.loads(words)
    except (ValueError, RecursionError):
        raise MalformedResponse("The answer is not valid JSON.") from None
    if not isinstance(value, dict):
        raise MalformedResponse("The answer is not a JSON object.")
    return value


def parse_vote(text: str, shown: frozenset[int]) -> ModelVote:
    value = parse_json_object(text)
    cause, lines, why = value.get("root_cause"), value.get("lines"), value.get("why")
    if cause not in LABELS:
        raise MalformedResponse("root_cause: the answer names a cause that is not in the list.")
    if not isinstance(lines, list) or not all(type(line) is int for line in lines):
        raise MalformedResponse("lines: the answer does not cite lines by number.")
    if unknown := [line for line in lines if line not in shown]:
        raise MalformedResponse(f"lines: line {unknown[0]} was not sent to the model.")
    if cause != UNKNOWN and not lines:
        raise MalformedResponse("lines: the answer names a cause but cites no line.")
    words = why if isinstance(why, str) else ""
    plain = "".join(letter if letter.isprintable() else " " for letter in words)[:MAX_WHY_CHARS]
    return ModelVote(root_cause=cause, lines=tuple(dict.fromkeys(lines))[:MAX_CITED_LINES], why=plain)


def majority_result(opinions: Iterable[ModelVote], calls: int, errors: Iterable[str] = ()) -> VoteResult:
    """The cause that more than half of the requested votes name; an abstention if there is none."""
    valid = list(opinions)
    cause, votes = Counter(vote.root_cause for vote in valid).most_common(1)[0] if valid else ("", 0)
    if cause in ("", UNKNOWN) or votes * 2 <= calls:
        return VoteResult(root_cause="", lines=(), why="", votes=votes, calls=calls, errors=tuple(errors))
    same = [vote for vote in valid if vote.root_cause == cause]
    cited = Counter(line for vote in same for line in vote.lines)
    lines = tuple(line for line, _ in sorted(cited.items(), key=lambda pair: (-pair[1], pair[0])))[:MAX_CITED_LINES]
    return VoteResult(
        root_cause=cause, lines=lines, why=same[0].why, votes=votes, calls=calls, errors=tuple(errors)
    )  # fmt: skip


def parse_filter_rules(text: str) -> tuple[tuple[str, str], ...]:
    """(pattern, example) of each filter rule. They are not checked here but by `rule_proposals.filter_error`."""
    rules = parse_json_object(text).get("rules")
    if not isinstance(rules, list):
        raise MalformedResponse("rules: the answer has no list of rules.")
    pairs = [(rule.get("pattern"), rule.get("example")) for rule in rules[:12] if isinstance(rule, dict)]
    return tuple((p[:300], e[:600]) for p, e in pairs if isinstance(p, str) and isinstance(e, str) and p and e)
