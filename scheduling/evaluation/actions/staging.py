"""All changes to copies of checkpoints on nodes. Each function checks the state and writes an Event."""

from __future__ import annotations

from datetime import datetime

from django.db import IntegrityError, transaction

from acmeweb.common.errors import StateConflict
from jobs.actions import jobs as job_actions
from jobs.actions import journal
from jobs.actions.journal import Author
from jobs.core.spec import JobSpec
from jobs.models import Job
from scheduling.evaluation.actions.campaigns import COORDINATOR, campaign_author, new_nonce
from scheduling.evaluation.rules import orders
from scheduling.models import Campaign, Staging, StagingState

STAGING_AUTHOR = Author(by="staging")
COORDINATOR_AUTHOR = Author(by=COORDINATOR)


def start_staging(campaign: Campaign, node: str, checkpoint: str, now: datetime) -> Staging:
    """Submit the job that copies a checkpoint to a node. Raises StateConflict if the copy exists already or is being
    made or removed."""
    nonce, path = new_nonce(), orders.copy_path(campaign.suite.stage_root, campaign.team.name, checkpoint)
    spec = orders.staging_job(f"stage-{campaign.public_id}", node, nonce, checkpoint, path)
    try:
        with transaction.atomic():
            row = Staging.objects.create(
                cluster=campaign.cluster, team=campaign.team, node=node, checkpoint=checkpoint, path=path, nonce=nonce
            )
            row.job = _submit_staging_job(campaign, spec, now)
            row.save(update_fields=["job"])
            _log_staging_event(row, "", StagingState.COPYING)
    except IntegrityError:
        raise StateConflict(f"a copy of {checkpoint} on {node} already exists, or is being made or removed") from None
    return row


@transaction.atomic
def mark_staging_ready(row: Staging, *, gb: float | None, took_s: float, now: datetime) -> None:
    _set_staging_state(row, StagingState.COPYING, StagingState.READY, now, gb=gb, took_s=took_s)


@transaction.atomic
def mark_staging_failed(row: Staging, why: str, now: datetime) -> None:
    _set_staging_state(row, StagingState.COPYING, StagingState.FAILED, now, why=why)


@transaction.atomic
def mark_staging_lost(row: Staging, why: str, now: datetime) -> None:
    """Record that the copy is gone or that its state is unknown."""
    _set_staging_state(row, row.state, StagingState.REMOVED, now, why=why)


@transaction.atomic
def start_staging_removal(row: Staging, campaign: Campaign, now: datetime) -> None:
    """Submit the job that removes a copy, on behalf of `campaign`, the last one that needed it."""
    spec = orders.removal_job(f"unstage-{campaign.public_id}", row.node, row.nonce, row.path)
    removal = _submit_staging_job(campaign, spec, now)
    _set_staging_state(row, StagingState.READY, StagingState.REMOVING, now, removal=removal)


@transaction.atomic
def mark_staging_removed(row: Staging, why: str, now: datetime) -> None:
    _set_staging_state(row, StagingState.REMOVING, StagingState.REMOVED, now, why=why)


def _submit_staging_job(campaign: Campaign, spec: JobSpec, now: datetime) -> Job:
    (job,) = job_actions.submit(
        [spec], cluster=campaign.cluster, team=campaign.team, author=campaign_author(campaign), now=now
    )
    return job


def _set_staging_state(row: Staging, before: str, after: str, now: datetime, **columns: object) -> None:
    if not Staging.objects.filter(pk=row.pk, state=before).update(state=after, moved_at=now, **columns):
        raise StateConflict(f"{row} is no longer {before}")
    row.state = after
    _log_staging_event(row, before, after, str(columns.get("why", "")))


def _log_staging_event(row: Staging, before: str, after: str, why: str = "") -> None:
    detail = {"checkpoint": row.checkpoint, "node": row.node, "path": row.path}
    journal.new_event(
        "staging.state_changed",
        STAGING_AUTHOR,
        cluster_id=row.cluster_id,
        from_state=before,
        to_state=after,
        why=why,
        detail=detail,
    ).save()
