"""The web server of a container: as many processes as with `make up`, under one parent that can be stopped."""

import os
import signal
import subprocess
import sys
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

from acmeweb.common.env import ROOT, EnvReader, InvalidEnvSetting, web_processes
from acmeweb.services import ports
from tests.patience import PATIENCE_S, until

pytestmark = pytest.mark.xdist_group("servers")


def children(pid):
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def serves(pid):
    """Return the worker processes, without the parent and helpers of multiprocessing."""
    with suppress(OSError):
        return "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()


def test_a_process_for_each_core_and_one_signal_that_ends_them_all():
    port = ports.pick()
    environment = {**os.environ, "SECRET_KEY": "x" * 50, "ACME_WEB_PROCESSES": "2"}
    words = [sys.executable, "-m", "acmeweb.services.web", f"--port={port}", "--per-core"]
    with subprocess.Popen(words, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL) as parent:
        try:
            until(lambda: answers(port))
            serving = [pid for pid in children(parent.pid) if serves(pid)]
            parent.send_signal(signal.SIGTERM)
            assert parent.wait(timeout=PATIENCE_S) in (0, -signal.SIGTERM)
        finally:
            parent.kill()

    assert len(serving) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in serving)


def answers(port):
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=PATIENCE_S) as answer:
        return answer.status == 200


def test_number_of_web_processes_is_the_same_everywhere():
    assert web_processes(EnvReader({"ACME_WEB_PROCESSES": "7"})) == 7
    assert 1 <= web_processes(EnvReader({})) <= 4
    with pytest.raises(InvalidEnvSetting, match="ACME_WEB_PROCESSES"):
        web_processes(EnvReader({"ACME_WEB_PROCESSES": "0"}))
