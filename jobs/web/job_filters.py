"""Filters and order of the job list: reading them from a URL or a saved view, and applying them to the rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet
from django.utils.http import urlencode

from jobs.core.lifecycle import FAILURE_STATES, FINAL_STATES, JOB_STATES, LIVE_STATES, JobKind, State
from jobs.models import Job
from jobs.models.permissions import Caller
from jobs.queries.job_order import DEFAULT_JOB_SORT, JOB_SORT_CHOICES
from jobs.web.page import PageQuery

LIST_FILTERS = ("q", "state", "kind", "team", "user", "cluster", "array", "cause")
LIST_SWITCHES = ("mine", "fold")
LIST_ORDER = "sort"
STATE_GROUPS: dict[str, Iterable[State]] = {
    "waiting": (State.PENDING,),
    "running": sorted(LIVE_STATES),
    "finished": sorted(FINAL_STATES),
    "failed": sorted(FAILURE_STATES),
    **{state.value: (state,) for state in JOB_STATES},
}
NO_VIEW_QUERY = "view=0"  # requests the unfiltered list; a URL without parameters may open the user's default view
FILTER_CHOICES: dict[str, list[str]] = {"state": list(STATE_GROUPS), "kind": [kind.value for kind in JobKind]}


@dataclass(frozen=True, kw_only=True)
class JobListFilters:
    """The filters of one request.

    An unknown user, team or cluster name matches no rows. An unknown state or kind is an error (see `FILTER_CHOICES`).
    """

    filters: Mapping[str, str]
    mine: bool
    unfolded: bool
    sort: str = DEFAULT_JOB_SORT

    @property
    def params(self) -> dict[str, str]:
        """The filters and the order as URL parameters, without the page position."""
        return self.filter_params | ({} if self.sort == DEFAULT_JOB_SORT else {LIST_ORDER: self.sort})

    @property
    def filter_params(self) -> dict[str, str]:
        params = {name: value for name, value in self.filters.items() if value}
        return params | ({"mine": "1"} if self.mine else {}) | ({"fold": "0"} if self.unfolded else {})

    def url(self, **other: str | None) -> str:
        """The query string with `other` replaced; None removes a parameter."""
        params = {name: value for name, value in (self.params | other).items() if value is not None}
        return f"?{urlencode(params) or NO_VIEW_QUERY}"


def read_job_filters(address: PageQuery) -> JobListFilters:
    """Read the filters; invalid values are left out and recorded in `address.wrong`."""
    filters = {
        name: address.choice_value(name, FILTER_CHOICES[name]) if name in FILTER_CHOICES else address.text(name)
        for name in LIST_FILTERS
    }
    mine, fold = (address.choice_value(name, ("0", "1")) for name in LIST_SWITCHES)
    sort = address.choice_value(LIST_ORDER, JOB_SORT_CHOICES, DEFAULT_JOB_SORT)
    return JobListFilters(filters=filters, mine=mine == "1", unfolded=fold == "0", sort=sort)


def filtered_jobs(user: Any, selection: JobListFilters) -> QuerySet[Job]:
    """The jobs visible to the user that match the filters."""
    jobs, filters = Caller(user=user).jobs(), selection.filters
    if selection.mine:
        jobs = jobs.filter(user=user)
    if filters["q"]:
        jobs = jobs.matching_text(filters["q"])
    if filters["state"]:
        jobs = jobs.filter(state__in=STATE_GROUPS[filters["state"]])
    if filters["cause"]:
        jobs = jobs.with_cause(filters["cause"])
    exact = {"kind": "kind", "team": "team__name", "user": "user__username", "cluster": "cluster__name"}
    exact["array"] = "array_id"
    return jobs.filter(**{field: filters[name] for name, field in exact.items() if filters[name]})
