"""The campaigns that are under way, as far as the viewer may see them: what is done, what failed, what is left.

Three statements for all of them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jobs.rights import Caller
from scheduling import evaluating
from scheduling.evaluating import Standing
from scheduling.models import OPEN, Campaign

MOST_SHOWN = 8


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """A part of a campaign's bar, in percent of its results."""

    name: str
    tone: str
    results: int
    start: float
    share: float


@dataclass(frozen=True, kw_only=True)
class UnderWay:
    campaign: Campaign
    standing: Standing
    parts: Sequence[Stretch]


def under_way(caller: Caller) -> list[UnderWay]:
    """The newest first, as on the page of all of them."""
    rows = evaluating.campaigns(caller).filter(state__in=OPEN).select_related("team", "suite", "cluster")
    if not rows.exists():
        return []
    found = list(rows.order_by("-pk").defer("plan")[:MOST_SHOWN])
    known = evaluating.standings(found)
    standings = [known.get(row.pk, Standing()) for row in found]
    return [UnderWay(campaign=row, standing=one, parts=_parts(one)) for row, one in zip(found, standings, strict=True)]


def _parts(standing: Standing) -> list[Stretch]:
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
        parts.append(Stretch(name=name, tone=tone, results=results, start=start, share=share))
        begin += results
    return [part for part in parts if part.results]
