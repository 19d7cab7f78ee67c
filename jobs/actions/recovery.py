"""Recovery actions on a job that waits for a recovery decision after a failure.

Each action requires that the job still waits. If a user released, cancelled or restarted the job meanwhile, the action
raises `StateConflict`. If recovery makes no decision in time, `decline_recovery` applies the rules of
`jobs.core.attempt_end`, as if recovery were off.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from django.db import transaction

from acmeweb.common.errors import ClaimLost, StateConflict
from jobs.actions import journal
from jobs.actions.jobs import attempt_history, change_state, recorded_end
from jobs.actions.journal import Author
from jobs.actions.stop import publish_job_change
from jobs.core import attempt_end
from jobs.core.lifecycle import FINAL_STATES, Flag, State
from jobs.core.retry_budget import crash_loop_reason
from jobs.models import Attempt, Checkpoint, CheckpointVerdict, Cluster, HoldKind, Job, RecoveryMode, clock

CHANGEABLE_FIELDS = frozenset({"command", "environment", "memory_per_node_mb"})


@transaction.atomic
def postpone(attempt: Attempt, until: datetime, *, why: str) -> None:
    """Let the job wait longer: for an approval, or for a test."""
    job = _lock_recovering_job(attempt)
    Job.objects.filter(pk=job.pk).update(recover_by=until, why=why)
    publish_job_change(job)


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
    """Return the job to its place in the queue.

    `resume` is passed to the next attempt in its environment. `asks` are changes to the job's request.
    """
    job = _lock_recovering_job(attempt)
    fields: dict[str, Any] = {"resume": dict(resume or {})}
    if begin_at is not None:
        fields["begin_at"] = begin_at
    changed = _request_changes(job, asks or {})
    Job.objects.filter(pk=job.pk).update(
        hold=HoldKind.NONE, flags=[Flag.REQUEUED], reason="None", why=why, recover_by=None, **fields, **changed
    )
    event_detail = {
        "resume": fields["resume"],
        "begin_at": begin_at.isoformat() if begin_at else None,
        "changed": sorted(changed),
    }
    journal.job_event("job.recovered", author, job, attempt=attempt, why=why, detail=event_detail).save()
    publish_job_change(job)


@transaction.atomic
def mark_checkpoints_bad(attempt: Attempt, saved: Iterable[tuple[str, int]], *, author: Author, why: str) -> int:
    """Mark checkpoints as bad, so that no attempt resumes from them. Creates rows for those known only from a directory
    listing."""
    rows = [
        Checkpoint(job_id=attempt.job_id, step=step, path=path, verdict=CheckpointVerdict.BAD, verdict_why=why)
        for path, step in saved
    ]
    # Upsert: checkpoints known only from a directory listing have no row yet
    Checkpoint.objects.bulk_create(
        rows, update_conflicts=True, unique_fields=["job", "path"], update_fields=["verdict", "verdict_why"]
    )
    if rows:
        detail = {"steps": sorted({row.step for row in rows})[:100]}
        journal.job_event("checkpoint.distrusted", author, attempt.job, attempt=attempt, why=why, detail=detail).save()
    return len(rows)


@transaction.atomic
def unmark_bad_checkpoints(attempt: Attempt, *, author: Author, why: str, judged: str) -> int:
    """Remove the mark from the checkpoints that were marked for this reason. Return their number."""
    rows = Checkpoint.objects.filter(job=attempt.job_id, verdict=CheckpointVerdict.BAD, verdict_why=judged)
    unmarked = rows.update(verdict=CheckpointVerdict.UNKNOWN, verdict_why="")
    if unmarked:
        journal.job_event("checkpoint.trusted", author, attempt.job, attempt=attempt, why=why).save()
    return unmarked


@transaction.atomic
def change_job_request(job: Job, asks: Mapping[str, Any], *, author: Author, why: str) -> None:
    """Change the request of a waiting job."""
    row = Job.objects.select_for_update(of=("self",)).get(pk=job.pk)
    if row.state != State.PENDING:
        raise StateConflict(f"{row} is {row.state}; its request can only be changed while it waits")
    changed = _request_changes(row, asks)
    if changed:
        Job.objects.filter(pk=row.pk).update(**changed)
        journal.job_event("job.changed", author, row, why=why, detail={"changed": sorted(changed)}).save()
        publish_job_change(row)


def _request_changes(job: Job, asks: Mapping[str, Any]) -> dict[str, Any]:
    # A closed list: recovery must not change, for example, the owner or the priority
    if unknown := set(asks) - CHANGEABLE_FIELDS:
        raise ValueError(f"{', '.join(sorted(unknown))}: recovery cannot change these fields")
    return {name: value for name, value in asks.items() if getattr(job, name) != value}


@transaction.atomic
def decline_recovery(attempt: Attempt, *, author: Author, why: str, hold: bool = False) -> None:
    """Apply the rules without recovery. With `hold`, a job that would be requeued is held instead."""
    job = _lock_recovering_job(attempt)
    ended = recorded_end(attempt)
    transition = attempt_end.transition_after_end(ended, requested="", budget=job.requeue_limit - job.requeues)
    if transition.state not in FINAL_STATES and (
        hold_reason := why if hold else crash_loop_reason(attempt_history(attempt))
    ):
        transition = attempt_end.transition_to_hold(hold_reason)
    if transition.state in FINAL_STATES:
        fields: dict[str, Any] = {
            "started_at": attempt.confirmed_at,  # cleared while the job waited for the decision
            "ended_at": ended.at,
            "exit_code": ended.exit_code,
            "signal": ended.signal,
            "reason": "",
        }
        why = f"{transition.why} {why}".strip()
        state = State(transition.state)
        change_state(job, state, author=author, why=why, attempt=attempt, hold=HoldKind.NONE, **fields)
    else:
        _requeue_without_recovery(job, attempt, transition, author=author, why=why)


def _requeue_without_recovery(
    job: Job, attempt: Attempt, transition: attempt_end.JobTransition, *, author: Author, why: str
) -> None:
    is_held = Flag.REQUEUE_HOLD in transition.flags
    Job.objects.filter(pk=job.pk).update(
        hold=HoldKind.USER if is_held else HoldKind.NONE,
        flags=list(transition.flags),
        reason="JobHeldUser" if is_held else "None",
        requeues=job.requeues + transition.spends_budget,
        recover_by=None,
        why=transition.why,
    )
    what = "job.held" if is_held else "job.recovered"
    journal.job_event(what, author, job, attempt=attempt, why=f"{transition.why} {why}".strip()).save()
    publish_job_change(job)


def _lock_recovering_job(attempt: Attempt) -> Job:
    """Lock and return the job. Raises ClaimLost if it no longer waits for this attempt's recovery."""
    job = Job.objects.select_for_update(of=("self",)).get(pk=attempt.job_id)
    if job.state != State.PENDING or job.recover_by is None:
        raise ClaimLost(f"{job} is {job.state} and no longer waits for recovery")
    # A decision about an older failure must not affect a newer attempt
    if Attempt.objects.filter(job=job, number__gt=attempt.number).exists():
        raise ClaimLost(f"{job} has a newer attempt than {attempt}")
    return job


