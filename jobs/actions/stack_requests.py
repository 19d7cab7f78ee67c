"""Ask the processes of a running attempt where they stand: a signal at which each writes its stacks into the log.

A signal ends whoever does not expect it. So only those are asked that have said they can be: the attempt by what it
reports (`stacks`), or the job by its label.
"""

from __future__ import annotations

from django.db import IntegrityError, transaction

from jobs.actions import journal
from jobs.actions.journal import Author
from jobs.core.slurm_notation import BadNotation, CheckpointSignal, parse_signal
from jobs.models import Attempt, ClusterCommandKind, ClusterMode, Deed

STACK_SIGNALS = frozenset({"USR1", "USR2"})  # any other means something to a program that was never told of us
STACKS_LABEL = "acme-stacks"  # of a job: the signal, as sbatch's --signal writes it


def attempt_stacks_signal(attempt: Attempt) -> CheckpointSignal | None:
    said = str(attempt.job.labels.get(STACKS_LABEL, "")) or attempt.stacks_signal  # its owner knows its shell
    try:
        ask = parse_signal(said) if said else None
    except BadNotation:
        return None  # a label is free text
    return ask if ask and ask.signal in STACK_SIGNALS else None


def request_stacks(attempt: Attempt, *, author: Author, why: str) -> bool:
    """False where it cannot be asked, or is being asked, or is to end anyway."""
    signal, job = attempt_stacks_signal(attempt), attempt.job
    if signal is None or attempt.stop_as or attempt.ended_at or job.cluster.mode != ClusterMode.DRIVE or job.is_foreign:
        return False
    try:
        with transaction.atomic():
            common = {"attempt": attempt, "cluster_id": job.cluster_id}
            Deed.objects.create(**common, kind=ClusterCommandKind.STACKS, reason=signal.text)
            journal.job_event("job.stacks_asked", author, job, attempt=attempt, why=why).save()
    except IntegrityError:
        return False  # one is on its way
    return True
