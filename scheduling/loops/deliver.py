"""Deliver: carry out the deeds that decisions left behind.

Who is eligible   open deeds that are due, oldest first; a claim moves the due time ahead, so nobody else takes them.
What a turn does  submits (many at once), then signals, asks for stacks, cancels, drains, resumes, tests; who
                  saved a checkpoint since he was asked is not kept waiting for the end of his grace; notes the
                  outcome, or when to try again.
Failure story     The try is counted before it is made. Killed between the deed and the note that it is done: the next
                  claim sees a second try and finds out what became of the first one before it submits again. An answer
                  that got lost is treated the same. What a killed worker had claimed is free again as soon as the
                  next one has its cluster's lease (`deeds.free`). A worker that slept past its claim cannot note an
                  outcome: the number of tries is the fencing token.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import transaction

from jobs import node_actions, stop_actions
from jobs.journal import SCHEDULER
from jobs.models import Cluster, Deed, DeedKind, Mode
from jobs.node_actions import Outcome
from jobs.notation import parse_signal
from scheduling.backends.base import Backend, Doubtful, Refused, Unreachable
from scheduling.loops import testing
from scheduling.loops.deeds import claim, put_off, settle
from scheduling.loops.rows import one_row
from scheduling.loops.submitting import submit_all

MOST_CLAIMS = 8  # in a turn, which must look at its cluster too
TEST_AGAIN = timedelta(seconds=2)
CANCEL_AGAIN = timedelta(seconds=30)
STACKS_ARE_LATE = timedelta(seconds=30)


def deliver_once(cluster: Cluster, backend: Backend, now: datetime, looked_at: datetime | None = None) -> int:
    """Carry out due deeds, oldest first. Return how many were settled. `looked_at`: see `submitting`."""
    if cluster.mode != Mode.DRIVE:
        return 0
    settled = 0
    stop_actions.hasten(cluster, now)
    for _ in range(MOST_CLAIMS):
        if not (deeds := claim(cluster, now)):
            break
        settled += submit_all([deed for deed in deeds if deed.kind == DeedKind.SUBMIT], backend, now, looked_at)
        settled += sum(_one(deed, backend, now) for deed in deeds if deed.kind != DeedKind.SUBMIT)
    return settled


def _one(deed: Deed, backend: Backend, now: datetime) -> bool:
    try:
        with one_row(deed):
            return _deliver_or_note(deed, backend, now)
    except Doubtful as doubt:
        put_off(deed, now, f"in doubt: {doubt}")
    except Unreachable as error:
        put_off(deed, now, str(error))
        raise  # the others would not get through either
    return False


def _deliver_or_note(deed: Deed, backend: Backend, now: datetime) -> bool:
    try:
        return _deliver(deed, backend, now)
    except Refused as refusal:
        return _refused(deed, str(refusal), now)


def _deliver(deed: Deed, backend: Backend, now: datetime) -> bool:
    match deed.kind:
        case DeedKind.CANCEL:
            return _cancel(deed, backend, now)
        case DeedKind.CANCEL_ID:
            backend.cancel(deed.reason)
        case DeedKind.SIGNAL:
            return _signal(deed, backend, now)
        case DeedKind.STACKS:
            return _ask_stacks(deed, backend, now)
        case DeedKind.TEST:
            return _test(deed, backend, now)
        case DeedKind.DRAIN:
            backend.drain(deed.node.name, deed.reason)
        case DeedKind.RESUME:
            backend.resume(deed.node.name)
    return settle(deed, now, "done")


def _cancel(deed: Deed, backend: Backend, now: datetime) -> bool:
    """Open until the attempt is seen to end: a signal may get lost, so it is sent again."""
    attempt = deed.attempt
    if attempt.ended_at:
        return settle(deed, now, "ended")
    if attempt.backend_id:
        backend.cancel(attempt.backend_id)
        put_off(deed, now, "signalled", CANCEL_AGAIN)
    else:
        put_off(deed, now, "waits for the answer to its submission", timedelta(seconds=1))
    return False


def _signal(deed: Deed, backend: Backend, now: datetime) -> bool:
    """Ask for a checkpoint. Twice does no harm; who could not be asked in time is stopped without."""
    attempt, ask = deed.attempt, parse_signal(deed.reason)
    if attempt.ended_at or not attempt.stop_as:
        return settle(deed, now, "not needed any more")
    if not Deed.objects.open().filter(attempt=attempt, kind=DeedKind.CANCEL, tries=0).exists():
        return settle(deed, now, "too late")
    backend.signal(attempt.backend_id, ask.signal, shell=ask.shell)
    return settle(deed, now, "signalled")


def _ask_stacks(deed: Deed, backend: Backend, now: datetime) -> bool:
    """Twice costs some lines of a log. Who asked has gone on without an answer when it is late."""
    attempt, ask = deed.attempt, parse_signal(deed.reason)
    if attempt.ended_at or attempt.stop_as or not attempt.backend_id:
        return settle(deed, now, "not needed any more")
    if now - deed.created_at > STACKS_ARE_LATE:
        return settle(deed, now, "too late")
    backend.signal(attempt.backend_id, ask.signal, shell=ask.shell)
    return settle(deed, now, "signalled")


def _test(deed: Deed, backend: Backend, now: datetime) -> bool:
    """Open until the test has come out; each try is one step of it."""
    came_out = testing.step(deed, backend, now)
    if isinstance(came_out, str):
        put_off(deed, now, came_out, TEST_AGAIN)
        return False
    return _note_test(deed, came_out, now)


def _note_test(deed: Deed, outcome: Outcome, now: datetime) -> bool:
    with transaction.atomic():
        settled = settle(deed, now, outcome.sentence)
        if settled:
            node_actions.tested(deed.node, deed, outcome, author=SCHEDULER)
    return settled


def _refused(deed: Deed, why: str, now: datetime) -> bool:
    if deed.kind == DeedKind.TEST:
        return _note_test(deed, Outcome(passed=False, why=f"the cluster refused it: {why}"), now)
    return settle(deed, now, f"refused: {why}")
