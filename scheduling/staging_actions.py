"""The only code that changes a checkpoint's copies on nodes. Each expects a state and writes its Event."""

from __future__ import annotations

from datetime import datetime

from django.db import IntegrityError, transaction

from jobs import actions, journal
from jobs.journal import Author
from jobs.models import Job
from jobs.spec import JobSpec
from scheduling.evaluation import orders
from scheduling.evaluation_actions import COORDINATOR, Gone, by, nonce
from scheduling.models import Campaign, Staging, StagingState

STAGING = Author(by="staging")
COORDINATED = Author(by=COORDINATOR)


def begin(campaign: Campaign, node: str, checkpoint: str, now: datetime) -> Staging:
    """Submit the job that copies it. Gone: somebody else brings it there already, or it is just being removed."""
    word, path = nonce(), orders.copy_path(campaign.suite.stage_root, campaign.team.name, checkpoint)
    spec = orders.copying(f"stage-{campaign.public_id}", node, word, checkpoint, path)
    try:
        with transaction.atomic():
            row = Staging.objects.create(
                cluster=campaign.cluster, team=campaign.team, node=node, checkpoint=checkpoint, path=path, nonce=word
            )
            row.job = _submit(campaign, spec, now)
            row.save(update_fields=["job"])
            _tell(row, "", StagingState.COPYING)
    except IntegrityError:
        raise Gone(f"{checkpoint} is on {node} already, or on its way there or away") from None
    return row


@transaction.atomic
def arrived(row: Staging, *, gb: float | None, took_s: float, now: datetime) -> None:
    _move(row, StagingState.COPYING, StagingState.READY, now, gb=gb, took_s=took_s)


@transaction.atomic
def fail(row: Staging, why: str, now: datetime) -> None:
    _move(row, StagingState.COPYING, StagingState.FAILED, now, why=why)


@transaction.atomic
def lose(row: Staging, why: str, now: datetime) -> None:
    """It is not there any more, or nobody knows."""
    _move(row, row.state, StagingState.REMOVED, now, why=why)


@transaction.atomic
def remove(row: Staging, campaign: Campaign, now: datetime) -> None:
    """`campaign` is the last that needed it: its removal is submitted in the same name."""
    spec = orders.removing(f"unstage-{campaign.public_id}", row.node, row.nonce, row.path)
    _move(row, StagingState.READY, StagingState.REMOVING, now, removal=_submit(campaign, spec, now))


@transaction.atomic
def removed(row: Staging, why: str, now: datetime) -> None:
    _move(row, StagingState.REMOVING, StagingState.REMOVED, now, why=why)


def _submit(campaign: Campaign, spec: JobSpec, now: datetime) -> Job:
    (job,) = actions.submit([spec], cluster=campaign.cluster, team=campaign.team, author=by(campaign), now=now)
    return job


def _move(row: Staging, before: str, after: str, now: datetime, **columns: object) -> None:
    if not Staging.objects.filter(pk=row.pk, state=before).update(state=after, moved_at=now, **columns):
        raise Gone(f"{row} is no longer {before}")
    row.state = after
    _tell(row, before, after, str(columns.get("why", "")))


def _tell(row: Staging, before: str, after: str, why: str = "") -> None:
    detail = {"checkpoint": row.checkpoint, "node": row.node, "path": row.path}
    journal.event(
        "staging.moved", STAGING, cluster_id=row.cluster_id, from_state=before, to_state=after, why=why, detail=detail
    ).save()
