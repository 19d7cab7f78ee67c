"""Starts a real Kubernetes control plane on this host. Tests are skipped where it is missing.

The programs that start it are not part of this repository: `k8s_up.sh -n NODES -g GPUS -d DIRECTORY` starts a cluster,
and `k8s_down.sh -d DIRECTORY` removes it. Put their directory on the PATH to run these tests.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.servers import NO_KUBERNETES

START_TIMEOUT_S = 240


@contextmanager
def started_or_skipped(directory: Path, *options: str) -> Iterator[None]:
    """Run a cluster in the directory, with the options of `k8s_up.sh`."""
    if not (shutil.which("k8s_up.sh") and shutil.which("k8s_down.sh")):
        pytest.skip(f"{NO_KUBERNETES}: k8s_up.sh is not on the PATH")
    try:
        run_program("k8s_up.sh", *options, "-d", str(directory))
        yield
    finally:
        run_program("k8s_down.sh", "-d", str(directory))


def run_program(*words: str, text: str | None = None) -> str:
    done = subprocess.run(words, input=text, capture_output=True, text=True, timeout=START_TIMEOUT_S)
    assert done.returncode == 0, f"{words}: {done.stdout[-500:]}{done.stderr[-500:]}"
    return done.stdout
