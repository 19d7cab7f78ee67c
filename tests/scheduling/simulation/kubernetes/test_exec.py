"""Commands in containers: over WebSockets as kubectl sends them, and what simulated containers understand."""

from __future__ import annotations

import json
from urllib.parse import urlencode

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from scheduling.simulation.kubernetes.kubelets.commands import ContainerView, run_command
from scheduling.simulation.machines.values import SignalTarget
from tests.patience import PATIENCE_S, until

from .make import pod
from .running import KubernetesProcess

PODS = "/api/v1/namespaces/default/pods"
STDOUT, STDERR, STATUS = 1, 2, 3
FIND_AND_KILL = (
    'for f in /proc/[0-9]*/environ; do grep -q "ACME_PROCESS_OF=$2" $f && kill -s "$1" "${f//[!0-9]/}"; done'
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with KubernetesProcess(tmp_path_factory.mktemp("exec"), "--nodes", "2") as process:
        yield process


@pytest.fixture(scope="module")
def training(cluster):
    hint = {"ACME_STACKS_SIGNAL": "USR2"}
    cluster.call("POST", PODS, pod(node="kalos-001", gpus=2, seconds=3600, env=hint))
    until(lambda: cluster.call("GET", f"{PODS}/train")["status"]["phase"] == "Running")
    return f"{PODS}/train"


def run(cluster, path, *words, protocols=("v4.channel.k8s.io",), token=None, origin=None, **query):
    """The subprotocol and the messages of one command, by channel."""
    options = {"stdout": "1", "stderr": "1", **query}
    address = f"{cluster.address.replace('http', 'ws')}{path}/exec?{urlencode(options)}&" + urlencode(
        [("command", word) for word in words]
    )
    headers = {"Authorization": f"Bearer {token or cluster.token}"}
    options = {"subprotocols": protocols or None, "additional_headers": headers, "origin": origin}
    with connect(address, open_timeout=PATIENCE_S, **options) as stream:
        found: dict[int, bytes] = {}
        for message in stream:
            found[message[0]] = found.get(message[0], b"") + message[1:]
        return stream.subprotocol, found


def refusal(cluster, path, *words, **more) -> tuple[int, str]:
    with pytest.raises(InvalidStatus) as caught:
        run(cluster, path, *words, **more)
    return caught.value.response.status_code, json.loads(caught.value.response.body)["message"]


def test_output_and_exit_status_come_in_their_channels(cluster, training):
    protocol, found = run(cluster, training, "sh", "-c", "echo hello; false")

    assert (protocol, found[STDOUT]) == ("v4.channel.k8s.io", b"hello\n")
    status = json.loads(found[STATUS])
    assert (status["status"], status["reason"]) == ("Failure", "NonZeroExitCode")
    assert status["details"]["causes"] == [{"reason": "ExitCode", "message": "1"}]
    assert json.loads(run(cluster, training, "true")[1][STATUS]) == {"metadata": {}, "status": "Success"}


def test_newest_protocol_is_chosen(cluster, training):
    protocol, found = run(cluster, training, "python3", protocols=("v4.channel.k8s.io", "v5.channel.k8s.io"))

    assert (protocol, found[STDERR]) == ("v5.channel.k8s.io", b"python3: not found\n")
    assert b"Failure" in found[STATUS]


def test_command_that_cannot_run_is_refused_before_the_upgrade(cluster, training):
    cluster.call("POST", PODS, pod("unplaced", schedulerName="acme"))

    assert refusal(cluster, f"{PODS}/missing", "true")[0] == 404
    assert refusal(cluster, training, "true", token="wrong") == (401, "Unauthorized")
    assert refusal(cluster, training) == (400, "you must specify at least one command for the container")
    assert refusal(cluster, training, "true", container="other")[0] == 400
    assert "does not have a host assigned" in refusal(cluster, f"{PODS}/unplaced", "true")[1]
    assert "negotiate protocol" in refusal(cluster, training, "true", protocols=("v9.example",))[1]
    assert "negotiate protocol" in refusal(cluster, training, "true", protocols=())[1]
    plain = cluster.client.get(f"{training}/exec", params={"command": "true"})
    assert (plain.status_code, plain.json()["message"]) == (400, "Upgrade request required")


def test_web_pages_of_other_servers_may_not_run_commands(cluster, training):
    assert refusal(cluster, training, "true", origin="http://evil.example")[0] == 403
    assert STATUS in run(cluster, training, "true", origin=cluster.address)[1]


def test_role_without_exec_may_not_run_commands(cluster, training):
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["*"]}
    group = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"}
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": "default"}
    cluster.call("POST", f"{group}/roles", {"metadata": {"name": "reader"}, "rules": [rule]})
    binding = {"metadata": {"name": "reader"}, "roleRef": reference, "subjects": [subject]}
    cluster.call("POST", f"{group}/rolebindings", binding)
    account = "/api/v1/namespaces/default/serviceaccounts/default/token"
    token = cluster.call("POST", account, {"spec": {}})["status"]["token"]

    status, message = refusal(cluster, training, "true", token=token)

    assert (status, 'cannot get resource "pods/exec"' in message) == (403, True)


