"""What people are told of an incident, and how a webhook's message is signed. Pure.

Names and words come from jobs and logs, so nothing here is taken for markup: mail is plain text, Slack's three special
characters are written as entities, JSON is JSON.
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
    """Of one moment of an incident. The same moment is the same message."""

    incident: int
    state: str
    title: str
    cluster: str
    attempts: int
    nodes: Sequence[str] = ()
    decision: str = ""
    course: str = ""  # of that decision
    url: str = ""

    @property
    def digest(self) -> str:
        """Of what is worth a new message: that one more attempt died of the same is not."""
        kept = {name: value for name, value in asdict(self).items() if name != "attempts"}
        return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()

    @property
    def subject(self) -> str:
        mark = f" [{self.course}]" if self.course == "proposed" else ""
        return single_line(f"Incident {self.incident} {self.state}: {self.title} on {self.cluster}{mark}")

    @property
    def lines(self) -> list[str]:
        found = [self.subject, f"Attempts that died of it: {self.attempts}."]
        if self.nodes:
            found.append(single_line(f"Nodes: {', '.join(self.nodes)}."))
        if self.decision:
            found.append(single_line(f"Recovery ({self.course}): {self.decision}"))
        return [*found, self.url] if self.url else found


def single_line(text: str) -> str:
    """One line, whatever somebody called his job."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())[:MAX_LINE_LENGTH]


def webhook_body(message: IncidentMessage, update: int) -> bytes:
    body: Mapping[str, Any] = {"id": f"incident-{message.incident}", "update": update, **asdict(message)}
    return json.dumps(body, sort_keys=True).encode()


def slack_body(message: IncidentMessage) -> bytes:
    text = "\n".join(message.lines).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return json.dumps({"text": text}).encode()


def webhook_signature(secret: str, body: bytes, at: int) -> str:
    """The time is signed too, so that an old message cannot be sent again by somebody else."""
    made = hmac.new(secret.encode(), b"%d." % at + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={made}"
