"""Staging: the copies of models on nodes, from their arrival to their removal.

Who is eligible   copies that are on their way to a node, on it, or on their way off it.
What a turn does  one whose job said that it is there is READY; one whose job ended otherwise has FAILED, and its node
                  is left alone for a while. One that no open campaign of its team needs any more is removed by a job of
                  its own, where Acme may start one; that count is taken anew in each turn, so it cannot drift from
                  what is really needed.
Failure story     Each verb expects a state and is one transaction with the job it submits. Killed anywhere, the next
                  turn finds the same rows. A removal whose node is down waits for the node in the queue. A copy that
                  vanished is found by the trial that looks for it (`evaluate`), and made again.
"""

from __future__ import annotations

import logging
from datetime import datetime

from jobs.actions.one_row import skip_row_on_error
from jobs.actions.wake import request_turn
from jobs.core.lifecycle import FINAL_STATES
from jobs.models import ClusterMode
from scheduling.actions import staging as verbs
from scheduling.actions.campaigns import CampaignStateConflict
from scheduling.loops.campaigns import FINAL_LOG_TAIL_BYTES, read_job_output
from scheduling.models import OPEN_CAMPAIGN_STATES, Campaign, Evaluation, Staging, StagingState, Trial

log = logging.getLogger(__name__)


def advance_stagings_once(now: datetime) -> int:
    """Return how many copies moved on."""
    there = Staging.objects.filter(state__in=(StagingState.COPYING, StagingState.READY, StagingState.REMOVING))
    moved = 0
    for row in there.select_related("job__cluster", "removal__cluster", "team", "cluster").order_by("id"):
        with skip_row_on_error(row):
            try:
                moved += STAGING_STEPS[StagingState(row.state)](row, now)
            except CampaignStateConflict as gone:
                log.info("%s", gone)
    return moved


def _check_copy_job(row: Staging, now: datetime) -> bool:
    if row.job.state not in FINAL_STATES:
        return False
    said = read_job_output(row.job, row.nonce, FINAL_LOG_TAIL_BYTES)
    if said.gb is not None:
        verbs.mark_staging_ready(row, gb=said.gb, took_s=said.at_s, now=now)
    else:
        verbs.mark_staging_failed(row, said.failed or row.job.why or f"Its job ended as {row.job.state}.", now)
    return True


def _remove_unneeded_copy(row: Staging, now: datetime) -> bool:
    if row.cluster.mode == ClusterMode.OBSERVE or _is_needed(row):
        return False
    campaigns = Campaign.objects.filter(cluster=row.cluster, team=row.team, checkpoints__contains=[row.checkpoint])
    last = campaigns.select_related("cluster", "team", "suite").order_by("-id").first()
    if last is None:
        return False
    verbs.start_staging_removal(row, last, now)
    request_turn(row.cluster_id)
    return True


def _is_needed(row: Staging) -> bool:
    """By an evaluation that is open, or a trial that is under way."""
    where = {"campaign__cluster": row.cluster, "campaign__team": row.team, "checkpoint": row.checkpoint}
    open_ = Evaluation.objects.filter(**where, campaign__state__in=OPEN_CAMPAIGN_STATES, state__in=OPEN_CAMPAIGN_STATES)
    return open_.exists() or Trial.objects.filter(**where, ended_at=None).exists()


def _check_removal_job(row: Staging, now: datetime) -> bool:
    if row.removal.state not in FINAL_STATES:
        return False
    said = read_job_output(row.removal, row.nonce, FINAL_LOG_TAIL_BYTES)
    why = (
        "" if said.removed else said.failed or f"Its removal ended as {row.removal.state}; the copy may still be there."
    )
    verbs.mark_staging_removed(row, why, now)
    return True


STAGING_STEPS = {
    StagingState.COPYING: _check_copy_job,
    StagingState.READY: _remove_unneeded_copy,
    StagingState.REMOVING: _check_removal_job,
}
