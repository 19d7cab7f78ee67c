"""Carrying out the test of a node: a job of its own, pinned to the node, while nothing else may start there.

A cluster starts no job on a drained node. So the node is opened at the cluster when the test waits there, and closed
again as soon as it runs; for our own scheduler it stays closed all the while, because an operator's drain counts in the
record. Each call makes the one next step of what the cluster says, so it may be cut off anywhere and made again; the
job's key is the deed's, and is looked up before anything is submitted.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

from django.conf import settings

from jobs.lifecycle import FINAL, Flag, State
from jobs.models import Deed, Node
from jobs.node_actions import Outcome
from scheduling.backends.base import Backend, Refused, SeenJob, Submission
from scheduling.checks import node as default_check

TIME_LIMIT = timedelta(minutes=10)
MUST_START = timedelta(minutes=10)
ANYWHERE = "/tmp"  # noqa: S108 - Slurm wants a directory, and this one is on every node


def key_of(deed: Deed) -> str:
    return f"test.{deed.pk}.{int(deed.created_at.timestamp())}"


def step(deed: Deed, backend: Backend, now: datetime) -> Outcome | str:
    """How it came out, or a word on how far it is."""
    node, seen = deed.node, backend.find(key_of(deed))
    if seen is None:
        if now - deed.created_at > MUST_START:
            return _over(deed, backend, Outcome(passed=False, why="the cluster lost it, or never took it"))
        backend.submit(submission(deed))
        return "submitted"
    if seen.state in FINAL and Flag.COMPLETING not in seen.flags:
        return _over(deed, backend, _outcome(deed, seen))
    if seen.state != State.PENDING:
        _close(node, backend, deed.reason)
        return "running"
    if now - deed.created_at > MUST_START:
        backend.cancel(seen.backend_id)
        why = f"it did not start within {MUST_START.seconds // 60} minutes"
        return _over(deed, backend, Outcome(passed=False, why=why))
    _open(node, backend)
    return "waits for its node"


def _open(node: Node, backend: Backend) -> None:
    """A cluster that cannot be told to close a node has not closed it either."""
    with suppress(Refused):
        backend.resume(node.name)


def _close(node: Node, backend: Backend, why: str) -> None:
    if node.drain_asked:  # an operator may have resumed it meanwhile
        with suppress(Refused):
            backend.drain(node.name, node.reason or why)


def _over(deed: Deed, backend: Backend, outcome: Outcome) -> Outcome:
    _close(deed.node, backend, deed.reason)
    return outcome


def _outcome(deed: Deed, seen: SeenJob) -> Outcome:
    how = f"signal {seen.signal}" if seen.signal else f"exit code {seen.exit_code}"
    passed = seen.state == State.COMPLETED
    why = "" if passed else f"{seen.state}, {how}" if seen.exit_code or seen.signal else str(seen.state)
    return Outcome(passed=passed, why=why, exit_code=seen.exit_code, log_path=submission(deed).stdout)


def submission(deed: Deed) -> Submission:
    node, cluster, key = deed.node, deed.cluster, key_of(deed)
    return Submission(
        key=key,
        name=f"test-{node.name}",
        user="acme",
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
    )


def default_script() -> str:
    """The check itself: the node need not have anything of ours."""
    return f"#!/usr/bin/env python3\n{Path(default_check.__file__).read_text()}"
