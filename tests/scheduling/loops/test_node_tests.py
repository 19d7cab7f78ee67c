"""Node tests: a job on the node alone, its result an Event, and the node drained before and after."""

import os
import socket
import subprocess
import sys
from datetime import timedelta

import pytest

from acmeweb.common.errors import StateConflict
from jobs.actions import nodes as node_actions
from jobs.core.lifecycle import State
from jobs.models import ClusterCommand, Event, Job, Node, clock
from scheduling.backends.base import OutcomeUnknown, RequestRejected
from scheduling.checks import node as check
from scheduling.loops.commands.send import NODE_TEST_RETRY_INTERVAL, send_commands_once
from scheduling.loops.node_tests import NODE_TEST_START_TIMEOUT, default_node_test_script, node_test_key
from scheduling.loops.observe.sync import sync_cluster_once
from scheduling.queries import snapshot
from tests import make
from tests.patience import PATIENCE_S
from tests.scheduling.fake import failing


@pytest.fixture
def node(cluster):
    """Drained by an operator, and its cluster was told."""
    row = Node.objects.select_related("cluster").get(name="seren-002")
    node_actions.drain(row, author=make.author("olga"), why="odd noise", now=clock.now())
    ClusterCommand.objects.update(done_at=clock.now())
    return Node.objects.select_related("cluster").get(pk=row.pk)


def ask(node):
    return node_actions.start_node_test(node, author=make.author("olga"), why="before it comes back")


def deliver(cluster, slurm, later=NODE_TEST_RETRY_INTERVAL):
    return send_commands_once(cluster, slurm, clock.now() + later)


def outcome():
    return Event.objects.get(type="node.tested")


def test_node_test_runs_on_its_node_which_is_resumed_only_until_the_start(cluster, slurm, node):
    slurm.drained["seren-002"] = "odd noise"
    command = ask(node)

    deliver(cluster, slurm)
    sent = slurm.sent[0]
    assert (sent.key, sent.nodes, sent.gpus_per_node) == (node_test_key(command), ("seren-002",), 8)
    assert sent.environment["ACME_EXPECT_GPUS"] == "8" and sent.script == default_node_test_script()

    deliver(cluster, slurm, 3 * NODE_TEST_RETRY_INTERVAL)
    assert slurm.drained == {}  # it waits: no cluster starts anything on a drained node
    slurm.start(sent.key, clock.now())
    deliver(cluster, slurm, 6 * NODE_TEST_RETRY_INTERVAL)
    assert slurm.drained == {"seren-002": "odd noise"}

    slurm.end(sent.key, State.COMPLETED, clock.now(), exit_code=0)
    deliver(cluster, slurm, 9 * NODE_TEST_RETRY_INTERVAL)
    assert (outcome().detail["passed"], outcome().why) == (True, "It passed its test.")
    assert outcome().detail["log"] == f"/nonexistent/{sent.key}.log"
    assert len(slurm.sent) == 1 and not ClusterCommand.objects.open().exists()


@pytest.mark.parametrize(
    ("state", "how", "why"),
    [
        (State.FAILED, {"exit_code": 1}, "It failed its test: FAILED, exit code 1."),
        (State.FAILED, {"signal": 9}, "It failed its test: FAILED, signal 9."),
        (State.NODE_FAIL, {}, "It failed its test: NODE_FAIL."),
        (State.TIMEOUT, {}, "It failed its test: TIMEOUT."),
    ],
)
def test_failed_node_test_has_a_reason(cluster, slurm, node, state, how, why):
    ask(node)
    deliver(cluster, slurm)

    slurm.end(slurm.sent[0].key, state, clock.now(), **how)
    deliver(cluster, slurm, 3 * NODE_TEST_RETRY_INTERVAL)

    assert (outcome().detail["passed"], outcome().why) == (False, why)


def test_lost_response_does_not_repeat_the_node_test(cluster, slurm, node):
    command = ask(node)
    slurm.after = failing(OutcomeUnknown("timed out"), "submit")
    deliver(cluster, slurm)
    slurm.after = lambda verb: None

    slurm.end(node_test_key(command), State.COMPLETED, clock.now(), exit_code=0)
    deliver(cluster, slurm, timedelta(seconds=70))

    assert len(slurm.sent) == 1 and outcome().detail["passed"]


