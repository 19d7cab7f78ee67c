"""The running campaigns that the viewer may see: results done, failed and remaining.

Three queries for all campaigns together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jobs.models.permissions import Caller
from scheduling.evaluation.reads import campaigns as campaign_reads
from scheduling.evaluation.reads.campaigns import CampaignProgress
from scheduling.models import OPEN_CAMPAIGN_STATES, Campaign

MAX_CAMPAIGNS_SHOWN = 8


@dataclass(frozen=True, kw_only=True)
class CampaignBarPart:
    """A part of a campaign's bar, in percent of its results."""

    name: str
    tone: str
    results: int
    start: float
    share: float


@dataclass(frozen=True, kw_only=True)
class RunningCampaign:
    campaign: Campaign
    progress: CampaignProgress
    parts: Sequence[CampaignBarPart]


def running_campaigns(caller: Caller) -> list[RunningCampaign]:
    """Return the running campaigns, newest first, as on the page of all campaigns."""
    rows = campaign_reads.campaigns(caller).filter(state__in=OPEN_CAMPAIGN_STATES)
    if not rows.exists():
        return []
    newest = rows.select_related("team", "suite", "cluster").defer("plan").order_by("-pk")
    rows_shown = list(newest[:MAX_CAMPAIGNS_SHOWN])
    progress_by_id = campaign_reads.campaign_progress(rows_shown)
    progresses = [progress_by_id.get(row.pk, CampaignProgress()) for row in rows_shown]
    return [
        RunningCampaign(campaign=row, progress=progress, parts=_bar_parts(progress))
        for row, progress in zip(rows_shown, progresses, strict=True)
    ]


def _bar_parts(progress: CampaignProgress) -> list[CampaignBarPart]:
    remaining = progress.evaluations - progress.done - progress.failed - progress.cancelled
    sizes = [
        ("done", "good", progress.done),
        ("failed", "bad", progress.failed),
        ("cancelled", "quiet", progress.cancelled),
        ("left", "waiting", remaining),
    ]
    parts, begin = [], 0
    for name, tone, results in sizes:
        start, share = (round(100 * size / (progress.evaluations or 1), 3) for size in (begin, results))
        parts.append(CampaignBarPart(name=name, tone=tone, results=results, start=start, share=share))
        begin += results
    return [part for part in parts if part.results]
