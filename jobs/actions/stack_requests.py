"""Requests stack traces from the processes of a running attempt.

A signal makes each process write its stacks to the log. The signal ends a process that does not handle it. So only
attempts that declare support receive it: with `stacks` in their reports, or with a label of the job.
"""

from __future__ import annotations

from django.db import IntegrityError, transaction

from acmeweb.common.errors import InvalidInput
from jobs.actions import journal
from jobs.actions.journal import Author
from jobs.core.slurm_notation import CheckpointSignal, parse_signal
from jobs.models import Attempt, ClusterCommand, ClusterCommandKind, ClusterMode

STACK_SIGNALS = frozenset({"USR1", "USR2"})  # other signals have a meaning for programs that do not know Acme
STACKS_LABEL = "acme-stacks"  # job label: the signal, in the notation of sbatch --signal


def attempt_stacks_signal(attempt: Attempt) -> CheckpointSignal | None:
    """Return the signal at which the attempt writes its stacks, or None."""
    notation = (
        str(attempt.job.labels.get(STACKS_LABEL, "")) or attempt.stacks_signal
    )  # the label takes precedence, because the owner knows the job's shell
    try:
        signal = parse_signal(notation) if notation else None
    except InvalidInput:
        return None  # labels are free text
    return signal if signal and signal.signal in STACK_SIGNALS else None


def request_stacks(attempt: Attempt, *, author: Author, why: str) -> bool:
    """Queue the request. Return False if the attempt does not support it, already has one, or is being stopped."""
    signal, job = attempt_stacks_signal(attempt), attempt.job
    # A job that is being stopped would log its stacks during shutdown, which tells nothing about its hang
    if (
        signal is None
        or attempt.stop_state
        or attempt.ended_at
        or job.cluster.mode != ClusterMode.DRIVE
        or job.is_foreign
    ):
        return False
    try:
        with transaction.atomic():
            common = {"attempt": attempt, "cluster_id": job.cluster_id}
            ClusterCommand.objects.create(**common, kind=ClusterCommandKind.STACKS, reason=signal.text)
            journal.job_event("job.stacks_requested", author, job, attempt=attempt, why=why).save()
    except IntegrityError:
        return False  # a request is already open
    return True
