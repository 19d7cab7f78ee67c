"""The text of incident notices, and the signature of webhooks. Pure.

Names and texts come from jobs and logs and are untrusted. E-mail is plain text, Slack's three special characters are
escaped, and webhooks are JSON, so none of it is interpreted as markup.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

MAX_LINE_LENGTH = 300


@dataclass(frozen=True, kw_only=True)
class IncidentMessage:
    """The state of an incident at one moment. Equal states give equal messages."""

    incident: int
    state: str
    title: str
    cluster: str
    attempts: int
    nodes: Sequence[str] = ()
    decision: str = ""
    decision_state: str = ""
    url: str = ""

    @property
    def digest(self) -> str:
        """Hash of the fields that cause a new message when they change. The number of attempts is not one of them."""
        fields = {name: value for name, value in asdict(self).items() if name != "attempts"}
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()

    @property
    def subject(self) -> str:
        mark = f" [{self.decision_state}]" if self.decision_state == "proposed" else ""
        return single_line(f"Incident {self.incident} {self.state}: {self.title} on {self.cluster}{mark}")

    @property
    def lines(self) -> list[str]:
        lines = [self.subject, f"Failed attempts: {self.attempts}."]
        if self.nodes:
            lines.append(single_line(f"Nodes: {', '.join(self.nodes)}."))
        if self.decision:
            lines.append(single_line(f"Recovery ({self.decision_state}): {self.decision}"))
        return [*lines, self.url] if self.url else lines


def single_line(text: str) -> str:
    """The text on one line, without control characters. Job names may contain any character."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())[:MAX_LINE_LENGTH]


def webhook_body(message: IncidentMessage, update: int) -> bytes:
    body: Mapping[str, Any] = {"id": f"incident-{message.incident}", "update": update, **asdict(message)}
    return json.dumps(body, sort_keys=True).encode()


def slack_body(message: IncidentMessage) -> bytes:
    text = "\n".join(message.lines).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return json.dumps({"text": text}).encode()


def webhook_signature(secret: str, body: bytes, at: int) -> str:
    """The signature header. It includes the time, so that receivers can reject replayed messages."""
    digest = hmac.new(secret.encode(), b"%d." % at + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={digest}"
