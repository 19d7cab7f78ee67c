"""Earlier requests that a user can start from: the newest job of each name, their own first, then those of their teams.

Reads two short ranges of an index, whatever the size of the history.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import QuerySet

from jobs.core.gpu_shares import charged_milli, gpu_number
from jobs.models import Job, TeamRole

MAX_JOBS_READ = 200  # newest jobs of the user, and of the teams
MAX_REQUESTS = 10
COLUMNS = (
    *("public_id", "name", "kind", "nodes", "gpus_per_node", "gpu_milli"),
    *("submitted_at", "user__username", "team__name"),
)


@dataclass(frozen=True, kw_only=True)
class EarlierRequest:
    """The newest job of a name."""

    public_id: str
    name: str
    kind: str
    nodes: int
    gpus_per_node: int
    gpu_milli: int
    submitted_at: datetime
    user__username: str
    team__name: str

    @property
    def gpus(self) -> float:
        return gpu_number(charged_milli(self.nodes * self.gpus_per_node, self.gpu_milli))


def earlier_requests(user: Any) -> dict[str, list[EarlierRequest]]:
    """The requests by the title of their group."""
    rows = Job.objects.visible_to(user, TeamRole.RESEARCHER).filter(foreign_id="")
    own = _newest_of_each_name(rows.filter(user=user))
    names = {request.name for request in own}
    others = [one for one in _newest_of_each_name(rows.exclude(user=user)) if one.name not in names]
    return {title: found for title, found in (("Your jobs", own), ("Jobs of your teams", others)) if found}


def _newest_of_each_name(rows: QuerySet[Job]) -> list[EarlierRequest]:
    newest: dict[str, EarlierRequest] = {}
    for values in rows.order_by("-id").values(*COLUMNS)[:MAX_JOBS_READ]:
        newest.setdefault(values["name"], EarlierRequest(**values))
    return list(newest.values())[:MAX_REQUESTS]
