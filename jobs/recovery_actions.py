"""The verbs of recovery on a job that waits for it after a failure.

Each is guarded by that wait: who released, cancelled or restarted the job meanwhile has decided, and the verb raises
`Moved`. If recovery never comes, `give_back` lets the rule of `jobs.ending` apply, as if nobody had been asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from django.db import transaction

from jobs import clock, ending, journal
from jobs.actions import Moved, end_of, move, tries_of
from jobs.journal import Author
from jobs.ledgers import crash_loop
from jobs.lifecycle import FINAL, Flag, State
from jobs.models import Attempt, Checkpoint, Cluster, Hold, Job, RecoveryMode, Verdict
from jobs.stop_actions import tell

CHANGEABLE = frozenset({"command", "environment", "memory_per_node_mb"})


@transaction.atomic
def postpone(attempt: Attempt, until: datetime, *, why: str) -> None:
    """It waits on: for a person's yes, or for a test."""
    job = _waiting(attempt)
    Job.objects.filter(pk=job.pk).update(recover_by=until, why=why)
    tell(job)


@transaction.atomic
def restart(
    attempt: Attempt,
    *,
    author: Author,
    why: str,
    resume: Mapping[str, Any] | None = None,
    begin_at: datetime | None = None,
    asks: Mapping[str, Any] | None = None,
) -> None:
    """Back to its old place in the queue. What `resume` holds the next attempt is told in its environment; `asks` are
    fields of its request that become others."""
    job = _waiting(attempt)
    fields: dict[str, Any] = {"resume": dict(resume or {})}
    if begin_at is not None:
        fields["begin_at"] = begin_at
    changed = _changed(job, asks or {})
    Job.objects.filter(pk=job.pk).update(
        hold=Hold.NONE, flags=[Flag.REQUEUED], reason="None", why=why, recover_by=None, **fields, **changed
    )
    told = {
        "resume": fields["resume"],
        "begin_at": begin_at.isoformat() if begin_at else None,
        "changed": sorted(changed),
    }
    journal.of_job("job.recovered", author, job, attempt=attempt, why=why, detail=told).save()
    tell(job)


@transaction.atomic
def distrust(attempt: Attempt, saved: Iterable[tuple[str, int]], *, author: Author, why: str) -> int:
    """These checkpoints hold what went bad, also where only a listing had shown them: nobody goes on from them."""
    rows = [
        Checkpoint(job_id=attempt.job_id, step=step, path=path, verdict=Verdict.BAD, verdict_why=why)
        for path, step in saved
    ]
    Checkpoint.objects.bulk_create(
        rows, update_conflicts=True, unique_fields=["job", "path"], update_fields=["verdict", "verdict_why"]
    )
    if rows:
        detail = {"steps": sorted({row.step for row in rows})[:100]}
        journal.of_job("checkpoint.distrusted", author, attempt.job, attempt=attempt, why=why, detail=detail).save()
    return len(rows)


@transaction.atomic
def trust_again(attempt: Attempt, *, author: Author, why: str, judged: str) -> int:
    """What was distrusted with these words is not any more."""
    rows = Checkpoint.objects.filter(job=attempt.job_id, verdict=Verdict.BAD, verdict_why=judged)
    trusted = rows.update(verdict=Verdict.UNKNOWN, verdict_why="")
    if trusted:
        journal.of_job("checkpoint.trusted", author, attempt.job, attempt=attempt, why=why).save()
    return trusted


@transaction.atomic
def ask_for(job: Job, asks: Mapping[str, Any], *, author: Author, why: str) -> None:
    """A job that waits asks for something else from now on."""
    row = Job.objects.select_for_update(of=("self",)).get(pk=job.pk)
    if row.state != State.PENDING:
        raise Moved(f"{row} is {row.state}; what it asks for is changed only while it waits")
    changed = _changed(row, asks)
    if changed:
        Job.objects.filter(pk=row.pk).update(**changed)
        journal.of_job("job.changed", author, row, why=why, detail={"changed": sorted(changed)}).save()
        tell(row)


