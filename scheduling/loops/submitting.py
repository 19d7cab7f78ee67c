"""Handing many promised attempts to their cluster at once: over several connections, and noted in one transaction.

An earlier try may have got through although nobody heard of it; so from the second try on an attempt is looked up by
its key, in one look for all of them. Killed between the calls and the note, the next claim is such a second try.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime

from django.conf import settings
from django.db import transaction

from jobs import actions, progress, stack_actions
from jobs.journal import SCHEDULER, SYNC
from jobs.models import Allocation, Attempt, Deed
from jobs.resuming import TEMPLATE, resuming
from scheduling.backends.base import Backend, BackendError, Doubtful, Misplaced, Refused, Submission
from scheduling.loops.deeds import put_off, put_off_all, settle, settle_all
from scheduling.loops.rows import one_row

ANYWHERE = "/tmp"  # Slurm wants a directory, and this one is on every node  # noqa: S108


def submit_all(deeds: Sequence[Deed], backend: Backend, now: datetime) -> int:
    """Return how many were settled. Raises Unreachable once all that is known is noted."""
    settled, accepted, to_send = 0, {}, []
    known = _known(deeds, backend, now)
    for deed in deeds:
        attempt = deed.attempt
        if attempt.ended_at:
            settled += settle(deed, now, "not needed any more")
        elif attempt.key in known:
            accepted[deed] = known[attempt.key]
        elif attempt.stop_as:
            with one_row(deed):
                settled += _withdraw(deed, now)
        else:
            to_send.append(deed)
    answers = backend.submit_all(_submissions([deed.attempt for deed in to_send]))
    failed: list[tuple[Deed, BackendError]] = []
    for deed, answer in zip(to_send, answers, strict=True):
        if isinstance(answer, BackendError):
            failed.append((deed, answer))
        else:
            accepted[deed] = answer
    settled += _note_accepted(accepted, now)
    for deed, error in failed:
        with one_row(deed):
            settled += _note_failed(deed, error, now)
    _raise_if_away([error for _, error in failed])
    return settled


def _raise_if_away(errors: Sequence[BackendError]) -> None:
    """Whatever else is due would not get through either."""
    for error in errors:
        if not isinstance(error, Doubtful | Refused):
            raise error


def _known(deeds: Sequence[Deed], backend: Backend, now: datetime) -> Mapping[str, str]:
    """Key -> the cluster's id, of those that were tried before; the newest where there are several."""
    again = {deed.attempt.key for deed in deeds if deed.tries > 1}
    if not again:
        return {}
    try:
        seen = [job for job in backend.jobs() if job.key in again]
    except BackendError as error:
        put_off_all(deeds, now, str(error))
        raise
    return {job.key: job.backend_id for job in sorted(seen, key=lambda job: int(job.backend_id))}


def _withdraw(deed: Deed, now: datetime) -> bool:
    with transaction.atomic():
        actions.withdraw(deed.attempt, now=now, author=SCHEDULER)
        return settle(deed, now, "withdrawn before it was sent")


def _note_accepted(accepted: Mapping[Deed, str], now: datetime) -> int:
    with transaction.atomic():
        actions.accepted_all({deed.attempt.pk: backend_id for deed, backend_id in accepted.items()})
        return settle_all({deed: f"accepted as {backend_id}" for deed, backend_id in accepted.items()}, now)


def _note_failed(deed: Deed, error: BackendError, now: datetime) -> bool:
    if isinstance(error, Refused):
        with transaction.atomic():
            about_place = isinstance(error, Misplaced)
            actions.refuse(deed.attempt, str(error), about_place=about_place, now=now, author=SYNC)
            return settle(deed, now, f"refused: {error}")
    put_off(deed, now, f"in doubt: {error}" if isinstance(error, Doubtful) else str(error))
    return False


def _submissions(attempts: Sequence[Attempt]) -> list[Submission]:
    placed: dict[int, dict[str, str]] = defaultdict(dict)
    rows = Allocation.objects.filter(attempt__in=attempts).order_by("node__name")
    for attempt, node, model in rows.values_list("attempt_id", "node__name", "node__gpu_model"):
        placed[attempt][node] = model
    return [_submission(attempt, placed[attempt.pk]) for attempt in attempts]


def _submission(attempt: Attempt, nodes: Mapping[str, str]) -> Submission:
    """`nodes` has the GPU model of each."""
    job = attempt.job
    return Submission(
        key=attempt.key,
        name=job.name,
        user=job.user.get_username(),
        account=job.team.name,
        script=job.command,
        workdir=job.workdir or ANYWHERE,
        environment={**job.environment, **_about(attempt)},
        nodes=tuple(nodes),
        gpus_per_node=job.gpus_per_node,
        gpu_model=job.gpu_model or next(iter(nodes.values()), ""),
        cpus_per_node=job.cpus_per_node,
        memory_per_node_mb=job.memory_per_node_mb,
        time_limit=job.time_limit,
        stdout=attempt.log_path,
    )


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
        "ACME_STACKS": asked.text if (asked := stack_actions.signal_of(attempt)) else "",
    }
    about |= resuming(job.resume, job.environment.get(TEMPLATE, ""))
    if job.array_index is not None:
        index = str(job.array_index)
        about |= {"SLURM_ARRAY_JOB_ID": job.array_id, "SLURM_ARRAY_TASK_ID": index, "ACME_ARRAY_INDEX": index}
    return {name: value for name, value in about.items() if value}
