"""Saved views of the list of jobs through the programs' door: the same views, rights and sentences as on the page."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from django.http import QueryDict
from django.utils.http import urlencode
from rest_framework.response import Response

from jobs import job_filters, readers, view_actions
from jobs.door import pages, query
from jobs.door.endpoint import Detail, Listing, Verb, as_it_is, found, locked, refuse_unknown
from jobs.door.errors import BadField
from jobs.door.rights import Rule
from jobs.door.shapes import Field, Shape, at, moment, names, number, text, truth
from jobs.job_filters import FILTERS, SWITCHES
from jobs.models import SavedView, Scope
from jobs.pages import LONGEST_WORD, Address
from jobs.rights import Caller

WORDS = (*FILTERS, *SWITCHES)
FILTERS_SAY = f"As in the address of the list of jobs: {', '.join(WORDS)}. None: it shows everything."

FIELDS: dict[str, Field] = {
    "id": number(),
    "name": text(),
    "team": text("Who sees it; null: only its owner.", get=at("team.name"), needs=("team__name",), nullable=True),
    "owner": text(get=at("owner.username"), needs=("owner__username",)),
    "filters": names(FILTERS_SAY, get=lambda row: QueryDict(row.query).dict(), needs=("query",)),
    "is_first": truth("Your list of jobs begins with it.", needs=()),
    "created_at": moment(),
}
VIEW = Shape("SavedView", FIELDS)
WISH = Shape(
    "SavedViewRequest",
    {
        "name": text("One of yours, or of the team, that is called so shows these filters from now on."),
        "filters": names(FILTERS_SAY, required=False),
        "team": text("Who sees it; left out: only you.", required=False),
        "is_first": truth("Begin your list of jobs with it.", required=False),
    },
    example={"name": "Nights", "filters": {"state": "failed", "kind": "pretrain"}, "team": "pretraining"},
)
CHANGE = Shape(
    "SavedViewChange",
    {
        "name": text(required=False),
        "filters": names(FILTERS_SAY, required=False),
        "is_first": truth("Whether your list of jobs begins with it.", required=False),
    },
    example={"name": "Night shift"},
)
NOTHING = Shape("Nothing", {})


def _query(name: str, value: Any) -> str:
    """Read as the page reads its address, and refused by the same sentences."""
    given = readers.an_object(name, value)
    for word in given:
        if word not in WORDS:
            readers.bad(name, f"{readers.short(word)} is no filter of the list of jobs; there are {', '.join(WORDS)}")
    address = Address({word: readers.text(LONGEST_WORD)(f"{name}.{word}", one) for word, one in given.items()})
    asked = job_filters.asked(address)
    for wrong in address.wrong:
        readers.bad(f"{name}.{wrong.field}", wrong.why)
    return urlencode(asked.kept)


READERS: dict[str, readers.Reader] = {"name": readers.text(200), "filters": _query, "is_first": readers.truth}


def _one(caller: Caller, view: int) -> SavedView:
    """Who runs the site is not shown other people's views in a list, and may ask for each."""
    rows = view_actions.known_to(caller, everywhere=caller.everywhere)
    row: SavedView = found(rows, "view", pk=view)
    return row


class Views(Verb, Listing):
    """List saved views, save one."""

    tag = "Jobs"
    what = "views"
    shape = VIEW
    filters = {"name": query.text("name"), "team": query.text("team__name")}
    orderings = {"name": pages.Sort(column="name"), "id": pages.ID}
    ordering = "name"
    rules = {
        "GET": Rule(
            scope=Scope.READ, says="Filters of the list of jobs that you or your teams saved", answer=VIEW, many=True
        ),
        "POST": Rule(
            scope=Scope.SUBMIT,
            says="Save filters of the list of jobs under a name",
            body=WISH,
            answer=VIEW,
            status=201,
            conflicts=True,
            also={200: "There was one of that name; it shows these filters now."},
        ),
    }

    def rows(self) -> QuerySet[SavedView]:
        return view_actions.known_to(self.caller)

    def work(self) -> Response:
        asked = self.body(READERS | {"team": readers.text(40)}, "a view")
        if "name" not in asked:
            raise BadField("name", "is needed")
        team = self.caller.teams().filter(name=asked["team"]).first() if "team" in asked else None
        if "team" in asked and team is None:
            raise BadField("team", f"you have no team {readers.short(asked['team'])}")
        view, is_new = view_actions.save(
            self.caller, asked["name"], asked.get("filters", ""), team=team, author=self.author
        )
        if asked.get("is_first"):
            view_actions.begin_with(self.caller, view)
        shown = VIEW.show(_one(self.caller, view.pk))
        where = self.request.build_absolute_uri(f"{self.request.path}{view.pk}/")
        return Response(shown, status=201 if is_new else 200, headers={"Location": where} if is_new else {})


class OneView(Detail):
    """One saved view: look, rename, let it show something else."""

    tag = "Jobs"
    shape = VIEW
    rules = {
        "GET": Rule(scope=Scope.READ, says="One saved view", answer=VIEW, team=True),
        "PATCH": Rule(
            scope=Scope.SUBMIT,
            says="Rename a saved view, change its filters, begin your list with it",
            body=CHANGE,
            answer=VIEW,
            team=True,
            conflicts=True,
        ),
    }

    def row(self, view: int) -> SavedView:
        return _one(self.caller, view)

    def patch(self, request: Any, view: int) -> Response:
        refuse_unknown(request)
        asked = self.body(READERS, "a view")
        with transaction.atomic():
            row = locked(request, VIEW, lambda: _one(self.caller, view))
            if "name" in asked:
                view_actions.rename(self.caller, row, asked["name"], author=self.author)
            if "filters" in asked:
                view_actions.show(self.caller, row, asked["filters"], author=self.author)
            if asked.get("is_first", row.is_first) != row.is_first:  # type: ignore[attr-defined]
                view_actions.begin_with(self.caller, row if asked["is_first"] else None)
        return as_it_is(VIEW, _one(self.caller, view))


class RemoveView(Verb):
    """Remove a saved view; what it showed stays."""

    tag = "Jobs"
    rules = {
        "POST": Rule(
            scope=Scope.SUBMIT, says="Remove a saved view", body=NOTHING, answer=VIEW, team=True, conflicts=True
        )
    }

    def work(self, view: int) -> Response:
        self.body({}, "the verb remove")
        row = locked(self.request, VIEW, lambda: _one(self.caller, view))
        shown = VIEW.show(row)
        view_actions.remove(self.caller, row, author=self.author)
        return Response(shown)
