"""The all-gather between nodes, run for real: one process per node on this machine."""

import json
import os
import socket
import subprocess
import sys
from contextlib import closing, contextmanager

import pytest

from acmeweb.common.env import ROOT
from tests.patience import PATIENCE_S

PROGRAM = str(ROOT / "scheduling" / "checks" / "world.py")

# What the processes of a test find: torch too, where a build of it lies beside the other packages.
ENVIRONMENT = {"PATH": os.environ["PATH"], "PYTHONPATH": os.environ.get("TORCH_AT", "")}


def free_port():
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def started(port, rank, size=2, *more, key="k"):
    words = [sys.executable, PROGRAM, "--rank", str(rank), "--size", str(size), "--master", f"127.0.0.1:{port}"]
    environment = ENVIRONMENT | {"ACME_TEST_KEY": key}
    with subprocess.Popen(
        [*words, "--mib", "2.5", *more], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def answer(process):
    said, errors = process.communicate(timeout=PATIENCE_S)
    assert not errors, errors
    assert said.count("\n") == 1
    return json.loads(said) | {"code": process.returncode}


def together(size, *more):
    port = free_port()
    if size == 2:
        with started(port, 1, 2, *more) as first, started(port, 0, 2, *more) as second:
            return [answer(second), answer(first)]
    with started(port, 2, 3, *more) as a, started(port, 1, 3, *more) as b, started(port, 0, 3, *more) as c:
        return [answer(c), answer(b), answer(a)]


@pytest.mark.parametrize("size", [2, 3])
def test_processes_that_reach_each_other_pass(size):
    answers = together(size, "--how", "tcp")

    assert [(one["passed"], one["code"], one["rank"], one["how"]) for one in answers] == [
        (True, 0, rank, "tcp") for rank in range(size)
    ]
    assert all(one["gbps"] > 0 and one["bytes"] == 2.5 * (1 << 20) and not one["why"] for one in answers)


def torch_is_found():
    """Asked of a process like the test's own: this one may have gained search paths that its children do not have."""
    ask = [sys.executable, "-c", "import torch.distributed"]
    return subprocess.run(ask, env=ENVIRONMENT, capture_output=True, timeout=PATIENCE_S).returncode == 0


def test_torch_is_used_if_it_is_installed():
    ways = {"gloo", "nccl"} if torch_is_found() else {"tcp"}

    assert {(one["passed"], one["how"] in ways) for one in together(2)} == {(True, True)}


def test_slow_network_fails_the_test():
    answers = together(2, "--how", "tcp", "--expect-gbps", "900000")

    assert [one["code"] for one in answers] == [1, 1]
    assert "less than 50% of the expected 900000" in answers[0]["why"]


@pytest.mark.parametrize(("rank", "why"), [(0, "1 of 1 peers did not connect"), (1, "cannot be reached")])
def test_missing_peer_fails_the_test_in_time(rank, why):
    with started(free_port(), rank, 2, "--how", "tcp", "--patience", "1") as alone:
        found = answer(alone)

    assert found["code"] == 1 and why in found["why"]


def test_process_with_another_key_is_not_a_peer():
    port = free_port()
    tcp = ("--how", "tcp", "--patience", "2")

    with started(port, 0, 2, *tcp) as hub, started(port, 1, 2, *tcp, key="another") as stranger:
        assert [answer(hub)["code"], answer(stranger)["code"]] == [1, 1]


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (["--rank", "x"], "--rank"),
        (["--rank", "2"], "--rank"),
        (["--size", "1"], "--size"),
        (["--master", "host:99999"], "--master"),
        (["--mib", "-1"], "--mib"),
        (["--mib", "nan"], "--mib"),
        (["--patience", "0"], "--patience"),
        (["--how", "pigeon"], "--how"),
    ],
)
def test_a_wrong_start_names_the_argument(words, field):
    with started(1, 0, 2, *words) as process:
        found = answer(process)

    assert found["code"] == 2 and field in found["why"]


def test_variables_of_slurm_are_used():
    environment = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    done = subprocess.run(
        [sys.executable, PROGRAM, "--how", "tcp", "--patience", "1"], env=environment, capture_output=True, text=True
    )

    found = json.loads(done.stdout)
    assert done.returncode == 1 and (found["rank"], found["size"]) == (0, 2)
