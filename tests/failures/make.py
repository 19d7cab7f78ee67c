"""Creates running and failed attempts with logs, and their diagnoses."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from failures.loops.diagnose import diagnose_once
from failures.models import Diagnosis
from failures.recovery import loop as recovery_loop
from jobs.actions import jobs as job_actions
from jobs.actions import nodes as node_actions
from jobs.actions.journal import SYNC
from jobs.core.attempt_end import AttemptEnd
from jobs.core.lifecycle import NodeState, State
from jobs.models import Attempt, Cluster, Job, Node, Team, clock
from scheduling.actions.node_tests import start_node_test
from tests import make

STORAGE = "botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL: https://s3.example/b\n"
TYPO = """Traceback (most recent call last):
  File "/home/ada/train.py", line 12, in <module>
    main()
TypeError: unsupported operand type(s) for +=: 'float' and 'NoneType'
"""
XID = "[ 8214.55] NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, GPU has fallen off the bus.\n"
DEAD_PEER = (
    "[rank1]: torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error\n"
)


def cluster(root: Path, **fields: Any) -> Cluster:
    return make.cluster(log_root=str(root), **fields)


def running(
    root: Path,
    *,
    by: str = "ada",
    on: tuple[str, ...] = (),
    job: Job | None = None,
    ran: timedelta = timedelta(hours=2),
    gpus: tuple[int, ...] | None = None,
    **asked: Any,
) -> Attempt:
    """A running attempt of a job in a team of the user `by`, by default for two hours."""
    home = cluster(root)
    if not Team.objects.filter(memberships__user=make.user(by)).exists():
        make.team(f"team-of-{by}", **{by: "researcher"})
    job = job or make.job(by=by, cluster=home, **{"gpus_per_node": 8, "nodes": len(on) or 1, **asked})
    attempt = make.attempt(job, on=on, gpus=gpus)
    job_actions.confirm_start(attempt, started_at=clock.now() - ran, author=make.LOOP)
    return attempt


def end(
    root: Path,
    attempt: Attempt,
    text: str | bytes | None = TYPO,
    *,
    state: str = State.FAILED,
    exit_code: int | None = 1,
    reason: str = "",
) -> Attempt:
    """Ends the attempt with `text` in its log; None for no log."""
    name = f"{attempt.key}.log"
    if text is not None:
        (root / name).write_bytes(text.encode() if isinstance(text, str) else text)
    Attempt.objects.filter(pk=attempt.pk).update(log_path=name)
    ended = AttemptEnd(state=State(state), at=clock.now(), exit_code=exit_code, reason=reason)
    job_actions.finish(attempt, ended, author=make.LOOP)
    attempt.refresh_from_db()
    return attempt


ENDS = ("state", "exit_code", "reason")


def failed(root: Path, text: str | bytes | None = TYPO, **how: Any) -> Attempt:
    ended = {name: how.pop(name) for name in ENDS if name in how}
    return end(root, running(root, **how), text, **ended)


def diagnosed(root: Path, text: str | bytes | None = TYPO, **how: Any) -> Diagnosis:
    attempt = failed(root, text, **how)
    diagnose_once(clock.now())
    return of(attempt)


def of(attempt: Attempt) -> Diagnosis:
    return Diagnosis.objects.select_related("incident", "attempt__job").get(attempt=attempt)


def dies(name: str) -> None:
    """The cluster reports a node DOWN."""
    node_actions.record_observation(Node.objects.get(name=name), author=SYNC, now=clock.now(), state=NodeState.DOWN)


def decide_and_recover_once(now: datetime, **limits: Any) -> int:
    """A turn of recovery, with the node tests of clusters."""
    return recovery_loop.decide_and_recover_once(now, start_node_test, **limits)