def _changed(job: Job, asks: Mapping[str, Any]) -> dict[str, Any]:
    if unknown := set(asks) - CHANGEABLE:
        raise ValueError(f"{', '.join(sorted(unknown))}: recovery does not change that of a job")
    return {name: value for name, value in asks.items() if getattr(job, name) != value}


@transaction.atomic
def give_back(attempt: Attempt, *, author: Author, why: str, hold: bool = False) -> None:
    """Recovery does not start it again. What its end says comes to pass; with `hold` it does not go on by itself."""
    job = _waiting(attempt)
    ended = end_of(attempt)
    becomes = ending.after(ended, wanted="", budget=job.requeue_limit - job.requeues)
    if becomes.state not in FINAL and (loop := why if hold else crash_loop(tries_of(attempt))):
        becomes = ending.held(loop)
    if becomes.state in FINAL:
        fields: dict[str, Any] = {
            "ended_at": ended.at,
            "exit_code": ended.exit_code,
            "signal": ended.signal,
            "reason": "",
        }
        move(job, State(becomes.state), author=author, why=f"{becomes.why} {why}".strip(), attempt=attempt,
             hold=Hold.NONE, **fields)  # fmt: skip
    else:
        _requeue(job, attempt, becomes, author=author, why=why)


def _requeue(job: Job, attempt: Attempt, becomes: ending.Next, *, author: Author, why: str) -> None:
    held = Flag.REQUEUE_HOLD in becomes.flags
    Job.objects.filter(pk=job.pk).update(
        hold=Hold.USER if held else Hold.NONE,
        flags=list(becomes.flags),
        reason="JobHeldUser" if held else "None",
        requeues=job.requeues + becomes.spends_budget,
        recover_by=None,
        why=becomes.why,
    )
    what = "job.held" if held else "job.recovered"
    journal.of_job(what, author, job, attempt=attempt, why=f"{becomes.why} {why}".strip()).save()
    tell(job)


def _waiting(attempt: Attempt) -> Job:
    """Locked. Only the newest attempt's failure is anybody's to recover from."""
    job = Job.objects.select_for_update(of=("self",)).get(pk=attempt.job_id)
    if job.state != State.PENDING or job.recover_by is None:
        raise Moved(f"{job} is {job.state} and waits for no recovery any more")
    if Attempt.objects.filter(job=job, number__gt=attempt.number).exists():
        raise Moved(f"{job} has been tried again since {attempt}")
    return job


def overdue(cluster: Cluster, now: datetime, limit: int = 200) -> list[Attempt]:
    """The newest attempts of jobs whose wait for recovery is over."""
    jobs = Job.objects.recovering().filter(cluster=cluster, recover_by__lte=now).order_by("recover_by")[:limit]
    newest = (Attempt.objects.filter(job=job).select_related("job").order_by("-number").first() for job in jobs)
    return [one for one in newest if one is not None]


@transaction.atomic
def set_mode(
    mode: str, *, author: Author, team_id: int | None = None, cluster_id: int | None = None, action: str = ""
) -> RecoveryMode:
    """How far recovery may go by itself; the same word again changes nothing."""
    row, new = RecoveryMode.objects.select_for_update().get_or_create(
        team_id=team_id, cluster_id=cluster_id, action=action, defaults={"mode": mode, "changed_by": author.by}
    )
    if not new and row.mode == mode:
        return row
    before = "" if new else row.mode
    row.mode, row.changed_by, row.changed_at = mode, author.by, clock.now()
    row.save(update_fields=["mode", "changed_by", "changed_at"])
    detail = {"team": team_id, "action": action, "from": before, "to": mode}
    journal.event("recovery.mode", author, cluster_id=cluster_id, why=str(row), detail=detail).save()
    return row


@transaction.atomic
def unset_mode(row: RecoveryMode, *, author: Author) -> bool:
    """What is said more generally counts again; nothing said at all means propose."""
    told, detail = str(row), {"team": row.team_id, "action": row.action, "from": row.mode, "to": ""}
    if not RecoveryMode.objects.filter(pk=row.pk).delete()[0]:
        return False
    journal.event("recovery.mode", author, cluster_id=row.cluster_id, why=f"no more: {told}", detail=detail).save()
    return True
