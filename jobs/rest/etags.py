"""ETag and If-Match: a change is refused if the caller read an older version."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any

from jobs.rest.errors import RequestFailed


def etag(shown: Mapping[str, Any], observed: Collection[str] = ()) -> str:
    """The ETag of all values shown to the caller.

    Observed values, such as the time of the last response of a cluster, change without user action. They get a part
    of their own behind a dot, which If-Match ignores.
    """
    parts = [{name: value for name, value in shown.items() if name not in observed}]
    if observed:
        parts.append({name: shown[name] for name in observed})
    return f'"{".".join(_content_digest(part) for part in parts)}"'


def _content_digest(shown: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(shown, sort_keys=True, default=str).encode()).digest()
    return base64.urlsafe_b64encode(digest[:15]).decode()


def matches(header: str, tag: str) -> bool:
    """Whether a header lists the tag. Weak tags never match, because If-Match uses strong comparison."""
    return header.strip() == "*" or tag in [listed.strip() for listed in header.split(",")]


def check_if_match(request: Any, shown: Mapping[str, Any], observed: Collection[str] = ()) -> None:
    """Raise a 412 unless If-Match is absent or names the current version."""
    header = request.headers.get("If-Match")
    if header is None:
        return
    stable_tags = ",".join(_stable_part(tag) for tag in header.split(","))
    if not matches(stable_tags, _stable_part(etag(shown, observed))):
        raise RequestFailed(412, "The resource has changed since you read it. Read it again before you change it.")


def _stable_part(tag: str) -> str:
    return tag.strip().partition(".")[0].removesuffix('"')
