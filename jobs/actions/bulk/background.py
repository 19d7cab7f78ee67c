"""Performs actions on many jobs in the background.

Eligible rows     Unfinished bulk actions, the oldest first.
What a run does   Takes one batch of each in turn, so that a large action does not delay a small one. A batch is one
                  transaction: it changes the jobs, writes their Events and advances the position. The rights of the
                  user and the token are checked again in each batch.
Failure story     Killed anywhere: the open batch is rolled back, and the next run continues at the stored position. Two
                  workers: a locked row is left to the worker that has it. Run again after the end: nothing is eligible.
                  A database error rolls the batch back, and the next run repeats it; the other actions continue. Any
                  other error ends the action.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import datetime

from django.db import DatabaseError, transaction

from jobs.actions import wake
from jobs.actions.bulk.apply import apply_to_jobs
from jobs.actions.job_verbs import JOB_ACTIONS, JobAction, JobActionRequest
from jobs.actions.journal import Author
from jobs.models import BulkAction, TokenScope
from jobs.models.permissions import FULL_SCOPE, Caller

log = logging.getLogger(__name__)

BATCH_SIZE = 500
MAX_BACKGROUND_JOBS = 100_000
MAX_ERRORS_SHOWN = 100


def start_bulk_action(action: JobAction, keys: Sequence[int], request: JobActionRequest, caller: Caller) -> BulkAction:
    """Record the action on these jobs and request a worker after the commit."""
    row = BulkAction.objects.create(
        user=caller.user,
        token=caller.token,
        source=request.author.source,
        request_id=request.author.request_id,
        action=action.name,
        why=request.why,
        priority=request.priority,
        job_keys=list(keys),
        matched=len(keys),
    )
    wake.request_bulk_actions()
    return row


def run_bulk_actions_once(
    clock: Callable[[], datetime], is_over: Callable[[], bool] = lambda: False, batch_size: int = BATCH_SIZE
) -> int:
    """Perform batches until no action is left for this worker or the time is over. Return the number of batches."""
    batches, failed = 0, set[int]()
    while keys := list(BulkAction.objects.unfinished().order_by("id").values_list("pk", flat=True)):
        done = 0
        for key in keys:
            if is_over():
                return batches
            if key in failed:
                continue
            try:
                done += _run_batch(key, clock(), batch_size)
            except DatabaseError as error:
                log.warning("bulk action %s was skipped; retrying in the next run: %s", key, error)
                failed.add(key)
        batches += done
        # Other workers have locked the remaining ones
        if not done:
            break
    return batches


def _run_batch(key: int, now: datetime, size: int) -> bool:
    """Perform the next batch. Return whether there was one for this worker."""
    try:
        with transaction.atomic():
            row = _lock_action(key)
            if row is None:
                return False
            _advance(row, now, size)
    except DatabaseError:
        raise
    except Exception:
        log.exception("bulk action %s ended", key)
        error = "Internal error. The log of the worker has details."
        BulkAction.objects.unfinished().filter(pk=key).update(error=error, ended_at=now)
    return True


def _lock_action(key: int) -> BulkAction | None:
    rows = BulkAction.objects.unfinished().select_for_update(of=("self",), skip_locked=True)
    return rows.select_related("user", "token").filter(pk=key).first()


def _advance(row: BulkAction, now: datetime, size: int) -> None:
    if error := _rights_error(row, now):
        row.error, row.ended_at = error, now
        row.save(update_fields=["error", "ended_at"])
        return
    batch = row.job_keys[row.position : row.position + size]
    author = Author.from_user(row.user, row.request_id, row.source)
    request = JobActionRequest(author=author, why=row.why, priority=row.priority)
    results = apply_to_jobs(JOB_ACTIONS[row.action], batch, request, _caller(row), dry=False)
    refused = [{"id": result.job.public_id, "error": result.error} for result in results if result.error]
    row.position += len(batch)
    row.refused += len(refused)
    row.errors = [*row.errors, *refused][:MAX_ERRORS_SHOWN]
    row.ended_at = now if not row.remaining else None
    row.save(update_fields=["position", "refused", "errors", "ended_at"])


def _caller(row: BulkAction) -> Caller:
    scope = TokenScope(row.token.scope) if row.token else FULL_SCOPE
    return Caller(user=row.user, scope=scope, token=row.token)


def _rights_error(row: BulkAction, now: datetime) -> str:
    if not row.user.is_active:
        return "The user was deactivated."
    if row.token and not row.token.is_usable(now):
        return "The token was revoked or has expired."
    return ""
