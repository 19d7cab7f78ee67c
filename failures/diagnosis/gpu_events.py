"""Parses the Xid and SXid lines of the kernel log into events. Pure.

A failing GPU logs dozens of lines within a second, and other GPUs of the node often follow. All events of a node and a
minute form one group. Its head is the most specific code that is not a consequence of another one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from . import catalogue
from .values import LineRole, ParsedLine, SignatureTrait

XID_LINE = re.compile(r"\bXid\s*\((?:PCI:)?(?P<pci>[0-9a-fA-F:.]+)\)\s*:\s*(?P<code>\d+)(?P<words>.*)")
SXID_LINE = re.compile(r"\bSXid\s*\(PCI:(?P<pci>[0-9a-fA-F:.]+)\)\s*:\s*(?P<code>\d+)(?P<words>.*)")
QUOTED_XID = re.compile(r"\bXid(?: error)?(?: code)?[ :=]{1,3}(?P<code>\d{1,3})\b(?P<words>.*)")
INTERRUPT_WORDS = re.compile(r"\(0x(?P<info>[0-9a-fA-F]+) 0x(?P<status>[0-9a-fA-F]+)")


@dataclass(frozen=True, kw_only=True)
class GpuEvent:
    kind: str
    code: int
    pci: str
    line: ParsedLine
    label: str
    role: LineRole
    specificity: int
    note: str
    traits: tuple[SignatureTrait, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GpuEventGroup:
    """All GPU events of one node and minute."""

    host: str
    minute: str
    head: GpuEvent
    codes: tuple[int, ...]
    pcis: tuple[str, ...]
    lines: int


def parse_gpu_event(line: ParsedLine) -> GpuEvent | None:
    if match := XID_LINE.search(line.text):
        return _xid_event(line, match, match["pci"])
    if match := SXID_LINE.search(line.text):
        return _sxid_event(line, match)
    if match := QUOTED_XID.search(line.text):
        return _xid_event(line, match, "")
    return None


def _xid_event(line: ParsedLine, match: re.Match[str], pci: str) -> GpuEvent:
    code, words = int(match["code"]), match["words"]
    label, role, specificity = catalogue.classify_xid(code, words)
    return GpuEvent(
        kind="Xid", code=code, pci=pci.lower(), line=line, label=label, role=role, specificity=specificity,
        note=_xid_note(code, words), traits=catalogue.xid_traits(code),
    )  # fmt: skip


def _sxid_event(line: ParsedLine, match: re.Match[str]) -> GpuEvent:
    code, words = int(match["code"]), match["words"]
    label, role, specificity = catalogue.classify_sxid(code, words)
    known = catalogue.sxid_codes().get(code)
    note = f"SXid {code}: {known.name}; {known.recovery}" if known else f"SXid {code}: not in the catalogue"
    return GpuEvent(
        kind="SXid", code=code, pci=match["pci"].lower(), line=line, label=label, role=role, specificity=specificity,
        note=note,
    )  # fmt: skip


def _xid_note(code: int, words: str) -> str:
    known = catalogue.xid_codes().get(code)
    if known is None:
        return f"Xid {code}: not in the catalogue"
    parts = [f"Xid {code}: {known.meaning}; {known.severity}; action: {known.action}"]
    if (numbers := INTERRUPT_WORDS.search(words)) and (
        rule := catalogue.find_sub_code(code, int(numbers["info"], 16), int(numbers["status"], 16))
    ):
        parts.append(f"sub-code {rule.unit}: {rule.severity}, {rule.resolution}")
    if known.conflict:
        parts.append(f"sources disagree: {known.conflict}")
    return "; ".join(parts)


def group_by_node_and_minute(events: Iterable[GpuEvent]) -> tuple[GpuEventGroup, ...]:
    groups: dict[tuple[str, str], list[GpuEvent]] = {}
    for event in events:
        groups.setdefault((event.line.host, _minute_key(event.line.time)), []).append(event)
    return tuple(_event_group(host, minute, group) for (host, minute), group in groups.items())


def _event_group(host: str, minute: str, group: list[GpuEvent]) -> GpuEventGroup:
    head = min(group, key=lambda event: (event.role is not LineRole.INITIATING, -event.specificity, event.line.number))
    return GpuEventGroup(
        host=host, minute=minute, head=head, codes=tuple(dict.fromkeys(event.code for event in group)),
        pcis=tuple(dict.fromkeys(event.pci for event in group if event.pci)), lines=len(group),
    )  # fmt: skip


def _minute_key(time: str) -> str:
    """A key for the minute of a timestamp or of seconds since boot. Lines without a time share one key."""
    if re.fullmatch(r"\d+\.\d+", time):
        return str(int(float(time)) // 60)
    match = re.match(r".*?\d\d:\d\d", time)
    return match[0] if match else ""
