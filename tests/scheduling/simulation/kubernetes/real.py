"""Requests to a real Kubernetes control plane on this host, to compare answers with."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import yaml

from tests import real_kubernetes
from tests.patience import PATIENCE_S

OPTIONS = ("-n", "2", "-g", "8", "-G", "60")


@contextmanager
def started_or_skipped(home: Path) -> Iterator[httpx.Client]:
    """Requests of the administrator to a real cluster of two nodes."""
    with real_kubernetes.started_or_skipped(home / "real", *OPTIONS), _client(home) as client:
        yield client


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
