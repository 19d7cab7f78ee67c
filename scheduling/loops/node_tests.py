"""Carrying out the test of a node: a job of its own, pinned to the node, while nothing else may start there.

A cluster starts no job on a drained node. So the node is opened at the cluster when the test waits there, and closed
again as soon as it runs; for our own scheduler it stays closed all the while, because an operator's drain counts in the
record. Each call makes the one next step of what the cluster says, so it may be cut off anywhere and made again; the
job's key is the deed's, and is looked up before anything is submitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from django.conf import settings

from jobs.actions.nodes import NodeTestResult
from jobs.core.lifecycle import FINAL_STATES, Flag, State
from jobs.models import Deed, Installation, Node
from scheduling.backends.base import Backend, BackendJob, RequestRejected, SubmitRequest
from scheduling.checks import node as default_check
from scheduling.loops.observe.node_test_keys import NODE_TEST

NODE_TEST_TIME_LIMIT = timedelta(minutes=10)
NODE_TEST_START_TIMEOUT = timedelta(minutes=10)
NODE_TEST_WORKDIR = "/tmp"  # noqa: S108 - Slurm wants a directory, and this one is on every node


@dataclass(frozen=True, kw_only=True)
class NodeTestJob:
    """A test as one job: of one node, or of several that are to talk to each other."""

    nodes: Sequence[Node]
    since: datetime
    why: str
    job: SubmitRequest


def node_test_key(deed: Deed) -> str:
    return f"{NODE_TEST}{deed.pk}.{int(deed.created_at.timestamp())}"


def step_node_test(deed: Deed, backend: Backend, now: datetime) -> NodeTestResult | str:
    """The test of one node: how it came out, or a word on how far it is."""
    probe = NodeTestJob(nodes=[deed.node], since=deed.created_at, why=deed.reason, job=submission(deed))
    return advance_test_job(probe, backend, now)


def advance_test_job(probe: NodeTestJob, backend: Backend, now: datetime) -> NodeTestResult | str:
    seen = backend.find(probe.job.key)
    if seen is None:
        if now - probe.since > NODE_TEST_START_TIMEOUT:
            return _close_and_return(
                probe, backend, NodeTestResult(passed=False, ran=False, why="the cluster lost it, or never took it")
            )
        backend.submit(probe.job)
        return "submitted"
    if seen.state in FINAL_STATES and Flag.COMPLETING not in seen.flags:
        return _close_and_return(probe, backend, _outcome(probe, seen))
    if seen.state != State.PENDING:
        _redrain_nodes(probe, backend)
        return "running"
    if now - probe.since > NODE_TEST_START_TIMEOUT:
        backend.cancel(seen.backend_id)
        why = f"it did not start within {NODE_TEST_START_TIMEOUT.seconds // 60} minutes"
        return _close_and_return(probe, backend, NodeTestResult(passed=False, ran=False, why=why))
    _undrain_nodes(probe, backend)
    return "waits for its node"


def _undrain_nodes(probe: NodeTestJob, backend: Backend) -> None:
    """A cluster that cannot be told to close a node has not closed it either."""
    for node in probe.nodes:
        with suppress(RequestRejected):
            backend.resume(node.name)


def _redrain_nodes(probe: NodeTestJob, backend: Backend) -> None:
    for node in probe.nodes:
        if node.drain_asked:  # an operator may have resumed it meanwhile
            with suppress(RequestRejected):
                backend.drain(node.name, node.reason or probe.why)


def _close_and_return(probe: NodeTestJob, backend: Backend, outcome: NodeTestResult) -> NodeTestResult:
    _redrain_nodes(probe, backend)
    return outcome


def _outcome(probe: NodeTestJob, seen: BackendJob) -> NodeTestResult:
    how = f"signal {seen.signal}" if seen.signal else f"exit code {seen.exit_code}"
    passed = seen.state == State.COMPLETED
    why = "" if passed else f"{seen.state}, {how}" if seen.exit_code or seen.signal else str(seen.state)
    return NodeTestResult(passed=passed, why=why, exit_code=seen.exit_code, log_path=probe.job.stdout)


def submission(deed: Deed) -> SubmitRequest:
    node, cluster, key = deed.node, deed.cluster, node_test_key(deed)
    return SubmitRequest(
        key=key,
        name=f"test-{node.name}",
        user="",
        account="",
        script=cluster.test_command or default_node_test_script(),
        workdir=NODE_TEST_WORKDIR,
        environment={
            "ACME_TEST_NODE": node.name,
            "ACME_EXPECT_GPUS": str(node.gpus),
            "ACME_URL": settings.ACME_URL,
        },
        nodes=(node.name,),
        gpus_per_node=node.gpus,
        gpu_model=node.gpu_model,
        cpus_per_node=1,
        memory_per_node_mb=0,
        time_limit=NODE_TEST_TIME_LIMIT,
        stdout=f"{cluster.log_root}/{key}.log" if cluster.log_root else "/dev/null",
        installation=Installation.current_id(),
    )


def default_node_test_script() -> str:
    """The check itself: the node need not have anything of ours."""
    return f"#!/usr/bin/env python3\n{Path(default_check.__file__).read_text()}"
