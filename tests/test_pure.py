"""Pure modules import without Django. The list is the one in pyproject.toml that mypy is strict about."""

import json
import subprocess
import sys
import tomllib

import pytest

from acmeweb.common.env import ROOT

BLOCKED = ("django", "rest_framework", "channels", "celery", "redis", "httpx", "psycopg")

# Python and numpy start once; each module is imported in a fork that has not imported any of ours
IMPORTER = f"""
import importlib, json, os, sys, traceback
import numpy

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {BLOCKED!r}:
            raise ImportError(f"{{name}} is not for pure modules")

sys.meta_path.insert(0, Blocker())
for line in sys.stdin:
    if not (child := os.fork()):
        try:
            importlib.import_module(line.strip())
            said = ""
        except BaseException:
            said = traceback.format_exc()
        print(json.dumps(said), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


def listed():
    overrides = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["overrides"]
    return [name for override in overrides if "disallow_untyped_defs" in override for name in override["module"]]


def modules(name):
    """Return the module, or for `package.*` all modules in and below the package; empty if it does not exist."""
    if name.endswith(".*"):
        package = ROOT / name.removesuffix(".*").replace(".", "/")
        return sorted(str(path.relative_to(ROOT))[:-3].replace("/", ".") for path in package.rglob("[!_]*.py"))
    path = ROOT / name.replace(".", "/")
    return [name] if path.with_suffix(".py").exists() or (path / "__init__.py").exists() else []


def test_list_of_pure_modules_is_not_empty():
    assert "jobs.core.*" in listed()


@pytest.fixture(scope="module")
def importer():
    words = [sys.executable, "-c", IMPORTER]
    with subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process


def imported(importer, module):
    """Return the error; empty if there was none."""
    print(module, file=importer.stdin, flush=True)
    return json.loads(importer.stdout.readline())


@pytest.mark.parametrize("module", sorted({module for name in listed() for module in modules(name)}))
def test_pure_module_imports_without_django_and_network(importer, module):
    assert imported(importer, module) == ""


def test_module_with_django_is_detected(importer):
    assert "django is not for pure modules" in imported(importer, "jobs.actions.jobs")


def test_coverage_measures_every_pure_module():
    measured = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["coverage"]["run"]["source_pkgs"]
    names = [name.removesuffix(".*") for name in listed()]

    assert all(any(f"{name}.".startswith(f"{package}.") for package in measured) for name in names)
    assert set(measured) <= set(names)
