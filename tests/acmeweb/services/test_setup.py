"""setup.sh on machines that lack something: one sentence each, and no partial result."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from acmeweb.common.env import ROOT
from tests.patience import PATIENCE_S

TOOLS = ("sh", "dirname", "cat", "cksum", "df", "awk", "grep", "rm", "mv")
NEEDED = ("requirements-uv.lock", "requirements-dev.lock", "client/pyproject.toml", "acmeweb/services/setup.sh")


@pytest.fixture
def checkout(tmp_path):
    for name in NEEDED:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


@pytest.fixture
def path(tmp_path):
    """A PATH with a few tools and without Python."""
    directory = tmp_path / "bin"
    directory.mkdir()
    for tool in TOOLS:
        (directory / tool).symlink_to(shutil.which(tool))
    return directory


def put(directory: Path, name: str, text: str):
    (directory / name).unlink(missing_ok=True)
    (directory / name).write_text(f"#!/bin/sh\n{text}\n")
    (directory / name).chmod(0o755)


def setup(checkout, path, **environment):
    words = ["/bin/sh", str(checkout / "acmeweb/services/setup.sh")]
    environment = {"PATH": str(path), "HOME": str(checkout), **environment}
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)


def refused(done, sentence):
    assert done.returncode == 1
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


def test_missing_python_is_reported(checkout, path):
    refused(setup(checkout, path), "Acme needs Python 3.11 or newer")


def test_broken_python_shim_is_skipped(checkout, path):
    put(path, "python3.13", "echo 'pyenv: version 3.13 is not installed' >&2; exit 127")
    put(path, "python3", "exit 1")

    refused(setup(checkout, path), "Acme needs Python 3.11 or newer")


def test_unusable_chosen_python_is_reported(checkout, path):
    refused(setup(checkout, path, PYTHON="/no/such/python"), "PYTHON=/no/such/python is not a working Python 3.11")


def test_python_without_ensurepip_is_reported(checkout, path):
    put(path, "python3.13", "exit 127")
    put(path, "python3.11", f'case "$*" in *ensurepip*) exit 1;; esac; exec {sys.executable} "$@"')

    refused(setup(checkout, path), "its modules venv and ensurepip are missing")
    assert not (checkout / ".venv").exists()


def test_nearly_full_disk_stops_the_setup(checkout, path):
    put(path, "python3.11", f'exec {sys.executable} "$@"')
    put(path, "df", "echo header; echo /dev/x 1 1 1000000 99% /")

    refused(setup(checkout, path), "Acme needs 1.5 GiB of free disk")
    assert not (checkout / ".venv").exists()


def test_interrupted_setup_starts_again(checkout, path):
    """Without the stamp, .venv is not trusted: here it is incomplete, and the set-up proceeds to pip."""
    put(path, "python3.11", f'case "$*" in *"-m venv"*) exit 1;; esac; exec {sys.executable} "$@"')
    (checkout / ".venv" / "lib" / "half").mkdir(parents=True)

    done = setup(checkout, path)

    assert "could not make a virtual environment" in done.stderr
    assert not (checkout / ".venv" / "lib").exists()
