"""The campaigns that are under way, as far as the viewer may see them: what is done, what failed, what is left.

Three statements for all of them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jobs.models.permissions import Caller
from scheduling.models import OPEN_CAMPAIGN_STATES, Campaign
from scheduling.queries import campaigns as campaign_queries
from scheduling.queries.campaigns import CampaignProgress

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
    standing: CampaignProgress
    parts: Sequence[CampaignBarPart]


def running_campaigns(caller: Caller) -> list[RunningCampaign]:
    """The newest first, as on the page of all of them."""
    rows = (
        campaign_queries.campaigns(caller)
        .filter(state__in=OPEN_CAMPAIGN_STATES)
        .select_related("team", "suite", "cluster")
    )
    if not rows.exists():
        return []
    found = list(rows.order_by("-pk").defer("plan")[:MAX_CAMPAIGNS_SHOWN])
    known = campaign_queries.campaign_progress(found)
    standings = [known.get(row.pk, CampaignProgress()) for row in found]
    return [
        RunningCampaign(campaign=row, standing=one, parts=_bar_parts(one))
        for row, one in zip(found, standings, strict=True)
    ]


def _bar_parts(standing: CampaignProgress) -> list[CampaignBarPart]:
    left = standing.evaluations - standing.done - standing.failed - standing.cancelled
    sizes = [
        ("done", "good", standing.done),
        ("failed", "bad", standing.failed),
        ("cancelled", "quiet", standing.cancelled),
        ("left", "waiting", left),
    ]
    parts, begin = [], 0
    for name, tone, results in sizes:
        start, share = (round(100 * size / (standing.evaluations or 1), 3) for size in (begin, results))
        parts.append(CampaignBarPart(name=name, tone=tone, results=results, start=start, share=share))
        begin += results
    return [part for part in parts if part.results]
