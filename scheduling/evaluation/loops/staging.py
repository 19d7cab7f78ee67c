"""Staging: track the copies of checkpoints on nodes, and remove those that are no longer needed.

Eligible rows     Copies that are being made, exist, or are being removed.
What a turn does  A copy whose job reported success becomes READY. A copy whose job ended otherwise becomes FAILED, and
                  its node gets no copies for a while. A copy that no open campaign of its team needs is removed by a
                  job, if Acme may start one on the cluster. The need is computed in each turn, so it is always
                  current.
Failure story     Each change checks the state and is one transaction with the job that it submits. Killed anywhere: the
                  next turn finds the same rows. A removal on a node that is down waits in the queue. A trial that finds
                  its copy missing reports it (`campaigns`), and the copy is made again.
"""

from __future__ import annotations

import logging
from datetime import datetime

from jobs.actions.one_row import skip_row_on_error
from jobs.actions.wake import request_turn
from jobs.core.lifecycle import FINAL_STATES
from jobs.models import ClusterMode
from scheduling.evaluation.actions import staging as staging_actions
from scheduling.evaluation.loops.campaigns import FINAL_LOG_TAIL_BYTES, read_job_output
from scheduling.models import OPEN_CAMPAIGN_STATES, Campaign, Evaluation, Staging, StagingState, Trial

log = logging.getLogger(__name__)


def advance_stagings_once(now: datetime) -> int:
    """Return how many copies changed their state."""
    there = Staging.objects.filter(state__in=(StagingState.COPYING, StagingState.READY, StagingState.REMOVING))
    moved = 0
    for row in there.select_related("job__cluster", "removal__cluster", "team", "cluster").order_by("id"):
        with skip_row_on_error(row):
            moved += STAGING_STEPS[StagingState(row.state)](row, now)
    return moved


def _check_copy_job(row: Staging, now: datetime) -> bool:
    if row.job.state not in FINAL_STATES:
        return False
    output = read_job_output(row.job, row.nonce, FINAL_LOG_TAIL_BYTES)
    if output is None:
        return False
    if output.gb is not None:
        staging_actions.mark_staging_ready(row, gb=output.gb, took_s=output.at_s, now=now)
    else:
        staging_actions.mark_staging_failed(
            row, output.failed or row.job.why or f"The job ended with state {row.job.state}.", now
        )
    return True


def _remove_unneeded_copy(row: Staging, now: datetime) -> bool:
    if row.cluster.mode == ClusterMode.OBSERVE or _is_needed(row):
        return False
    campaigns = Campaign.objects.filter(cluster=row.cluster, team=row.team, checkpoints__contains=[row.checkpoint])
    last = campaigns.select_related("cluster", "team", "suite").order_by("-id").first()
    if last is None:
        return False
    staging_actions.start_staging_removal(row, last, now)
    request_turn(row.cluster_id)
    return True


def _is_needed(row: Staging) -> bool:
    """Whether an open evaluation or an unfinished trial needs the copy."""
    where = {"campaign__cluster": row.cluster, "campaign__team": row.team, "checkpoint": row.checkpoint}
    open_ = Evaluation.objects.filter(**where, campaign__state__in=OPEN_CAMPAIGN_STATES, state__in=OPEN_CAMPAIGN_STATES)
    return open_.exists() or Trial.objects.filter(**where, ended_at=None).exists()


def _check_removal_job(row: Staging, now: datetime) -> bool:
    if row.removal.state not in FINAL_STATES:
        return False
    output = read_job_output(row.removal, row.nonce, FINAL_LOG_TAIL_BYTES)
    if output is None:
        return False
    why = (
        ""
        if output.removed
        else output.failed or f"The removal job ended with state {row.removal.state}; the copy may still exist."
    )
    staging_actions.mark_staging_removed(row, why, now)
    return True


STAGING_STEPS = {
    StagingState.COPYING: _check_copy_job,
    StagingState.READY: _remove_unneeded_copy,
    StagingState.REMOVING: _check_removal_job,
}
