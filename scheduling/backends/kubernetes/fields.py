"""Reads values of API objects, which are untrusted input. Pure.

A missing or malformed optional value counts as empty. Only the identity of an object is required: without it nothing
can be said about the object, and `MalformedResponse` names the field.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from acmeweb.common.errors import MalformedResponse

NOTHING: Mapping[str, Any] = {}
MAX_TEXT_LENGTH = 400  # of reasons and messages; a condition's message may have 32 KiB
MAX_NAME_LENGTH = 253
QUANTITY = re.compile(r"([+-]?[0-9]{1,18}(?:\.[0-9]{1,18})?)(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?[0-9]{1,2}))?")
FACTORS = {
    "n": 1e-9,
    "u": 1e-6,
    "m": 1e-3,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
    "E": 1e18,
    **{f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTPE", start=1)},
}
TIMESTAMP = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?Z")


def mapping_at(value: object, *path: str) -> Mapping[str, Any]:
    """The object at this path; empty if there is none."""
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else NOTHING


def mappings_at(value: object, *path: str) -> list[Mapping[str, Any]]:
    """The objects of the list at this path; empty if there is none."""
    *parents, last = path
    entries = mapping_at(value, *parents).get(last)
    return [entry for entry in entries if isinstance(entry, Mapping)] if isinstance(entries, Sequence) else []


def text_at(value: object, *path: str, largest: int = MAX_TEXT_LENGTH) -> str:
    """The text at this path in one line, shortened; empty if there is none."""
    *parents, last = path
    text = mapping_at(value, *parents).get(last)
    return " ".join(text[: 4 * largest].split())[:largest] if isinstance(text, str) else ""


def count_at(value: object, *path: str) -> int | None:
    *parents, last = path
    number = mapping_at(value, *parents).get(last)
    return number if type(number) is int and 0 <= number < 2**31 else None


def texts_at(value: object, *path: str) -> dict[str, str]:
    """The texts of an object such as labels."""
    return {str(name): text for name, text in mapping_at(value, *path).items() if isinstance(text, str)}


def time_at(value: object, *path: str) -> datetime | None:
    text = text_at(value, *path)
    if not TIMESTAMP.fullmatch(text):
        return None
    try:
        return datetime.fromisoformat(f"{text[:19]}+00:00").astimezone(UTC)
    except ValueError:
        return None


def require_text(value: object, *path: str) -> str:
    text = text_at(value, *path, largest=MAX_NAME_LENGTH)
    if not text:
        raise MalformedResponse(f"{'.'.join(path)} is missing")
    return text


def parse_quantity(value: object) -> float:
    """A quantity such as 8, "1500m" or "512Gi"; 0 if it is malformed."""
    if type(value) is int:
        return float(value) if abs(value) < 2**63 else 0.0
    match = QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return 0.0
    return float(match[1]) * (FACTORS[match[2]] if match[2] else 10.0 ** int(match[3] or 0))
