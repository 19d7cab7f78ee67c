"""ETag and If-Match: a change is refused when the caller decided on a version that is gone."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any

from jobs.rest.errors import PreconditionFailed


def etag(shown: Mapping[str, Any], observed: Collection[str] = ()) -> str:
    """Of everything that is shown, so whatever a caller can see changing changes it.

    What is only observed has a part of its own, behind a dot: it changes with nobody touching the row, so If-Match
    disregards it.
    """
    parts = [{name: value for name, value in shown.items() if name not in observed}]
    if observed:
        parts.append({name: shown[name] for name in observed})
    return f'"{".".join(_content_digest(part) for part in parts)}"'


def _content_digest(shown: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(shown, sort_keys=True, default=str).encode()).digest()
    return base64.urlsafe_b64encode(digest[:15]).decode()


def matches(header: str, tag: str) -> bool:
    """Weak tags never match here: If-Match compares strongly."""
    return header.strip() == "*" or tag in [one.strip() for one in header.split(",")]


def check_if_match(request: Any, shown: Mapping[str, Any], observed: Collection[str] = ()) -> None:
    wanted = request.headers.get("If-Match")
    if wanted is None:
        return
    decided = ",".join(_stable_part(one) for one in wanted.split(","))
    if not matches(decided, _stable_part(etag(shown, observed))):
        raise PreconditionFailed


def _stable_part(tag: str) -> str:
    return tag.strip().partition(".")[0].removesuffix('"')
