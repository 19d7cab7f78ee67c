"""No test patches our own code: dependencies are passed as arguments, or the situation is real."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from acmeweb.common.env import ROOT

OURS = ("acmeweb", "jobs", "failures", "scheduling", "acme_client")

# The rest of a call's name after `monkeypatch.`, `mock.` or nothing
PATCHING_CALL = re.compile(r"(.*\.)?(set|del)(attr|item)|(.*\bmock\.|mocker\.)?patch(\.object|\.dict|\.multiple)?")


def patches_of_our_code(text: str) -> Iterator[int]:
    """Yield the lines that replace a part of a module or class of ours, by a call or by an assignment."""
    tree = ast.parse(text)
    origins = imported_names(tree)
    for node in ast.walk(tree):
        if any(is_ours(target, origins) for target in patched_targets(node)):
            yield node.lineno  # type: ignore[attr-defined]


def patched_targets(node: ast.AST) -> list[ast.expr]:
    """Return whose attributes or items the node replaces."""
    if isinstance(node, ast.Call):
        return node.args[:1] if PATCHING_CALL.fullmatch(ast.unparse(node.func)) else []
    if isinstance(node, ast.Assign | ast.Delete):
        changed = node.targets
    else:
        changed = [node.target] if isinstance(node, ast.AugAssign | ast.AnnAssign) else []
    return [target.value for target in changed if isinstance(target, ast.Attribute | ast.Subscript)]


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


def test_no_test_patches_our_code():
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in files_of_tests()
        for line in patches_of_our_code(path.read_text())
    ]

    assert not found, "\n".join(found)


def files_of_tests() -> list[Path]:
    return sorted((ROOT / "tests").rglob("*.py"))
