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

from jobs.lifecycle import FINAL, Flag, State
from jobs.models import Deed, Installation, Node
from jobs.node_actions import Outcome
from scheduling.backends.base import Backend, Refused, SeenJob, Submission
from scheduling.checks import node as default_check
from scheduling.loops.node_test_keys import NODE_TEST

TIME_LIMIT = timedelta(minutes=10)
MUST_START = timedelta(minutes=10)
ANYWHERE = "/tmp"  # noqa: S108 - Slurm wants a directory, and this one is on every node


@dataclass(frozen=True, kw_only=True)
class Probe:
    """A test as one job: of one node, or of several that are to talk to each other."""

    nodes: Sequence[Node]
    since: datetime
    why: str
    job: Submission


def key_of(deed: Deed) -> str:
    return f"{NODE_TEST}{deed.pk}.{int(deed.created_at.timestamp())}"


def step(deed: Deed, backend: Backend, now: datetime) -> Outcome | str:
    """The test of one node: how it came out, or a word on how far it is."""
    probe = Probe(nodes=[deed.node], since=deed.created_at, why=deed.reason, job=submission(deed))
    return advance(probe, backend, now)


def advance(probe: Probe, backend: Backend, now: datetime) -> Outcome | str:
    seen = backend.find(probe.job.key)
    if seen is None:
        if now - probe.since > MUST_START:
            return _over(probe, backend, Outcome(passed=False, ran=False, why="the cluster lost it, or never took it"))
        backend.submit(probe.job)
        return "submitted"
    if seen.state in FINAL and Flag.COMPLETING not in seen.flags:
        return _over(probe, backend, _outcome(probe, seen))
    if seen.state != State.PENDING:
        _close(probe, backend)
        return "running"
    if now - probe.since > MUST_START:
        backend.cancel(seen.backend_id)
        why = f"it did not start within {MUST_START.seconds // 60} minutes"
        return _over(probe, backend, Outcome(passed=False, ran=False, why=why))
    _open(probe, backend)
    return "waits for its node"


def _open(probe: Probe, backend: Backend) -> None:
    """A cluster that cannot be told to close a node has not closed it either."""
    for node in probe.nodes:
        with suppress(Refused):
            backend.resume(node.name)


def _close(probe: Probe, backend: Backend) -> None:
    for node in probe.nodes:
        if node.drain_asked:  # an operator may have resumed it meanwhile
            with suppress(Refused):
                backend.drain(node.name, node.reason or probe.why)


def _over(probe: Probe, backend: Backend, outcome: Outcome) -> Outcome:
    _close(probe, backend)
    return outcome


def _outcome(probe: Probe, seen: SeenJob) -> Outcome:
    how = f"signal {seen.signal}" if seen.signal else f"exit code {seen.exit_code}"
    passed = seen.state == State.COMPLETED
    why = "" if passed else f"{seen.state}, {how}" if seen.exit_code or seen.signal else str(seen.state)
    return Outcome(passed=passed, why=why, exit_code=seen.exit_code, log_path=probe.job.stdout)


def submission(deed: Deed) -> Submission:
    node, cluster, key = deed.node, deed.cluster, key_of(deed)
    return Submission(
        key=key,
        name=f"test-{node.name}",
        user="",
        account="",
        script=cluster.test_command or default_script(),
        workdir=ANYWHERE,
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
        time_limit=TIME_LIMIT,
        stdout=f"{cluster.log_root}/{key}.log" if cluster.log_root else "/dev/null",
        installation=Installation.current_id(),
    )


def default_script() -> str:
    """The check itself: the node need not have anything of ours."""
    return f"#!/usr/bin/env python3\n{Path(default_check.__file__).read_text()}"
