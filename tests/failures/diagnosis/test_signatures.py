"""The table: each signature finds its own example, and the example alone gets its label."""

from __future__ import annotations

import dataclasses
import re
import time

import pytest

from failures.diagnosis import scan
from failures.diagnosis.engine import diagnose_text
from failures.diagnosis.labels import LABELS, NONE, UNKNOWN
from failures.diagnosis.signatures import Signature, cause
from failures.diagnosis.table import SIGNATURES, exceptions
from failures.diagnosis.values import LineRole

QUIET = (LineRole.BENIGN, LineRole.TEARDOWN, LineRole.PLACE)
names = pytest.mark.parametrize("signature", SIGNATURES, ids=lambda signature: signature.name)


@names
def test_signature_matches_its_own_example(signature: Signature) -> None:
    scanner = scan.shipped_scanner()

    found = {scanner.signatures[index].name for _, index in scanner.hits(signature.example.encode())}

    assert signature.name in found


@names
def test_example_alone_gets_the_label_of_its_signature(signature: Signature) -> None:
    diagnosis = diagnose_text(signature.example)

    if signature.role in QUIET:
        assert diagnosis.root_cause in (NONE, UNKNOWN)
    elif signature.label:
        assert diagnosis.root_cause == signature.label


@names
def test_signature_fields_are_valid(signature: Signature) -> None:
    assert signature.label in LABELS or signature.label == ""
    assert 0 <= signature.specificity <= 100
    assert len(signature.example) > 10
    assert re.compile(signature.unless)


def test_signature_names_are_unique() -> None:
    assert len({signature.name for signature in SIGNATURES}) == len(SIGNATURES)


def test_each_label_of_the_failure_table_has_a_signature() -> None:
    reachable = (
        {signature.label for signature in SIGNATURES} | set(exceptions.LABELS_BY_NAME.values()) | {NONE, UNKNOWN}
    )

    assert set(LABELS) <= reachable


def test_invalid_pattern_is_named() -> None:
    bad = cause("look-ahead", "RuntimeError", 50, r"error(?=\d)", "error1")

    with pytest.raises(scan.InvalidPattern, match="pattern of look-ahead"):
        scan.Scanner([SIGNATURES[0], bad])


def test_version_depends_on_all_rules() -> None:
    changed = dataclasses.replace(SIGNATURES[0], specificity=1)

    assert scan.signatures_version(SIGNATURES) == scan.signatures_version(tuple(SIGNATURES))
    assert scan.signatures_version((changed, *SIGNATURES[1:])) != scan.signatures_version(SIGNATURES)


def test_patterns_take_linear_time() -> None:
    """What makes a backtracking engine explode costs this one a moment."""
    scanner = scan.Scanner([cause("evil", "RuntimeError", 50, r"(?:a+)+b", "aab")])
    began = time.process_time()

    scanner.hits(b"a" * 1_000_000)

    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    ("message", "label"),
    [
        ("ValueError: heads must divide", "ValueError"),
        ("pkg.errors.TernKeyError: 'x'", "KeyError"),
        ("OSError: [Errno 28] No space left on device", "DiskFull"),
        ("OSError: [Errno 13] Permission denied: '/x'", "PermissionError"),
        ("IsADirectoryError: [Errno 21] Is a directory: '/x'", "OSError"),
        ("ray.exceptions.RayTaskError(ValueError): worker()", "ValueError"),
        ("KeyError: Caught KeyError in DataLoader worker process 0.", "KeyError"),
        ("IndentationError: unexpected indent", "SyntaxError"),
        ("UnboundLocalError: x", "NameError"),
        ("TernSpecificError: no idea", "RuntimeError"),
    ],
)
def test_exception_gets_the_label_of_its_name(message: str, label: str) -> None:
    named = exceptions.match_exception(message)

    assert named is not None
    assert named[0] == label


@pytest.mark.parametrize("message", ["no Errors here", "ChildFailedError:", "an error occurred", "myValueErrors: 3"])
def test_words_and_wrappers_are_not_exceptions(message: str) -> None:
    assert exceptions.match_exception(message) is None