def test_node_test_that_never_starts_is_cancelled_and_fails(cluster, slurm, node):
    ask(node)
    deliver(cluster, slurm)

    deliver(cluster, slurm, NODE_TEST_START_TIMEOUT + timedelta(minutes=1))

    assert slurm.cancelled == ["1"] and slurm.drained == {"seren-002": "odd noise"}
    assert outcome().why == "It failed its test: it did not start within 10 minutes."


def test_rejected_node_test_is_recorded(cluster, slurm, node):
    ask(node)
    slurm.before = failing(RequestRejected("Invalid account"), "submit")

    deliver(cluster, slurm)

    assert outcome().why == "It failed its test: the cluster rejected it: Invalid account."


def test_node_resumed_during_its_test_is_not_drained_again(cluster, slurm, node):
    ask(node)
    deliver(cluster, slurm)
    node_actions.resume(node, author=make.author("olga"), now=clock.now())

    slurm.end(slurm.sent[0].key, State.COMPLETED, clock.now(), exit_code=0)
    deliver(cluster, slurm, 3 * NODE_TEST_RETRY_INTERVAL)

    assert slurm.drained == {} and outcome().detail["passed"]


def test_clusters_own_test_command_replaces_the_default(cluster, slurm, node):
    cluster = make.cluster(test_command="/opt/check --all")
    ask(node)

    deliver(cluster, slurm)

    assert slurm.sent[0].script == "/opt/check --all"


def test_node_under_test_gets_no_jobs_and_the_test_is_not_a_job(cluster, slurm, node):
    ask(node)
    deliver(cluster, slurm)
    slurm.start(slurm.sent[0].key, clock.now())

    sync_cluster_once(cluster, slurm, clock.now())

    assert "seren-002" not in [one.name for one in snapshot.take_snapshot(cluster, clock.now()).nodes]
    assert not Job.objects.exists() and slurm.cancelled == []


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda node: node_actions.resume(node, author=make.LOOP, now=clock.now()), "is not drained"),
        (lambda node: make.cluster(mode="advise"), "is not driven by Acme"),
        (ask, "is already being tested"),
    ],
)
def test_untestable_node_is_refused_with_a_reason(node, spoil, why):
    spoil(node)

    with pytest.raises(StateConflict, match=why):
        ask(node)


def test_a_node_on_which_jobs_still_run_is_not_tested(cluster):
    make.running(make.job(gpus_per_node=1), on=["seren-002"])
    row = Node.objects.select_related("cluster").get(name="seren-002")
    node_actions.drain(row, author=make.LOOP, why="x", now=clock.now())

    with pytest.raises(StateConflict, match="1 job still runs on seren-002"):
        ask(row)


# the program itself


def run_check(**environment):
    clean = {"PATH": os.environ["PATH"], **environment}
    done = subprocess.run(
        [sys.executable, "-c", default_node_test_script()],
        env=clean,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    return done.returncode, done.stdout


def test_check_passes_on_a_healthy_machine():
    with socket.create_server(("127.0.0.1", 0)) as peer:
        code, said = run_check(ACME_TEST_PEERS=f"127.0.0.1:{peer.getsockname()[1]}")

    assert code == 0, said
    assert "ok    loopback: 32 MiB" in said and "ok    peers: 1 reached" in said


def test_check_names_the_fault(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as gone:
        name = f"127.0.0.1:{gone.getsockname()[1]}"
    fake = tmp_path / "nvidia-smi"
    fake.write_text("#!/bin/sh\necho 'GPU 0: A100'\n")
    fake.chmod(0o755)

    code, said = run_check(ACME_EXPECT_GPUS="8", ACME_TEST_PEERS=name, PATH=f"{tmp_path}:/usr/bin:/bin")

    assert code == 1
    assert "FAIL  gpus: 1 of 8 GPUs are visible" in said
    assert f"FAIL  peers: cannot connect to {name}" in said
    assert "ok    disk" in said


def test_missing_driver_is_reported_if_gpus_are_expected(monkeypatch, tmp_path):
    monkeypatch.setenv("ACME_EXPECT_GPUS", "8")
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(check.NodeCheckFailed, match="nvidia-smi is not installed"):
        check.check_gpus()
