"""What the list of jobs may be filtered by: read from an address or a saved view, asked of the rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet
from django.utils.http import urlencode

from jobs.lifecycle import FAILURES, FINAL, JOB_STATES, LIVE, Kind, State
from jobs.models import Job
from jobs.pages import Address
from jobs.rights import Caller

FILTERS = ("q", "state", "kind", "team", "user", "cluster", "array")
SWITCHES = ("mine", "fold")
STATE_GROUPS: dict[str, Iterable[State]] = {
    "waiting": (State.PENDING,),
    "running": sorted(LIVE),
    "finished": sorted(FINAL),
    "failed": sorted(FAILURES),
    **{state.value: (state,) for state in JOB_STATES},
}
NO_VIEW = "view=0"  # an address without filters that asks for just that
WORDS: dict[str, list[str]] = {"state": list(STATE_GROUPS), "kind": [kind.value for kind in Kind]}


@dataclass(frozen=True, kw_only=True)
class Asked:
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
        return f"?{urlencode(wanted) or NO_VIEW}"


def asked(address: Address) -> Asked:
    filters = {name: address.one_of(name, WORDS[name]) if name in WORDS else address.text(name) for name in FILTERS}
    mine, fold = (address.one_of(name, ("0", "1")) for name in SWITCHES)
    return Asked(filters=filters, mine=mine == "1", unfolded=fold == "0")


def found(user: Any, asked: Asked) -> QuerySet[Job]:
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