def test_stacks_of_a_hanging_program_are_printed_at_its_signal(cluster, training):
    cluster.call("POST", "/faults", {"kind": "hang", "pod": "default/train"})

    def log_after_signal() -> str:
        run(cluster, training, "sh", "-c", FIND_AND_KILL, "sh", "USR2", "key")
        return cluster.client.get(f"{training}/log").text

    log = until(lambda: log if "stacks of rank 0" in (log := log_after_signal()) else None)
    assert "[rank0]: stacks of rank 0" in log and "[rank1]: stacks of rank 1" in log


def test_signal_ends_the_program_as_a_process_ends(cluster):
    cluster.call("POST", PODS, pod("ended", node="kalos-002", seconds=3600))
    until(lambda: cluster.call("GET", f"{PODS}/ended")["status"]["phase"] == "Running")

    run(cluster, f"{PODS}/ended", "kill", "-s", "TERM", "7")

    until(lambda: cluster.call("GET", f"{PODS}/ended")["status"]["phase"] == "Failed")
    state = cluster.call("GET", f"{PODS}/ended")["status"]["containerStatuses"][0]["state"]["terminated"]
    assert state["exitCode"] == 143
    assert "completed pod; current phase is Failed" in refusal(cluster, f"{PODS}/ended", "true")[1]


VIEW = ContainerView(hostname="gang-1", environment={"NODE_RANK": "1"}, gpus=[(4, "GPU-a"), (5, "GPU-b")], model="h100")


@pytest.mark.parametrize(
    ("words", "signals"),
    [
        (["kill", "-s", "USR1", "12"], [(10, SignalTarget.ALL)]),
        (["kill", "-10", "7"], [(10, SignalTarget.SHELL)]),
        (["/bin/sh", "-c", FIND_AND_KILL, "sh", "TERM", "key"], [(15, SignalTarget.ALL)]),
        (["sh", "-c", 'kill -s USR2 "$(cat /tmp/acme-1.2-0.pid)"'], [(12, SignalTarget.SHELL)]),
        (["bash", "-c", 'name=USR1\nkill -s "$name" 7'], [(10, SignalTarget.ALL)]),
        (["sh", "-c", "kill -0 7"], []),
        (["sh", "-c", "kill -s NOPE 7"], []),
    ],
    ids=["name", "number", "marker", "pid file", "variable", "existence", "unknown"],
)
def test_signals_of_a_command(words, signals):
    assert list(run_command(words, VIEW).signals) == signals


@pytest.mark.parametrize(
    ("words", "output"),
    [
        (["hostname"], "gang-1\n"),
        (["printenv", "NODE_RANK"], "1\n"),
        (["sh", "-c", 'echo "rank $NODE_RANK" 2>/dev/null && hostname'], "rank 1\ngang-1\n"),
        (["cat", "/tmp/acme-1.2-0.pid"], "7\n"),
        (["nvidia-smi", "-L"], "GPU 0: NVIDIA H100 (UUID: GPU-a)\nGPU 1: NVIDIA H100 (UUID: GPU-b)\n"),
    ],
)
def test_output_of_a_command(words, output):
    assert run_command(words, VIEW).stdout == output
