"""Xid and SXid lines, their catalogues, and what counts as one event."""

from __future__ import annotations

import pytest

from failures.diagnosis import catalogue, lines, reader
from failures.diagnosis.engine import diagnose_text
from failures.diagnosis.labels import LABELS
from failures.diagnosis.parsers import gpu_events
from failures.diagnosis.values import LineRole


def event(text: str) -> gpu_events.GpuEvent:
    found = gpu_events.parse_gpu_event(lines.parse(1, text))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("code", "words", "label", "role"),
    [
        (79, "GPU has fallen off the bus.", "GPUFallenOffBus", LineRole.INITIATING),
        (74, "NVLink: fatal error detected", "NVLinkError", LineRole.INITIATING),
        (149, "NETIR_LINK_EVT Fatal", "NVLinkError", LineRole.INITIATING),
        (48, "DBE (double bit error) ECC", "ECCError", LineRole.INITIATING),
        (48, "", "XidOther", LineRole.INITIATING),
        (31, "MMU Fault", "XidOther", LineRole.INITIATING),
        (137, "RLW_RXPIPE interrupt hit on link 3 on GPU5: PRIV Error", "NVLinkError", LineRole.INITIATING),
        (31, "MMU Fault: symlink 3", "XidOther", LineRole.INITIATING),
        (45, "Ch 00000010", "XidOther", LineRole.CASCADE),
        (154, "GPU recovery action changed", "XidOther", LineRole.CASCADE),
        (999, "", "XidOther", LineRole.INITIATING),
    ],
)
def test_xid_code_has_a_label_and_a_role(code: int, words: str, label: str, role: LineRole) -> None:
    seen = event(f"NVRM: Xid (PCI:0000:3b:00): {code}, pid=1, name=python, {words}")

    assert (seen.label, seen.role, seen.pci) == (label, role, "0000:3b:00")


def test_disagreement_of_sources_is_shown() -> None:
    assert "sources disagree" in event("NVRM: Xid (PCI:0000:3b:00): 94, pid=1, Contained").note


def test_unknown_xid_code_is_reported_as_unknown() -> None:
    assert "not in the catalogue" in event("NVRM: Xid (PCI:0000:3b:00): 999, pid=1").note


def test_sxid_code_is_fatal_or_not() -> None:
    fatal = event("nvidia-nvswitch1: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up")
    mild = event("nvidia-nvswitch1: SXid (PCI:0000:05:00.0): 11012, Non-fatal, Link 30 single bit ECC")

    assert fatal.specificity > mild.specificity


def test_nvlink_sub_code_is_found_by_bits_and_status() -> None:
    rule = catalogue.find_sub_code(145, 0b0000011, 0x80000000)

    assert rule is not None
    assert (rule.unit, rule.resolution) == ("RLW_CTRL", "IGNORE")


def test_nvlink_sub_code_with_another_status_is_not_found() -> None:
    assert catalogue.find_sub_code(145, 0b0000011, 0x7) is None


@pytest.mark.parametrize(
    "rule", catalogue.nvlink_sub_codes(), ids=lambda rule: f"{rule.xid}-{rule.unit}-{rule.error_status:x}"
)
def test_each_sub_code_matches_a_word_built_from_its_pattern(rule: catalogue.NvlinkSubCode) -> None:
    pattern = rule.pattern_new if set(rule.pattern_new) & set("01-") else rule.pattern_old
    word = int(pattern.replace("-", "0"), 2)

    found = catalogue.find_sub_code(rule.xid, word, rule.error_status)

    assert found is not None
    assert found.xid == rule.xid


def test_catalogues_are_complete() -> None:
    assert sorted(catalogue.xid_codes()) == list(range(1, 174))
    assert len(catalogue.sxid_codes()) == 93
    assert len(catalogue.nvlink_sub_codes()) == 94
    assert len(catalogue.failure_table()) == 29


def test_thousand_lines_of_one_xid_storm_stay_few() -> None:
    log = "\n".join(f"[ {at}.000000] NVRM: Xid (PCI:0000:3b:00): 45, pid={at}" for at in range(20_000))

    read = reader.read_log([log.encode()])

    assert len(read.gpu_events) <= reader.MAX_GPU_EVENTS
    assert diagnose_text(log).root_cause == "XidOther"


@pytest.mark.parametrize(("code", "found"), [(code, row[0]) for code, row in catalogue.dcgm_codes().items()])
def test_dcgm_code_has_its_label_or_is_ignored(code: str, found: str) -> None:
    assert diagnose_text(f"gpu-doctor: the check of GPU 2 ended with {code}").root_cause == (found or "None")


def test_labels_of_dcgm_codes_exist() -> None:
    assert {label for label, _ in catalogue.dcgm_codes().values()} - {""} <= set(LABELS)