def overdue_recoveries(cluster: Cluster, now: datetime, limit: int = 200) -> list[Attempt]:
    """Return the newest attempts of jobs whose time to wait for recovery is over."""
    jobs = Job.objects.recovering().filter(cluster=cluster, recover_by__lte=now).order_by("recover_by")[:limit]
    newest = (Attempt.objects.filter(job=job).select_related("job").order_by("-number").first() for job in jobs)
    return [attempt for attempt in newest if attempt is not None]


@transaction.atomic
def set_recovery_mode(
    mode: str, *, author: Author, team_id: int | None = None, cluster_id: int | None = None, action: str = ""
) -> RecoveryMode:
    """Set how far recovery may act without approval. The same mode again changes nothing."""
    row, is_new = RecoveryMode.objects.select_for_update().get_or_create(
        team_id=team_id, cluster_id=cluster_id, action=action, defaults={"mode": mode, "changed_by": author.by}
    )
    # No Event for a repeated setting
    if not is_new and row.mode == mode:
        return row
    before = "" if is_new else row.mode
    row.mode, row.changed_by, row.changed_at = mode, author.by, clock.now()
    row.save(update_fields=["mode", "changed_by", "changed_at"])
    detail = {"team": team_id, "action": action, "from": before, "to": mode}
    journal.new_event("recovery.mode_changed", author, cluster_id=cluster_id, why=str(row), detail=detail).save()
    return row


@transaction.atomic
def clear_recovery_mode(row: RecoveryMode, *, author: Author) -> bool:
    """Remove the setting, so that the more general one applies, or propose without any."""
    setting, detail = str(row), {"team": row.team_id, "action": row.action, "from": row.mode, "to": ""}
    if not RecoveryMode.objects.filter(pk=row.pk).delete()[0]:
        return False
    journal.new_event(
        "recovery.mode_changed", author, cluster_id=row.cluster_id, why=f"Removed: {setting}", detail=detail
    ).save()
    return True
