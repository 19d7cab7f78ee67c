"""Connection tests: each step against a real endpoint, and the message for each failure."""

from __future__ import annotations

import base64
import json
import socket
import tempfile
from contextlib import closing
from datetime import UTC, datetime

import pytest

from acmeweb.common import http_client
from jobs.core.lifecycle import NodeState
from jobs.logs.allowed_paths import AllowedPaths
from scheduling.backends.base import BackendNode, ClusterUnreachable, PingReply
from scheduling.backends.slurm import SLURM_TRAITS
from scheduling.backends.telemetry import ExporterPage, GpuReading
from scheduling.clusters import connection_test
from scheduling.clusters.connection_test import ConnectionSettings
from tests.patience import PATIENCE_S
from tests.scheduling.simulation.slurm.running import ClusterProcess

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
ALLOWED = AllowedPaths(var="/no-installation", token_dirs=(tempfile.gettempdir(),))


@pytest.fixture
def port():
    """Somebody listens there and says nothing."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield server.getsockname()[1]


class Slurm:
    """A backend that says what the test wants."""

    traits = SLURM_TRAITS

    def __init__(self, *, hello=None, nodes=()):
        self.hello, self.seen, self.closed = hello or PingReply(product="slurm 23.02", api="v0.0.39"), nodes, False

    def ping(self):
        if isinstance(self.hello, Exception):
            raise self.hello
        return self.hello

    def nodes(self):
        return self.seen

    def close(self):
        self.closed = True


def node(name="n-1", gpus=8):
    return BackendNode(name=name, state=NodeState.IDLE, gpus=gpus)


def steps(port, *, slurm=None, reading=None, **asked):
    found = connection_test.run_test_steps(
        ConnectionSettings(**{"address": f"http://127.0.0.1:{port}", **asked}),
        NOW,
        open_=lambda *_, **__: slurm or Slurm(nodes=[node()]),
        resolve=lambda host, port: [] if host == "exporter" else http_client.resolve(host, port),
        allowed=ALLOWED,
        timeout_s=PATIENCE_S,
        read_=lambda _: reading or ExporterPage(gpus=()),
    )
    return {step.name: step for step in found}


def jwt(ends):
    part = base64.urlsafe_b64encode(json.dumps({"exp": ends}).encode()).rstrip(b"=").decode()
    return f"e30.{part}.c2ln"


def test_a_cluster_that_runs_passes_every_step(tmp_path):
    with ClusterProcess(tmp_path, "--nodes", "2") as cluster:
        cluster.log_root.mkdir(exist_ok=True)
        (tmp_path / "tokens").mkdir()
        (tmp_path / "tokens/seren").write_text((tmp_path / "token").read_text())
        found = connection_test.run_test_steps(
            ConnectionSettings(
                address=cluster.address,
                api_user="acme",
                submit_as="user_header",
                token_file=str(tmp_path / "tokens/seren"),
                metrics_address=f"{cluster.address}/metrics",
                log_root=str(cluster.log_root),
            ),
            NOW,
            allowed=AllowedPaths(var="/no-installation", token_dirs=(str(tmp_path / "tokens"),)),
            timeout_s=PATIENCE_S,
        )

    assert [(step.name, step.ok) for step in found] == [
        (name, True) for name in ("Address", "Token", "Slurm", "Nodes", "Users", "Telemetry", "Job logs")
    ]
    assert "2 nodes with 16 GPUs" in found[3].message


def test_wrong_token_is_distinguished_from_a_wrong_address(tmp_path):
    with ClusterProcess(tmp_path, "--nodes", "1") as cluster:
        (tmp_path / "other").write_text("wrong")
        found = connection_test.run_test_steps(
            ConnectionSettings(address=cluster.address, token_file=str(tmp_path / "other")),
            NOW,
            allowed=ALLOWED,
            timeout_s=PATIENCE_S,
        )

    by_name = {step.name: step for step in found}
    assert by_name["Address"].ok and by_name["Slurm"].ok is False
    assert "auth/jwt" in by_name["Slurm"].advice
    assert by_name["Nodes"].ok is None


@pytest.mark.parametrize(
    "address, said",
    [
        ("slurm.example:6820", "must begin with http://"),
        ("http://", "has no host name"),
        ("http://host:99999", "address is invalid"),
        ("http://[::1", "address is invalid"),
        ("unix:///nonexistent/slurmrestd.sock", "/nonexistent/slurmrestd.sock does not exist"),
        ("http://no..body:6820", "host name no..body cannot be resolved"),
    ],
)
def test_unreachable_address_is_explained(address, said):
    found = steps(0, address=address)

    assert found["Address"].ok is False and said in found["Address"].message and found["Address"].advice
    assert found["Slurm"].ok is None and found["Nodes"].ok is None


def test_closed_port_is_explained():
    with closing(socket.socket()) as bound:  # bound and never listened on, so nobody else can take it
        bound.bind(("127.0.0.1", 0))
        found = steps(bound.getsockname()[1])

    assert "no process listens on port" in found["Address"].message


def test_socket_without_a_listener_is_explained(tmp_path):
    path = tmp_path / "s"
    with closing(socket.socket(socket.AF_UNIX)) as left:
        left.bind(str(path))

    assert "No process listens on" in steps(0, address=f"unix://{path}")["Address"].message


@pytest.mark.parametrize(
    "text, said",
    [
        ("", "is empty"),
        ("SLURM_JWT= abc", "more than one word"),
        ("one\ntwo", "more than one word"),
        (jwt(NOW.timestamp() - 60), "expired at 2026-11-21 11:59"),
    ],
)
def test_unusable_token_file_is_explained(tmp_path, port, text, said):
    (tmp_path / "token").write_text(text)

    found = steps(port, token_file=str(tmp_path / "token"))

    assert said in found["Token"].message and found["Slurm"].ok is None


def test_missing_token_file_is_explained(port, tmp_path):
    assert "cannot be read (No such file" in steps(port, token_file=str(tmp_path / "token"))["Token"].message


def test_metadata_service_is_rejected_as_cluster_and_telemetry(port):
    for address in ("http://169.254.169.254", "http://[fd00:ec2::254]:80", "http://[::ffff:169.254.169.254]"):
        assert "metadata" in steps(port, address=address)["Address"].message
        assert "metadata" in steps(port, metrics_address=address)["Telemetry"].message


@pytest.mark.parametrize("text", ["opaque", jwt(NOW.timestamp() + 60), "a.!!!.c", jwt(10**30)])
def test_token_without_a_readable_expiry_is_checked_by_the_cluster(tmp_path, port, text):
    (tmp_path / "token").write_text(text + "\n")

    assert steps(port, token_file=str(tmp_path / "token"))["Token"].ok


@pytest.mark.parametrize(
    "words, advice",
    [
        ("HTTP 401: Authentication failure", "auth/jwt"),
        ("speaks none of v0.0.44", "data_parser"),
        ("its controller does not (or not to this cluster)", "slurmctld does not respond"),
        ("HTTP 404: <html>", "Another program listens on this port"),
        ("ReadTimeout", "log of slurmrestd"),
    ],
)
def test_errors_of_slurm_are_explained(port, words, advice):
    slurm = Slurm(hello=ClusterUnreachable(words))

    found = steps(port, slurm=slurm)

    assert found["Slurm"].message == words and advice in found["Slurm"].advice
    assert slurm.closed


@pytest.mark.parametrize("nodes, said", [([], "The cluster has no nodes"), ([node(gpus=0)], "none of them with GPUs")])
def test_cluster_without_gpus_is_explained(port, nodes, said):
    assert said in steps(port, slurm=Slurm(nodes=nodes))["Nodes"].message


def test_telemetry_of_unknown_hosts_is_explained(port):
    good = ExporterPage(gpus=(GpuReading(node="n-1", gpu=0),))
    strange = ExporterPage(gpus=(GpuReading(node="n-1.local", gpu=0),))
    where = {"metrics_address": "http://exporter:9400/metrics"}

    assert steps(port, reading=good, **where)["Telemetry"].ok
    assert "n-1.local" in steps(port, reading=strange, **where)["Telemetry"].message
    assert "contains no GPUs" in steps(port, **where)["Telemetry"].message


@pytest.mark.parametrize("path, said", [("logs", "begin with /"), ("/nonexistent/logs", "not a directory")])
def test_invalid_log_directory_is_explained(port, path, said):
    assert said in steps(port, log_root=path)["Job logs"].message


def test_optional_settings_may_be_empty(port):
    found = steps(port)

    assert connection_test.all_steps_passed(list(found.values()))
    assert [found[name].ok for name in ("Token", "Telemetry", "Job logs")] == [None, None, None]


def test_service_identity_reports_missing_isolation(port):
    users = steps(port, api_user="acme")["Users"]

    assert users.ok is None and "Choose user_header or user_tokens" in users.advice
    assert users.message.startswith("All jobs run as the user acme. Users and teams are not isolated on this cluster")


def test_token_without_permission_to_act_for_others_is_explained(port, tmp_path):
    (tmp_path / "token").write_text(jwt(NOW.timestamp() + 60))
    asked = []

    def open_(address, *, user, token, **_):
        asked.append(user)
        refuses = user == "nobody"
        return Slurm(hello=ClusterUnreachable("Zero Bytes were transmitted") if refuses else None, nodes=[node()])

    found = connection_test.run_test_steps(
        ConnectionSettings(
            address=f"http://127.0.0.1:{port}",
            api_user="acme",
            token_file=str(tmp_path / "token"),
            submit_as="user_header",
        ),
        NOW,
        open_=open_,
        allowed=ALLOWED,
    )

    users = {step.name: step for step in found}["Users"]
    assert asked == ["acme", "nobody"]
    assert users.ok is False and "The token of user acme cannot act on behalf of other users" in users.message


def test_user_header_without_a_token_is_explained(port):
    assert "no token file is set" in steps(port, submit_as="user_header")["Users"].message


@pytest.mark.parametrize(
    ("files", "good", "said"),
    [
        ({"ada": jwt(NOW.timestamp() + 60), "bob": "opaque"}, True, "2 users have a token"),
        ({"ada": jwt(NOW.timestamp() - 60), "bob": "opaque"}, False, "1 of 2 token files are not usable: the Slurm"),
        ({}, False, "is empty"),
    ],
)
def test_tokens_of_users_are_counted_and_read(port, tmp_path, files, good, said):
    (tmp_path / "users").mkdir()
    for name, text in files.items():
        (tmp_path / "users" / name).write_text(text)

    users = steps(port, submit_as="user_tokens", user_token_directory=str(tmp_path / "users"))["Users"]

    assert users.ok is good and said in users.message


def test_user_token_directory_must_be_inside_a_token_directory(port):
    asked = {"submit_as": "user_tokens", "user_token_directory": "/etc/ssh"}

    assert "ACME_TOKEN_DIRS" in steps(port, **asked)["Users"].advice
