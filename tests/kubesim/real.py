"""A real Kubernetes control plane on this host, to compare answers with. Tests are skipped where it is missing.

The programs that start it are not part of this repository.
"""

from __future__ import annotations

import base64
import os
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import yaml

from acmeweb.common.env import ROOT
from tests.patience import PATIENCE_S
from tests.servers import NO_KUBERNETES

PROGRAMS = (ROOT / "../shared/bin", ROOT / "../../shared/bin")
DEFAULT_HOME = "/var/tmp/acme-k8s"
NODES, GPUS = 2, 8


def programs() -> Path | None:
    """The directory of the programs that start a cluster, if they and what they start are there."""
    built = (Path(os.environ.get("K8S_HOME", DEFAULT_HOME)) / "bin" / ".built").exists()
    return next((path for path in PROGRAMS if built and (path / "k8s_up.sh").exists()), None)


@contextmanager
def started_or_skipped(home: Path) -> Iterator[httpx.Client]:
    """Requests of the administrator to a real cluster of two nodes."""
    found = programs()
    if found is None:
        pytest.skip(f"{NO_KUBERNETES} (K8S_HOME, k8s_up.sh)")
    try:
        _run(str(found / "k8s_up.sh"), "-n", str(NODES), "-g", str(GPUS), "-G", "60", "-d", str(home / "real"))
        with _client(home) as client:
            yield client
    finally:
        _run(str(found / "k8s_down.sh"), "-d", str(home / "real"))


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, f"{words}: {done.stdout[-500:]}{done.stderr[-500:]}"


def _client(home: Path) -> httpx.Client:
    config = yaml.safe_load((home / "real" / "kubeconfig").read_text())
    user, cluster = config["users"][0]["user"], config["clusters"][0]["cluster"]
    files = {"ca.crt": cluster["certificate-authority-data"], "client.crt": user["client-certificate-data"],
             "client.key": user["client-key-data"]}  # fmt: skip
    for name, text in files.items():
        (home / name).write_bytes(base64.b64decode(text))
    context = ssl.create_default_context(cafile=str(home / "ca.crt"))
    context.load_cert_chain(str(home / "client.crt"), str(home / "client.key"))
    return httpx.Client(base_url=cluster["server"], verify=context, timeout=PATIENCE_S)
