"""What a model may answer, and what is made of several answers. Pure.

The schema is closed: a label of our list or an abstention, numbers of lines that were shown, a short sentence. Whatever
else a model writes, because a log told it to or by itself, is not read. A vote needs a majority of all that were asked;
an answer that cites a line which was not shown counts as an abstention.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from failures.diagnosis.labels import LABELS, UNKNOWN

CAUSES = tuple(LABELS)
MOST_LINES = 8
LONGEST = 400

VERDICT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["root_cause", "lines", "why"],
    "properties": {
        "root_cause": {"type": "string", "enum": list(CAUSES)},
        "lines": {"type": "array", "maxItems": MOST_LINES, "items": {"type": "integer"}},
        "why": {"type": "string", "maxLength": LONGEST},
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


class Malformed(ValueError):
    """The answer is not what was asked for; the message is a sentence."""


@dataclass(frozen=True, kw_only=True)
class Opinion:
    root_cause: str
    lines: tuple[int, ...]
    why: str


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What all the votes together say. `root_cause` is empty where the model abstains."""

    root_cause: str
    lines: tuple[int, ...]
    why: str
    votes: int
    asked: int
    troubles: tuple[str, ...] = ()

    @property
    def agreement(self) -> float:
        return self.votes / self.asked if self.asked else 0.0


def parsed(text: str) -> dict[str, Any]:
    """The object in the answer; models like to wrap it in a fence."""
    words = text.strip().removeprefix("```json").removeprefix("```").removesuffix("```").strip()
    try:
        value = json.loads(words)
    except (ValueError, RecursionError):
        raise Malformed("The answer is no JSON.") from None
    if not isinstance(value, dict):
        raise Malformed("The answer is no JSON object.")
    return value


def opinion(text: str, shown: frozenset[int]) -> Opinion:
    value = parsed(text)
    cause, lines, why = value.get("root_cause"), value.get("lines"), value.get("why")
    if cause not in LABELS:
        raise Malformed("root_cause: the answer names no cause of the list.")
    if not isinstance(lines, list) or not all(type(line) is int for line in lines):
        raise Malformed("lines: the answer does not cite lines by number.")
    if strange := [line for line in lines if line not in shown]:
        raise Malformed(f"lines: line {strange[0]} was not shown.")
    if cause != UNKNOWN and not lines:
        raise Malformed("lines: the answer cites no line for its cause.")
    words = why if isinstance(why, str) else ""
    plain = "".join(letter if letter.isprintable() else " " for letter in words)[:LONGEST]
    return Opinion(root_cause=cause, lines=tuple(dict.fromkeys(lines))[:MOST_LINES], why=plain)


def decided(opinions: Iterable[Opinion], asked: int, troubles: Iterable[str] = ()) -> Outcome:
    """More than half of those asked must say the same; anything less is an abstention."""
    given = list(opinions)
    cause, votes = Counter(one.root_cause for one in given).most_common(1)[0] if given else ("", 0)
    if cause in ("", UNKNOWN) or votes * 2 <= asked:
        return Outcome(root_cause="", lines=(), why="", votes=votes, asked=asked, troubles=tuple(troubles))
    same = [one for one in given if one.root_cause == cause]
    cited = Counter(line for one in same for line in one.lines)
    lines = tuple(line for line, _ in sorted(cited.items(), key=lambda pair: (-pair[1], pair[0])))[:MOST_LINES]
    return Outcome(
        root_cause=cause, lines=lines, why=same[0].why, votes=votes, asked=asked, troubles=tuple(troubles)
    )  # fmt: skip


def rules(text: str) -> tuple[tuple[str, str], ...]:
    """(pattern, example) of each filter rule; whether they are any good is for `trouble_with` to say."""
    given = parsed(text).get("rules")
    if not isinstance(given, list):
        raise Malformed("rules: the answer holds no list of rules.")
    pairs = [(one.get("pattern"), one.get("example")) for one in given[:12] if isinstance(one, dict)]
    return tuple((p[:300], e[:600]) for p, e in pairs if isinstance(p, str) and isinstance(e, str) and p and e)
