"""Program errors of a period, grouped by signature: the same error of ten jobs is one row."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, Max, Sum

from failures.models.diagnosis import category_badge
from failures.models.incident import IncidentQuerySet
from jobs.core.lifecycle import StateBadge

MAX_GROUPS = 100


@dataclass(frozen=True, kw_only=True)
class ProgramErrorGroup:
    badge: StateBadge
    signature: str  # the shape of the first line of evidence; empty if the log has none
    incidents: int
    attempts: int
    gpu_hours_lost: float
    last_symptom_at: datetime
    newest: int  # key of the newest incident


# The name of an order, and its column among the sums
PROGRAM_SORTS = {
    "cause": "root_cause",
    "incidents": "incidents",
    "attempts": "failed",
    "lost": "lost",
    "last": "last",
    "newest": "newest",
}


def group_by_signature(
    incidents: IncidentQuerySet, since: datetime, until: datetime, sort: str = "-lost"
) -> list[ProgramErrorGroup]:
    """The first `MAX_GROUPS` groups in this order; by default those that lost the most GPU time."""
    sign, column = "-" * sort.startswith("-"), PROGRAM_SORTS[sort.removeprefix("-")]
    rows = incidents.of_programs().filter(last_symptom_at__gte=since, last_symptom_at__lt=until)
    groups = rows.order_by().values("root_cause", "category", "words")
    sums = groups.annotate(
        incidents=Count("pk"), failed=Sum("attempts"), lost=Sum("gpu_hours_lost"), last=Max("last_symptom_at"),
        newest=Max("pk"),
    )  # fmt: skip
    return [
        ProgramErrorGroup(
            badge=category_badge(row["root_cause"], row["category"]), signature=row["words"],
            incidents=row["incidents"], attempts=row["failed"], gpu_hours_lost=row["lost"],
            last_symptom_at=row["last"], newest=row["newest"],
        )
        for row in sums.order_by(f"{sign}{column}", "-newest")[:MAX_GROUPS]
    ]  # fmt: skip
