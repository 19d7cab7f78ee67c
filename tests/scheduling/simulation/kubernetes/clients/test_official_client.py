"""The official Python client reads and drives the simulated cluster.

The client brings some twenty packages, which nothing else here needs. So it is no dependency: the test runs where
KUBERNETES_CLIENT_PYTHON names an interpreter that has it (`pip install kubernetes` in an environment of its own).
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.servers import NO_OFFICIAL_CLIENT

from ..running import KubernetesProcess

VARIABLE = "KUBERNETES_CLIENT_PYTHON"
PYTHON = os.environ.get(VARIABLE, "")
PROGRAM = Path(__file__).with_name("official_client.py")


@pytest.mark.skipif(not PYTHON, reason=NO_OFFICIAL_CLIENT)
def test_official_client_drives_a_gang(tmp_path):
    with KubernetesProcess(tmp_path / "kalos", "--nodes", "2", "--tls") as process:
        kubeconfig = process.state / "kubeconfig"
        done = subprocess.run(
            [PYTHON, str(PROGRAM), str(kubeconfig)], capture_output=True, text=True, timeout=3 * PATIENCE_S
        )
        assert done.returncode == 0, done.stderr
        seen = json.loads(done.stdout)

    assert (seen["version"], seen["nodes"], seen["page"]) == ("v1.33.4-simulated", ["kalos-001", "kalos-002"], 1)
    assert (len(seen["gated"]), seen["indexes"], seen["printed"]) == (2, ["0", "1"], "index 1\n")
    assert "2 ranks on 2 nodes: kalos-001, kalos-002" in seen["log"]
    assert {"Pulled", "Created", "Started"} <= set(seen["events"])
    assert (seen["budgets"], seen["end"]) == (0, "BackoffLimitExceeded")
