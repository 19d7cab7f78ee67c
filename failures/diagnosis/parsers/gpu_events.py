"""Parses the Xid and SXid lines of the kernel log into events. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .. import catalogue
from ..values import LineRole, ParsedLine, SignatureTrait

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
