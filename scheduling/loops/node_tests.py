"""Run node tests: a test is a job on one drained node, or on a group of drained nodes.

A cluster starts no jobs on a drained node. So Acme resumes the node on the cluster while the test job waits, and drains
it again as soon as the job runs. Acme itself starts no jobs there, because the node stays drained in its database. Each
call makes one step based on the cluster's state, so it can be interrupted and repeated. The job is looked up by its key
before it is submitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from django.conf import settings

from jobs.actions.nodes import NodeTestResult
from jobs.core.backend_job import BackendJob
from jobs.core.lifecycle import FINAL_STATES, Flag, State
from jobs.models import Cluster, ClusterCommand, Installation, Node
from scheduling.backends.base import Backend, RequestRejected, SubmitRequest
from scheduling.checks import node as default_check

NODE_TEST, NODE_PAIR_TEST = "test.", "world."  # the keys of jobs that belong to tests, not to attempts
NODE_TEST_TIME_LIMIT = timedelta(minutes=10)
NODE_TEST_START_TIMEOUT = timedelta(minutes=10)
NODE_TEST_WORKDIR = "/tmp"  # noqa: S108 - Slurm requires a directory; this one exists on every node


@dataclass(frozen=True, kw_only=True)
class NodeTestJob:
    """A test job on one node, or on several nodes that communicate."""

    nodes: Sequence[Node]
    since: datetime
    why: str
    job: SubmitRequest


def is_node_test(key: str) -> bool:
    return key.startswith((NODE_TEST, NODE_PAIR_TEST))


def node_test_key(command: ClusterCommand) -> str:
    return f"{NODE_TEST}{command.pk}.{int(command.created_at.timestamp())}"


def step_node_test(command: ClusterCommand, backend: Backend, now: datetime) -> NodeTestResult | str:
    """Run the next step of a node's test. Return its result, or its progress as text."""
    probe = NodeTestJob(nodes=[command.node], since=command.created_at, why=command.reason, job=submission(command))
    return advance_test_job(probe, backend, now)


def advance_test_job(probe: NodeTestJob, backend: Backend, now: datetime) -> NodeTestResult | str:
    job = backend.find(probe.job.key)
    if job is None:
        if now - probe.since > NODE_TEST_START_TIMEOUT:
            return _close_and_return(
                probe,
                backend,
                NodeTestResult(passed=False, ran=False, why="the cluster lost the job or never accepted it"),
            )
        backend.submit(probe.job)
        return "submitted"
    if job.state in FINAL_STATES and Flag.COMPLETING not in job.flags:
        return _close_and_return(probe, backend, _outcome(probe, job))
    if job.state != State.PENDING:
        _redrain_nodes(probe, backend)
        return "running"
    if now - probe.since > NODE_TEST_START_TIMEOUT:
        backend.cancel(job.backend_id)
        why = f"it did not start within {NODE_TEST_START_TIMEOUT.seconds // 60} minutes"
        return _close_and_return(probe, backend, NodeTestResult(passed=False, ran=False, why=why))
    _undrain_nodes(probe, backend)
    return "waiting for its node"


def _undrain_nodes(probe: NodeTestJob, backend: Backend) -> None:
    """Resume the nodes on the cluster. A cluster that rejects this has not drained them either."""
    for node in probe.nodes:
        with suppress(RequestRejected):
            backend.resume(node.name)


def _redrain_nodes(probe: NodeTestJob, backend: Backend) -> None:
    for node in probe.nodes:
        if node.drain_requested:  # an operator may have resumed it meanwhile
            with suppress(RequestRejected):
                backend.drain(node.name, node.reason or probe.why)


def _close_and_return(probe: NodeTestJob, backend: Backend, outcome: NodeTestResult) -> NodeTestResult:
    _redrain_nodes(probe, backend)
    return outcome


def _outcome(probe: NodeTestJob, job: BackendJob) -> NodeTestResult:
    how = f"signal {job.signal}" if job.signal else f"exit code {job.exit_code}"
    passed = job.state == State.COMPLETED
    why = "" if passed else f"{job.state}, {how}" if job.exit_code or job.signal else str(job.state)
    return NodeTestResult(passed=passed, why=why, exit_code=job.exit_code, log_path=probe.job.stdout)


def submission(command: ClusterCommand) -> SubmitRequest:
    node, cluster, key = command.node, command.cluster, node_test_key(command)
    variables = {"ACME_TEST_NODE": node.name, "ACME_EXPECT_GPUS": str(node.whole_gpus), "ACME_URL": settings.ACME_URL}
    test_script = cluster.test_command or default_node_test_script()
    return node_test_submission(cluster, [node], key=key, script=test_script, environment=variables)


def node_test_submission(
    cluster: Cluster, nodes: Sequence[Node], *, key: str, script: str, environment: dict[str, str]
) -> SubmitRequest:
    """Return a job that tests these nodes with all their GPUs, submitted by Acme itself."""
    names = [node.name for node in nodes]
    return SubmitRequest(
        key=key,
        name=f"test-{'-'.join(names)}"[:60],
        user="",
        account="",
        script=script,
        workdir=NODE_TEST_WORKDIR,
        environment=environment,
        nodes=tuple(names),
        gpus_per_node=min((node.whole_gpus for node in nodes), default=0),
        gpu_model=nodes[0].gpu_model if nodes else "",
        cpus_per_node=1,
        memory_per_node_mb=0,
        time_limit=NODE_TEST_TIME_LIMIT,
        stdout=cluster.new_log_path(key) or "/dev/null",
        installation=Installation.current_id(),
    )


def default_node_test_script() -> str:
    """Return the test program as a script, so that the node needs no installation."""
    return f"#!/usr/bin/env python3\n{Path(default_check.__file__).read_text()}"
