"""Pods as real processes of this machine: commands, logs, signals, ends, and a server that is killed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.patience import until

from .running import KubernetesProcess
from .test_exec import STATUS, STDERR, STDOUT, run

PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with KubernetesProcess(tmp_path_factory.mktemp("execute"), "--nodes", "2", "--execute") as process:
        yield process
        process.call("DELETE", PODS, gracePeriodSeconds="0")
        until(lambda: not list((process.state / "pods").iterdir()))  # their processes would outlive the server


def pod(name: str, script: str, *, env: dict[str, str] | None = None, **spec) -> dict:
    variables: list[dict] = [{"name": name, "value": value} for name, value in (env or {}).items()]
    node = {"name": "SLURMD_NODENAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    container = {"name": "job", "image": "any", "command": ["/bin/bash", "-c", script], "env": [*variables, node],
                 "resources": {"limits": {"nvidia.com/gpu": "2"}}}  # fmt: skip
    return {"metadata": {"name": name}, "spec": {"nodeName": "kalos-001", "restartPolicy": "Never",
                                                 "containers": [container], **spec}}  # fmt: skip


def start(cluster, name: str, script: str, **more) -> str:
    cluster.call("POST", PODS, pod(name, script, **more))
    return f"{PODS}/{name}"


def phase(cluster, path: str) -> str:
    return cluster.call("GET", path)["status"]["phase"]


def ended(cluster, path: str) -> dict:
    until(lambda: phase(cluster, path) in ("Succeeded", "Failed"))
    return cluster.call("GET", path)["status"]["containerStatuses"][0]["state"]["terminated"]


def log(cluster, path: str, **query: str) -> str:
    return cluster.client.get(f"{path}/log", params=query).text


def test_script_runs_with_its_variables_and_prints_into_the_log(cluster):
    script = (
        'echo "$GREETING from $SLURMD_NODENAME on $CUDA_VISIBLE_DEVICES, $$(echo twice)"; printf unfinished; exit 3'
    )
    path = start(cluster, "greets", script, env={"WHO": "you", "GREETING": "hello $(WHO)"})

    assert ended(cluster, path)["exitCode"] == 3
    # As kubelets do, $$ becomes $ before bash sees the script
    first, last = log(cluster, path).splitlines()
    assert re.fullmatch(r"hello you from kalos-001 on \d,\d, twice", first) and last == "unfinished"


def test_term_reaches_the_main_process_only_and_kill_follows_after_the_grace_period(cluster):
    script = 'trap "echo got TERM; sleep 600 & wait" TERM; echo ready; while :; do sleep 0.1; done'
    path = start(cluster, "stubborn", script, terminationGracePeriodSeconds=2)
    until(lambda: "ready" in log(cluster, path))

    cluster.call("DELETE", path)

    until(lambda: cluster.get_or_none(path) is None or "got TERM" in log(cluster, path))
    until(lambda: cluster.get_or_none(path) is None)


def test_command_beside_the_program_sees_its_variables_and_files(cluster):
    script = 'trap "echo saved; exit 7" USR1; echo $$ >"$TMPDIR/main.pid"; while :; do sleep 0.1; done'
    path = start(cluster, "beside", script.replace("$$", "$$$$"), env={"MARK": "mine"})
    until(lambda: phase(cluster, path) == "Running")
    pid_is_there = 'until [ -s "$TMPDIR/main.pid" ]; do sleep 0.05; done'

    signal = 'kill -s USR1 "$(cat $TMPDIR/main.pid)"'

    found = run(cluster, path, "sh", "-c", f'{pid_is_there}; echo "$MARK"; echo no >&2; {signal}')[1]

    assert (found[STDOUT], found[STDERR]) == (b"mine\n", b"no\n")
    assert (ended(cluster, path)["exitCode"], "saved" in log(cluster, path)) == (7, True)


def test_command_that_does_not_exist_is_not_found(cluster):
    path = start(cluster, "waits", "sleep 600")
    until(lambda: phase(cluster, path) == "Running")

    status = json.loads(run(cluster, path, "no-such-program")[1][STATUS])

    assert status["details"]["causes"] == [{"reason": "ExitCode", "message": "127"}]


def test_machine_that_goes_down_kills_its_processes(cluster, tmp_path):
    written = tmp_path / "pid"
    path = start(cluster, "lost", f"echo $$$$ >{written}; sleep 600; true", nodeName="kalos-002")
    pid = until(lambda: written.exists() and written.read_text().strip())

    cluster.call("POST", "/machines/kalos-002", {"action": "power-off"})
    until(lambda: not Path(f"/proc/{pid}").exists())
    cluster.call("POST", "/machines/kalos-002", {"action": "repair"})

    assert ended(cluster, path)["exitCode"] == 137


def test_killed_server_adopts_its_processes_and_loses_no_line(tmp_path):
    script = 'for i in $(seq 1 40); do echo "line $i"; sleep 0.05; done'
    with KubernetesProcess(tmp_path / "kalos", "--nodes", "1", "--execute") as process:
        process.call("POST", PODS, pod("counts", script.replace("$(", "$$(")))
        path = f"{PODS}/counts"
        until(lambda: "line 5" in log(process, path))

        process.kill()
        process.start()

        assert ended(process, path)["exitCode"] == 0
        assert log(process, path).splitlines() == [f"line {i}" for i in range(1, 41)]
