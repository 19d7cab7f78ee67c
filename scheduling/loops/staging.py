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

from jobs.lifecycle import FINAL
from jobs.models import Mode
from jobs.wishes import want_turn
from scheduling import staging_actions as verbs
from scheduling.evaluation_actions import Gone
from scheduling.loops.evaluate import AT_THE_END, said_by
from scheduling.loops.rows import one_row
from scheduling.models import OPEN, Campaign, Evaluation, Staging, StagingState, Trial

log = logging.getLogger(__name__)


def stage_once(now: datetime) -> int:
    """Return how many copies moved on."""
    there = Staging.objects.filter(state__in=(StagingState.COPYING, StagingState.READY, StagingState.REMOVING))
    moved = 0
    for row in there.select_related("job__cluster", "removal__cluster", "team", "cluster").order_by("id"):
        with one_row(row):
            try:
                moved += STEPS[StagingState(row.state)](row, now)
            except Gone as gone:
                log.info("%s", gone)
    return moved


def _copying(row: Staging, now: datetime) -> bool:
    if row.job.state not in FINAL:
        return False
    said = said_by(row.job, row.nonce, AT_THE_END)
    if said.gb is not None:
        verbs.arrived(row, gb=said.gb, took_s=said.at_s, now=now)
    else:
        verbs.fail(row, said.failed or row.job.why or f"Its job ended as {row.job.state}.", now)
    return True


def _ready(row: Staging, now: datetime) -> bool:
    if row.cluster.mode == Mode.OBSERVE or _is_needed(row):
        return False
    campaigns = Campaign.objects.filter(cluster=row.cluster, team=row.team, checkpoints__contains=[row.checkpoint])
    last = campaigns.select_related("cluster", "team", "suite").order_by("-id").first()
    if last is None:
        return False
    verbs.remove(row, last, now)
    want_turn(row.cluster_id)
    return True


def _is_needed(row: Staging) -> bool:
    """By an evaluation that is open, or a trial that is under way."""
    where = {"campaign__cluster": row.cluster, "campaign__team": row.team, "checkpoint": row.checkpoint}
    open_ = Evaluation.objects.filter(**where, campaign__state__in=OPEN, state__in=OPEN)
    return open_.exists() or Trial.objects.filter(**where, ended_at=None).exists()


def _removing(row: Staging, now: datetime) -> bool:
    if row.removal.state not in FINAL:
        return False
    said = said_by(row.removal, row.nonce, AT_THE_END)
    why = (
        "" if said.removed else said.failed or f"Its removal ended as {row.removal.state}; the copy may still be there."
    )
    verbs.removed(row, why, now)
    return True


STEPS = {StagingState.COPYING: _copying, StagingState.READY: _ready, StagingState.REMOVING: _removing}
