"""Pure modules import without Django. The list is the one in pyproject.toml that mypy is strict about."""

import subprocess
import sys
import tomllib

import pytest

from acmeweb.env import ROOT
from tests.patience import PATIENCE_S

BLOCKED = ("django", "rest_framework", "channels", "celery", "redis", "httpx", "psycopg")

IMPORT = f"""
import importlib, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {BLOCKED!r}:
            raise ImportError(f"{{name}} is not for pure modules")

sys.meta_path.insert(0, Blocker())
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def listed():
    overrides = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["overrides"]
    return [name for override in overrides if "disallow_untyped_defs" in override for name in override["module"]]


def modules(name):
    """The module, or for `package.*` everything in the package. Nothing for what is not written yet."""
    if name.endswith(".*"):
        package = ROOT / name.removesuffix(".*").replace(".", "/")
        return sorted(name.removesuffix("*") + path.stem for path in package.glob("[!_]*.py"))
    path = ROOT / name.replace(".", "/")
    return [name] if path.with_suffix(".py").exists() or (path / "__init__.py").exists() else []


def test_there_is_a_list():
    assert "jobs.lifecycle" in listed()


@pytest.mark.parametrize("module", [module for name in listed() for module in modules(name)])
def test_it_imports_without_django_and_without_a_network(module):
    done = subprocess.run(
        [sys.executable, "-c", IMPORT, module], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S
    )

    assert done.returncode == 0, done.stderr
