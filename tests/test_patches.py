"""Tests pass dependencies as arguments; the number of places that still patch our own code may only fall."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from acmeweb.common.env import ROOT

OURS = ("acmeweb", "jobs", "failures", "scheduling", "acme_client")
REMAINING = 10


def patches_of_our_code(text: str) -> Iterator[int]:
    """Yield the lines of `monkeypatch.setattr` whose target is a module or class of ours."""
    tree = ast.parse(text if "monkeypatch.setattr" in text else "")
    origins = imported_names(tree)
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    for call in calls:
        if getattr(call.func, "attr", "") == "setattr" and is_ours(call.args[0], origins):
            yield call.lineno


def imported_names(tree: ast.AST) -> dict[str, str]:
    """Return the module or member that each imported name stands for."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.asname or alias.name.split(".")[0]: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return found


def is_ours(target: ast.expr, origins: dict[str, str]) -> bool:
    """Whether the target belongs to our packages. A module of the standard library that ours imports does not."""
    if isinstance(target, ast.JoinedStr):
        return True  # its value is unknown here
    if isinstance(target, ast.Constant):
        return str(target.value).split(".")[0] in OURS
    first, *rest = ast.unparse(target).split(".")
    if rest and rest[-1] in sys.stdlib_module_names:
        return False
    return origins.get(first, first).split(".")[0] in OURS


@pytest.mark.parametrize(
    ("patch", "counts"),
    [
        ("from jobs.models import clock\nmonkeypatch.setattr(clock, 'now', f)", True),
        ("from jobs.models import clock as c\nmonkeypatch.setattr(c.zone, 'now', f)", True),
        ("import jobs.models\nmonkeypatch.setattr(jobs.models.Job, 'save', f)", True),
        ("monkeypatch.setattr('acme_client.api.PAGE_SIZE', 2)", True),
        ("monkeypatch.setattr(f'{name}.PAGE_SIZE', 2)", True),
        ("from jobs.rest import throttle\nmonkeypatch.setattr(throttle.time, 'time', f)", False),
        ("import os\nmonkeypatch.setattr(os, 'getpid', f)", False),
        ("monkeypatch.setattr('time.sleep', f)", False),
        ("monkeypatch.setenv('ACME_URL', '')", False),
    ],
)
def test_patch_counts_if_its_target_is_our_code(patch, counts):
    assert bool(list(patches_of_our_code(patch))) is counts


def test_no_more_patches_of_our_code_than_remain():
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in files_of_tests()
        for line in patches_of_our_code(path.read_text())
    ]

    assert len(found) <= REMAINING, "\n".join(found)


def files_of_tests() -> list[Path]:
    return sorted((ROOT / "tests").rglob("*.py"))
