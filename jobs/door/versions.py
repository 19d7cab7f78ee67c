"""ETag and If-Match: a change is refused when the caller decided on a version that is gone."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from jobs.door.errors import Changed


def etag(shown: Mapping[str, Any]) -> str:
    """Of everything that is shown, so whatever a caller can see changing changes it."""
    digest = hashlib.sha256(json.dumps(shown, sort_keys=True, default=str).encode()).digest()
    return f'"{base64.urlsafe_b64encode(digest[:15]).decode()}"'


def matches(header: str, tag: str) -> bool:
    """Weak tags never match here: If-Match compares strongly."""
    return header.strip() == "*" or tag in [one.strip() for one in header.split(",")]


def refuse_stale(request: Any, shown: Mapping[str, Any]) -> None:
    wanted = request.headers.get("If-Match")
    if wanted is not None and not matches(wanted, etag(shown)):
        raise Changed
