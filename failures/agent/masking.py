"""Prepares a bundle for the model: no secrets, names replaced, at most 64 KiB. Pure.

Names are replaced by stable placeholders (`host-1`, `address-2`), so that a model still sees that two lines are about
the same machine. Only this module translates the placeholders in an answer back.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from jobs.core.masking import MASK, mask_text

MAX_BUNDLE_BYTES = 64 << 10
SECRET_TOKEN = re.compile(
    r"\b(?:hf_|ghp_|gho_|github_pat_|glpat-|sk-|xox[abprs]-|AKIA|ASIA|AIza|eyJ)[\w.-]{12,}|"
    r"(?i:\bbearer\s+)[\w.~+/=-]{8,}|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)|-----BEGIN [A-Z ]+-----\S*"
)
TOP_LEVEL_DOMAINS = "internal|local|lan|corp|cluster|com|net|org|io|edu|cn|de"
# Lengths are bounded as in the mail and DNS standards. Without bounds, a long word would take quadratic time
NAME_PATTERNS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("mail", re.compile(r"\b[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}\b")),
    ("address", re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}\b|\b(?:[0-9a-fA-F]{1,4}:){4,7}[0-9a-fA-F]{1,4}\b")),
    ("host", re.compile(rf"\b(?:[a-z][a-z0-9-]{{0,62}}\.){{1,8}}(?:{TOP_LEVEL_DOMAINS})\b")),
    ("user", re.compile(r"(?<=/home/)[\w.-]+|(?<=/Users/)[\w.-]+|(?<=\buser=)[\w.-]+")),
)


@dataclass(frozen=True, kw_only=True)
class MaskedBundle:
    """The text to send. `numbers` are the log lines in it; an answer may cite only those."""

    text: str
    numbers: frozenset[int]
    stand_ins: dict[str, str]

    def restore_names(self, words: str) -> str:
        """A text of the model with the placeholders replaced by the real names."""
        return re.sub(
            r"\b(?:mail|address|host|user)-\d+\b", lambda match: self.stand_ins.get(match[0], match[0]), words
        )


def mask_bundle(bundle: str, hosts: frozenset[str] = frozenset()) -> MaskedBundle:
    names: dict[str, str] = {}
    sent: list[str] = []
    numbers: set[int] = set()
    room = MAX_BUNDLE_BYTES
    for row in bundle.split("\n"):
        safe = _replace_names(mask_text(SECRET_TOKEN.sub(MASK, row)), names, hosts)
        room -= len(safe.encode("utf-8", "replace")) + 1
        if room < 0:
            break
        sent.append(safe)
        if match := re.match(r"@(\d+)\b", row):
            numbers.add(int(match[1]))
    stand_ins = {new: old for old, new in names.items()}
    return MaskedBundle(text="\n".join(sent), numbers=frozenset(numbers), stand_ins=stand_ins)


def _replace_names(row: str, names: dict[str, str], hosts: frozenset[str]) -> str:
    for kind, pattern in NAME_PATTERNS:
        row = pattern.sub(lambda match, kind=kind: _placeholder(kind, match[0], names), row)  # type: ignore[misc]
    for host in hosts:
        if host and host in row:
            row = re.sub(rf"(?<![\w.-]){re.escape(host)}(?![\w-])", _placeholder("host", host, names), row)
    return row


def _placeholder(kind: str, name: str, names: dict[str, str]) -> str:
    return names.setdefault(name, f"{kind}-{len(names) + 1}")
