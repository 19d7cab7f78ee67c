"""NVIDIA's error codes (Xid, SXid of NVSwitch, NVLink 5 sub-codes) and the Acme failure table. Pure.

The CSV files in `catalogues/` come from public sources (`catalogues/README.md`). Where sources disagree, both are kept
and shown, so that operators know that the tools of two vendors would act differently.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

from .values import LineRole, SignatureTrait


@dataclass(frozen=True, kw_only=True)
class XidCode:
    code: int
    meaning: str
    severity: str
    action: str
    auto_cordon: str
    conflict: str  # where the sources disagree; empty if they agree


@dataclass(frozen=True, kw_only=True)
class NvlinkSubCode:
    xid: int
    unit: str
    pattern_old: str
    pattern_new: str
    error_status: int
    resolution: str
    severity: str


@dataclass(frozen=True, kw_only=True)
class SxidCode:
    code: int
    name: str
    fatal: bool
    recovery: str


def _csv_rows(name: str) -> list[dict[str, str]]:
    text = resources.files(__package__).joinpath("catalogues", name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


@lru_cache(maxsize=1)
def xid_codes() -> dict[int, XidCode]:
    return {
        int(row["xid"]): XidCode(
            code=int(row["xid"]), meaning=row["meaning"], severity=row["severity"],
            action=row["recommended_action"], auto_cordon=row["auto_cordon_default"], conflict=row["source_conflict"],
        )
        for row in _csv_rows("xid.csv")
    }  # fmt: skip


@lru_cache(maxsize=1)
def sxid_codes() -> dict[int, SxidCode]:
    return {
        int(row["sxid"]): SxidCode(
            code=int(row["sxid"]), name=row["name"], fatal=row["fatality"].startswith("fatal"), recovery=row["recovery"]
        )
        for row in _csv_rows("sxid.csv")
    }


@lru_cache(maxsize=1)
def nvlink_sub_codes() -> tuple[NvlinkSubCode, ...]:
    return tuple(
        NvlinkSubCode(
            xid=int(row["xid"]), unit=row["unit"], pattern_old=row["intrinfo_pattern_v1_lt_R575"],
            pattern_new=row["intrinfo_pattern_v2_ge_R575"], error_status=_parse_status(row["error_status"]),
            resolution=row["resolution"], severity=row["severity"],
        )
        for row in _csv_rows("xid_nvlink_subcodes.csv")
    )  # fmt: skip


def _parse_status(text: str) -> int:
    return int(text.strip("*? ") or "0", 16)


@lru_cache(maxsize=1)
def dcgm_codes() -> dict[str, tuple[str, str]]:
    """DCGM error code → (label, action). An empty label means that the code alone is not a failure."""
    return {row["code"]: (row["label"], row["action"]) for row in _csv_rows("dcgm.csv")}


@lru_cache(maxsize=1)
def failure_table() -> tuple[dict[str, str], ...]:
    return tuple(_csv_rows("failure_table.csv"))


def find_sub_code(xid: int, intrinfo: int, error_status: int) -> NvlinkSubCode | None:
    """The sub-code of an NVLink 5 Xid.

    The error status must be equal, and the interrupt word must fit the bit pattern of older or newer drivers.
    """
    for rule in nvlink_sub_codes():
        fits = _matches_bit_pattern(rule.pattern_new, intrinfo) or _matches_bit_pattern(rule.pattern_old, intrinfo)
        if rule.xid == xid and rule.error_status == error_status and fits:
            return rule
    return None


def _matches_bit_pattern(pattern: str, word: int) -> bool:
    """Whether a word fits a pattern of `0`, `1` and `-` (any bit), highest bit first."""
    if not pattern or set(pattern) - set("01-"):
        return False
    bits = f"{word & (1 << len(pattern)) - 1:0{len(pattern)}b}"
    return all(want in ("-", have) for want, have in zip(pattern, bits, strict=True))


# Codes that follow another code: the channel was torn down (43, 45), the driver requests a reset (154).
CONSEQUENCE_XIDS = frozenset({43, 45, 154})
NVLINK_XIDS = frozenset({71, 74, *range(144, 151)})
RECORD_ONLY_XIDS = frozenset({63, 92})  # memory is recorded for repair; the data was corrected
ECC_XIDS = frozenset({48, 63, 64, 92, 94, 95, 140, 160, 161, 171, 172, 173})
MEMORY_ERROR_WORDS = re.compile(r"(?i)\bECC\b|\bDBE\b|double[- ]bit|row remap|retire|uncorrect|contained:|DRAM|SRAM")


NVLINK_WORDS = re.compile(r"(?i)\bNVLink\b|\binterrupt hit on link \d")  # the driver names the link for any code


PREVIOUS_XID = re.compile(r"(?i)caused by previous Xid (\d{1,3})\b")


def classify_xid(code: int, words: str) -> tuple[str, LineRole, int]:
    """(label, role, specificity) of an Xid code and the text after it."""
    if (before := PREVIOUS_XID.search(words)) and int(before[1]) != code:
        return classify_xid(int(before[1]), "")[0], LineRole.CASCADE, 46
    label = _xid_label(code, words)
    if code in CONSEQUENCE_XIDS:
        return label, LineRole.CASCADE, 45
    return label, LineRole.INITIATING, _xid_specificity(code, words)


def _xid_label(code: int, words: str) -> str:
    if code == 79:
        return "GPUFallenOffBus"
    if code in NVLINK_XIDS or NVLINK_WORDS.search(words):
        return "NVLinkError"
    if code in ECC_XIDS and MEMORY_ERROR_WORDS.search(words):
        return "ECCError"
    return "XidOther"


def xid_traits(code: int) -> tuple[SignatureTrait, ...]:
    return (SignatureTrait.RECORD_ONLY,) if code in RECORD_ONLY_XIDS else ()


def _xid_specificity(code: int, words: str) -> int:
    if code == 79:
        return 98
    if "nonfatal" in words.lower():
        return 72
    if code in NVLINK_XIDS:
        return 92
    return 91 if code in ECC_XIDS else 85


def classify_sxid(code: int, words: str) -> tuple[str, LineRole, int]:
    """(label, role, specificity) of an SXid code and the text after it."""
    known = sxid_codes().get(code)
    fatal = "non-fatal" not in words.lower() and ("fatal" in words.lower() or bool(known and known.fatal))
    return "NVLinkError", LineRole.INITIATING, 90 if fatal else 60
