"""Formats a LogDiagnosis as JSON and as text for a terminal. Pure."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from .labels import NONE, UNKNOWN
from .values import ChainLink, LineRole, LogDiagnosis

MAX_TEXT_CHARS = 160


def as_dict(diagnosis: LogDiagnosis) -> dict[str, Any]:
    return asdict(diagnosis)


def as_json(name: str, diagnosis: LogDiagnosis) -> str:
    """A JSON object on one line. JSON escapes the control characters of the log."""
    return json.dumps({"file": name, **as_dict(diagnosis)}, ensure_ascii=True)


def as_text(name: str, diagnosis: LogDiagnosis) -> str:
    rows = [_headline(name, diagnosis), *(f"  {note}" for note in diagnosis.notes)]
    if diagnosis.root_cause not in (NONE, UNKNOWN):
        rows += ["", "  cause", *(f"    {_link_text(link)}" for link in diagnosis.chain[:1])]
        rows += _consequence_lines(diagnosis)
        rows += _suspect_lines(diagnosis)
        rows += ["", f"  restart helps: {diagnosis.restart_helps} ({diagnosis.restart_reason})"]
    if diagnosis.root_cause != NONE:
        rows.append(f"  what to do:    {diagnosis.action}")
    if diagnosis.alternatives:
        rivals = ", ".join(f"{other.root_cause} {other.score:.2f}" for other in diagnosis.alternatives)
        rows.append(f"  alternatives:  {rivals}")
    return "\n".join(rows)


def _headline(name: str, diagnosis: LogDiagnosis) -> str:
    if diagnosis.root_cause == NONE:
        return f"{name}: nothing failed ({diagnosis.lines} line{'' if diagnosis.lines == 1 else 's'})"
    if diagnosis.root_cause == UNKNOWN:
        return f"{name}: the cause is not in this log ({diagnosis.lines} lines)"
    return f"{name}: {diagnosis.root_cause} ({diagnosis.category}, confidence {diagnosis.confidence:.2f})"


def _consequence_lines(diagnosis: LogDiagnosis) -> list[str]:
    later = diagnosis.chain[1:]
    return ["  consequences", *(f"    {_link_text(link)}" for link in later)] if later else []


def _link_text(link: ChainLink) -> str:
    where = f"line {link.line}" if link.line else "exit status"
    times = f" (x{link.count})" if link.count > 1 else ""
    text = printable_text(link.text)
    words = text if len(text) <= MAX_TEXT_CHARS else text[: MAX_TEXT_CHARS - 1] + "…"
    return f"{where}{times}: {words}" if link.role is LineRole.INITIATING else f"{where}{times} [{link.role}]: {words}"


def printable_text(text: str) -> str:
    """The text without control characters, because a log must not move the cursor of the terminal."""
    return "".join(letter if letter.isprintable() or letter == "\t" else "·" for letter in text)


def _suspect_lines(diagnosis: LogDiagnosis) -> list[str]:
    rows = [f"    node {node.host}: {printable_text(node.why)}" for node in diagnosis.suspect_nodes]
    for gpu in diagnosis.suspect_gpus:
        at = " ".join(part for part in (gpu.host, gpu.pci, f"rank {gpu.rank}" if gpu.rank is not None else "") if part)
        rows.append(f"    GPU {at}: {gpu.why}")
    return ["", "  suspects", *rows] if rows else []
