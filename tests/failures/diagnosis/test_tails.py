"""Hundreds of short ends of logs, written before the table had seen them: each gets the label of a careful reader."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest

from failures.diagnosis.engine import diagnose_text
from failures.diagnosis.labels import LABELS, NONE, UNKNOWN
from failures.diagnosis.values import FailureCategory

SECTION = re.compile(r"(?m)^### (\S+) \| (.+)\n")


def tails() -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    parts = SECTION.split(Path(__file__).with_name("tails.txt").read_text(encoding="utf-8"))
    for label, story, log in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        found[label].append((story, log))
    return found


TAILS = tails()


def test_each_label_has_tails() -> None:
    assert set(TAILS) == set(LABELS)


@pytest.mark.parametrize("label", sorted(TAILS))
def test_tail_gets_the_label_of_its_cause(label: str) -> None:
    told = {story: diagnose_text(log).root_cause for story, log in TAILS[label]}

    assert {story: one for story, one in told.items() if one != label} == {}


def test_infrastructure_tail_is_not_blamed_on_the_user() -> None:
    broken = [log for label, rows in TAILS.items() for _, log in rows
              if LABELS[label].category is FailureCategory.INFRASTRUCTURE]  # fmt: skip

    assert {diagnose_text(log).category for log in broken} == {FailureCategory.INFRASTRUCTURE}


RECORD = "NVRM: Xid (PCI:0000:3b:00): 63, pid=1, name=python, Row Remapper: New row marked for remapping\n"
RETRY = "ERROR store: attempt 1/5 failed: botocore.exceptions.ReadTimeoutError, retrying in 2 s\n"
WORK = "step 12 loss 1.2\nstep 13 loss 1.1\n"


@pytest.mark.parametrize("error_line", [RECORD, RETRY])
def test_progress_after_a_recorded_or_retried_error_disproves_it(error_line: str) -> None:
    assert diagnose_text(error_line + WORK).root_cause == NONE


def test_progress_of_another_rank_does_not_disprove_a_broken_link() -> None:
    link = "NVRM: Xid (PCI:0000:3b:00): 74, pid=1, name=python, NVLink: fatal error detected on link 3\n"

    assert diagnose_text(link + WORK).root_cause == "NVLinkError"


def test_failed_build_alone_has_no_cause() -> None:
    assert diagnose_text("make: *** [Makefile:9: train] Error 1\n").root_cause == UNKNOWN


def test_class_from_an_errors_module_is_an_exception_without_a_traceback() -> None:
    assert diagnose_text("someconf.errors.MissingMandatoryValue: data.path\n").root_cause == "ArgumentError"
    assert diagnose_text("someconf.parts.MissingMandatoryValue: data.path\n").root_cause != "ArgumentError"
