"""What the list of jobs may be filtered by: read from an address or a saved view, asked of the rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet
from django.utils.http import urlencode

from jobs.core.lifecycle import FAILURE_STATES, FINAL_STATES, JOB_STATES, LIVE_STATES, JobKind, State
from jobs.models import Job
from jobs.models.permissions import Caller
from jobs.web.page import PageQuery

LIST_FILTERS = ("q", "state", "kind", "team", "user", "cluster", "array")
LIST_SWITCHES = ("mine", "fold")
STATE_GROUPS: dict[str, Iterable[State]] = {
    "waiting": (State.PENDING,),
    "running": sorted(LIVE_STATES),
    "finished": sorted(FINAL_STATES),
    "failed": sorted(FAILURE_STATES),
    **{state.value: (state,) for state in JOB_STATES},
}
NO_VIEW_QUERY = "view=0"  # an address without filters that asks for just that
FILTER_CHOICES: dict[str, list[str]] = {"state": list(STATE_GROUPS), "kind": [kind.value for kind in JobKind]}


@dataclass(frozen=True, kw_only=True)
class JobListFilters:
    """Names of people and places find nothing where nobody is called so; words that are ours are known or wrong."""

    filters: Mapping[str, str]
    mine: bool
    unfolded: bool

    @property
    def kept(self) -> dict[str, str]:
        """The same as an address, without the place in the list."""
        kept = {name: value for name, value in self.filters.items() if value}
        return kept | ({"mine": "1"} if self.mine else {}) | ({"fold": "0"} if self.unfolded else {})

    def url(self, **other: str | None) -> str:
        """No filters at all are asked for too: the bare address may begin with a view."""
        wanted = {name: value for name, value in (self.kept | other).items() if value is not None}
        return f"?{urlencode(wanted) or NO_VIEW_QUERY}"


def read_job_filters(address: PageQuery) -> JobListFilters:
    filters = {
        name: address.choice_value(name, FILTER_CHOICES[name]) if name in FILTER_CHOICES else address.text(name)
        for name in LIST_FILTERS
    }
    mine, fold = (address.choice_value(name, ("0", "1")) for name in LIST_SWITCHES)
    return JobListFilters(filters=filters, mine=mine == "1", unfolded=fold == "0")


def filtered_jobs(user: Any, asked: JobListFilters) -> QuerySet[Job]:
    found, wanted = Caller(user=user).jobs(), asked.filters
    if asked.mine:
        found = found.filter(user=user)
    if wanted["q"]:
        found = found.called(wanted["q"])
    if wanted["state"]:
        found = found.filter(state__in=STATE_GROUPS[wanted["state"]])
    exact = {"kind": "kind", "team": "team__name", "user": "user__username", "cluster": "cluster__name"}
    exact["array"] = "array_id"
    return found.filter(**{field: wanted[name] for name, field in exact.items() if wanted[name]})
