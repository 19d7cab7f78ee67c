"""Deliver: carry out the deeds that decisions left behind.

Who is eligible   open deeds that are due, oldest first; a claim moves the due time ahead, so nobody else takes them.
What a turn does  submits, signals, cancels, drains, resumes, tests; who saved a checkpoint since he was asked is not
                  kept waiting for the end of his grace; notes the outcome, or when to try again.
Failure story     The try is counted before it is made. Killed between the deed and the note that it is done: the next
                  claim sees a second try and looks the attempt up by its key instead of submitting again. An answer
                  that got lost is treated the same. A worker that slept past its claim cannot note an outcome: the
                  number of tries is the fencing token.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import F

from jobs import actions, node_actions, progress, stop_actions
from jobs.journal import SCHEDULER, SYNC
from jobs.models import Attempt, Cluster, Deed, DeedKind, Mode, Node
from jobs.node_actions import Outcome
from jobs.notation import parse_signal
from scheduling.backends.base import Backend, Doubtful, Refused, Submission, Unreachable
from scheduling.loops import testing
from scheduling.loops.rows import one_row

DEEDS_AT_ONCE = 200
DEED_CLAIM = timedelta(seconds=60)  # longer than any call to a cluster may take
TEST_AGAIN = timedelta(seconds=2)
CANCEL_AGAIN = timedelta(seconds=30)
SLOWEST_RETRY_S = 30
ANYWHERE = "/tmp"  # Slurm wants a directory, and this one is on every node  # noqa: S108


def deliver_once(cluster: Cluster, backend: Backend, now: datetime) -> int:
    """Carry out due deeds, oldest first. Return how many were settled."""
    if cluster.mode != Mode.DRIVE:
        return 0
    settled = 0
    stop_actions.hasten(cluster, now)
    for deed in _claim(cluster, now):
        try:
            with one_row(deed):
                settled += _deliver_or_note(deed, backend, now)
        except Doubtful as doubt:
            _later(deed, now, f"in doubt: {doubt}")
        except Unreachable as error:
            _later(deed, now, str(error))
            raise  # the others would not get through either
    return settled


def _claim(cluster: Cluster, now: datetime) -> list[Deed]:
    """Ours for a while: nobody else sees them as due. The try is counted before it is made."""
    with transaction.atomic():
        due = Deed.objects.due(now).filter(cluster=cluster).select_for_update(skip_locked=True)
        ids = list(due.values_list("pk", flat=True)[:DEEDS_AT_ONCE])
        Deed.objects.filter(pk__in=ids).update(tries=F("tries") + 1, due_at=now + DEED_CLAIM)
    return list(
        Deed.objects.filter(pk__in=ids)
        .select_related("attempt__job__user", "attempt__job__team", "node__cluster", "cluster")
        .order_by("id")
    )


def _deliver_or_note(deed: Deed, backend: Backend, now: datetime) -> bool:
    try:
        return _deliver(deed, backend, now)
    except Refused as refusal:
        return _refused(deed, str(refusal), now)


def _deliver(deed: Deed, backend: Backend, now: datetime) -> bool:
    match deed.kind:
        case DeedKind.SUBMIT:
            return _submit(deed, backend, now)
        case DeedKind.CANCEL:
            return _cancel(deed, backend, now)
        case DeedKind.SIGNAL:
            return _signal(deed, backend, now)
        case DeedKind.TEST:
            return _test(deed, backend, now)
        case DeedKind.DRAIN:
            backend.drain(deed.node.name, deed.reason)
        case DeedKind.RESUME:
            backend.resume(deed.node.name)
    return _settle(deed, now, "done")


def _submit(deed: Deed, backend: Backend, now: datetime) -> bool:
    attempt = deed.attempt
    if attempt.ended_at:
        return _settle(deed, now, "not needed any more")
    # An earlier try may have got through although nobody heard of it: look before doing it again
    known = backend.find(attempt.key) if deed.tries > 1 else None
    if known is None and attempt.stop_as:
        with transaction.atomic():
            actions.withdraw(attempt, now=now, author=SCHEDULER)
            return _settle(deed, now, "withdrawn before it was sent")
    backend_id = known.backend_id if known else backend.submit(_submission(attempt))
    with transaction.atomic():
        actions.accepted(attempt, backend_id)
        return _settle(deed, now, f"accepted as {backend_id}")


def _cancel(deed: Deed, backend: Backend, now: datetime) -> bool:
    """Open until the attempt is seen to end: a signal may get lost, so it is sent again."""
    attempt = deed.attempt
    if attempt.ended_at:
        return _settle(deed, now, "ended")
    if attempt.backend_id:
        backend.cancel(attempt.backend_id)
        _later(deed, now, "signalled", CANCEL_AGAIN)
    else:
        _later(deed, now, "waits for the answer to its submission", timedelta(seconds=1))
    return False


def _signal(deed: Deed, backend: Backend, now: datetime) -> bool:
    """Ask for a checkpoint. Twice does no harm; who could not be asked in time is stopped without."""
    attempt, ask = deed.attempt, parse_signal(deed.reason)
    if attempt.ended_at or not attempt.stop_as:
        return _settle(deed, now, "not needed any more")
    if not Deed.objects.open().filter(attempt=attempt, kind=DeedKind.CANCEL, tries=0).exists():
        return _settle(deed, now, "too late")
    backend.signal(attempt.backend_id, ask.signal, shell=ask.shell)
    return _settle(deed, now, "signalled")


def _test(deed: Deed, backend: Backend, now: datetime) -> bool:
    """Open until the test has come out; each try is one step of it."""
    came_out = testing.step(deed, backend, now)
    if isinstance(came_out, str):
        _later(deed, now, came_out, TEST_AGAIN)
        return False
    return _note_test(deed, came_out, now)


def _note_test(deed: Deed, outcome: Outcome, now: datetime) -> bool:
    with transaction.atomic():
        settled = _settle(deed, now, outcome.sentence)
        if settled:
            node_actions.tested(deed.node, deed, outcome, author=SCHEDULER)
    return settled


def _refused(deed: Deed, why: str, now: datetime) -> bool:
    with transaction.atomic():
        if deed.kind == DeedKind.TEST:
            return _note_test(deed, Outcome(passed=False, why=f"the cluster refused it: {why}"), now)
        if deed.kind == DeedKind.SUBMIT:
            actions.refuse(deed.attempt, why, now=now, author=SYNC)
        return _settle(deed, now, f"refused: {why}")


def _settle(deed: Deed, now: datetime, outcome: str) -> bool:
    """Only if nobody took it over meanwhile: the number of tries is the fencing token."""
    held = Deed.objects.open().filter(pk=deed.pk, tries=deed.tries)
    return held.update(done_at=now, outcome=outcome) == 1


def _later(deed: Deed, now: datetime, outcome: str, wait: timedelta | None = None) -> None:
    wait = wait or timedelta(seconds=min(2 ** min(deed.tries, 10), SLOWEST_RETRY_S))
    Deed.objects.open().filter(pk=deed.pk, tries=deed.tries).update(due_at=now + wait, outcome=outcome)


def _about(attempt: Attempt) -> dict[str, str]:
    """What the job is told of itself; a task of an array learns its index by Slurm's names too."""
    job, every = attempt.job, attempt.job.checkpoint_interval
    about = {
        "ACME_JOB_ID": job.public_id,
        "ACME_ATTEMPT": str(attempt.number),
        "ACME_KIND": job.kind,
        "ACME_CHECKPOINT_DIR": job.checkpoint_dir,
        "ACME_CHECKPOINT_INTERVAL_S": str(int(every.total_seconds())) if every else "",
        "ACME_URL": settings.ACME_URL,
        "ACME_PROGRESS_TOKEN": progress.token_of(attempt.key),
    }
    if job.array_index is not None:
        index = str(job.array_index)
        about |= {"SLURM_ARRAY_JOB_ID": job.array_id, "SLURM_ARRAY_TASK_ID": index, "ACME_ARRAY_INDEX": index}
    return {name: value for name, value in about.items() if value}


def _submission(attempt: Attempt) -> Submission:
    job = attempt.job
    nodes = Node.objects.filter(allocations__attempt=attempt).distinct().order_by("name")
    return Submission(
        key=attempt.key,
        name=job.name,
        user=job.user.get_username(),
        account=job.team.name,
        script=job.command,
        workdir=job.workdir or ANYWHERE,
        environment={**job.environment, **_about(attempt)},
        nodes=tuple(node.name for node in nodes),
        gpus_per_node=job.gpus_per_node,
        gpu_model=job.gpu_model or (nodes[0].gpu_model if nodes else ""),
        cpus_per_node=job.cpus_per_node,
        memory_per_node_mb=job.memory_per_node_mb,
        time_limit=job.time_limit,
        stdout=attempt.log_path,
    )
