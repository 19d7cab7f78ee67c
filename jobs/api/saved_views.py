"""Saved views of the list of jobs through the programs' door: the same views, rights and sentences as on the page."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from django.http import QueryDict
from django.utils.http import urlencode
from rest_framework.response import Response

from jobs.actions import saved_views as saved_view_actions
from jobs.core import parsing
from jobs.models import SavedView, TokenScope
from jobs.models.permissions import Caller
from jobs.rest import pagination, query_params
from jobs.rest.endpoint import (
    ActionEndpoint,
    DetailEndpoint,
    ListEndpoint,
    current_row_response,
    find_or_404,
    lock_unchanged_row,
    reject_unknown_params,
)
from jobs.rest.errors import InvalidRequestField
from jobs.rest.permissions import EndpointRule
from jobs.rest.shapes import (
    ResourceShape,
    ShapeField,
    attribute_path,
    boolean_field,
    datetime_field,
    integer_field,
    text_field,
    text_map_field,
)
from jobs.web import job_filters
from jobs.web.job_filters import LIST_FILTERS, LIST_SWITCHES
from jobs.web.page import MAX_PARAM_LENGTH, PageQuery

VIEW_FILTERS = (*LIST_FILTERS, *LIST_SWITCHES)
FILTERS_HELP = f"As in the address of the list of jobs: {', '.join(VIEW_FILTERS)}. None: it shows everything."

VIEW_FIELDS: dict[str, ShapeField] = {
    "id": integer_field(),
    "name": text_field(),
    "team": text_field(
        "Who sees it; null: only its owner.", get=attribute_path("team.name"), needs=("team__name",), nullable=True
    ),
    "owner": text_field(get=attribute_path("owner.username"), needs=("owner__username",)),
    "filters": text_map_field(FILTERS_HELP, get=lambda row: QueryDict(row.query).dict(), needs=("query",)),
    "is_first": boolean_field("Your list of jobs begins with it.", needs=()),
    "created_at": datetime_field(),
}
VIEW = ResourceShape("SavedView", VIEW_FIELDS)
VIEW_REQUEST = ResourceShape(
    "SavedViewRequest",
    {
        "name": text_field("One of yours, or of the team, that is called so shows these filters from now on."),
        "filters": text_map_field(FILTERS_HELP, required=False),
        "team": text_field("Who sees it; left out: only you.", required=False),
        "is_first": boolean_field("Begin your list of jobs with it.", required=False),
    },
    example={"name": "Nights", "filters": {"state": "failed", "kind": "pretrain"}, "team": "pretraining"},
)
VIEW_CHANGE = ResourceShape(
    "SavedViewChange",
    {
        "name": text_field(required=False),
        "filters": text_map_field(FILTERS_HELP, required=False),
        "is_first": boolean_field("Whether your list of jobs begins with it.", required=False),
    },
    example={"name": "Night shift"},
)
EMPTY_BODY = ResourceShape("Nothing", {})


def _read_view_query(name: str, value: Any) -> str:
    """Read as the page reads its address, and refused by the same sentences."""
    given = parsing.read_object(name, value)
    for word in given:
        if word not in VIEW_FILTERS:
            parsing.raise_invalid_field(
                name,
                f"{parsing.short_repr(word)} is no filter of the list of jobs; there are {', '.join(VIEW_FILTERS)}",
            )
    address = PageQuery(
        {word: parsing.text_reader(MAX_PARAM_LENGTH)(f"{name}.{word}", one) for word, one in given.items()}
    )
    asked = job_filters.read_job_filters(address)
    for wrong in address.wrong:
        parsing.raise_invalid_field(f"{name}.{wrong.field}", wrong.why)
    return urlencode(asked.kept)


VIEW_READERS: dict[str, parsing.FieldReader] = {
    "name": parsing.text_reader(200),
    "filters": _read_view_query,
    "is_first": parsing.read_bool,
}


def _find_view(caller: Caller, view: int) -> SavedView:
    """Who runs the site is not shown other people's views in a list, and may ask for each."""
    rows = saved_view_actions.views_of_caller(caller, everywhere=caller.is_site_admin)
    row: SavedView = find_or_404(rows, "view", pk=view)
    return row


class Views(ActionEndpoint, ListEndpoint):
    """List saved views, save one."""

    tag = "Jobs"
    what = "views"
    shape = VIEW
    filters = {"name": query_params.text_filter("name"), "team": query_params.text_filter("team__name")}
    orderings = {"name": pagination.SortColumn(column="name"), "id": pagination.SORT_BY_ID}
    ordering = "name"
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ,
            says="Filters of the list of jobs that you or your teams saved",
            answer=VIEW,
            many=True,
        ),
        "POST": EndpointRule(
            scope=TokenScope.SUBMIT,
            says="Save filters of the list of jobs under a name",
            body=VIEW_REQUEST,
            answer=VIEW,
            status=201,
            conflicts=True,
            also={200: "There was one of that name; it shows these filters now."},
        ),
    }

    def rows(self) -> QuerySet[SavedView]:
        return saved_view_actions.views_of_caller(self.caller)

    def work(self) -> Response:
        asked = self.body(VIEW_READERS | {"team": parsing.text_reader(40)}, "a view")
        if "name" not in asked:
            raise InvalidRequestField("name", "is needed")
        team = self.caller.teams().filter(name=asked["team"]).first() if "team" in asked else None
        if "team" in asked and team is None:
            raise InvalidRequestField("team", f"you have no team {parsing.short_repr(asked['team'])}")
        view, is_new = saved_view_actions.save(
            self.caller, asked["name"], asked.get("filters", ""), team=team, author=self.author
        )
        if asked.get("is_first"):
            saved_view_actions.set_first_view(self.caller, view)
        shown = VIEW.show(_find_view(self.caller, view.pk))
        where = self.request.build_absolute_uri(f"{self.request.path}{view.pk}/")
        return Response(shown, status=201 if is_new else 200, headers={"Location": where} if is_new else {})


class OneView(DetailEndpoint):
    """One saved view: look, rename, let it show something else."""

    tag = "Jobs"
    shape = VIEW
    rules = {
        "GET": EndpointRule(scope=TokenScope.READ, says="One saved view", answer=VIEW, team=True),
        "PATCH": EndpointRule(
            scope=TokenScope.SUBMIT,
            says="Rename a saved view, change its filters, begin your list with it",
            body=VIEW_CHANGE,
            answer=VIEW,
            team=True,
            conflicts=True,
        ),
    }

    def row(self, view: int) -> SavedView:
        return _find_view(self.caller, view)

    def patch(self, request: Any, view: int) -> Response:
        reject_unknown_params(request)
        asked = self.body(VIEW_READERS, "a view")
        with transaction.atomic():
            row = lock_unchanged_row(request, VIEW, lambda: _find_view(self.caller, view))
            if "name" in asked:
                saved_view_actions.rename(self.caller, row, asked["name"], author=self.author)
            if "filters" in asked:
                saved_view_actions.set_view_query(self.caller, row, asked["filters"], author=self.author)
            if asked.get("is_first", row.is_first) != row.is_first:  # type: ignore[attr-defined]
                saved_view_actions.set_first_view(self.caller, row if asked["is_first"] else None)
        return current_row_response(VIEW, _find_view(self.caller, view))


class RemoveView(ActionEndpoint):
    """Remove a saved view; what it showed stays."""

    tag = "Jobs"
    rules = {
        "POST": EndpointRule(
            scope=TokenScope.SUBMIT, says="Remove a saved view", body=EMPTY_BODY, answer=VIEW, team=True, conflicts=True
        )
    }

    def work(self, view: int) -> Response:
        self.body({}, "the verb remove")
        row = lock_unchanged_row(self.request, VIEW, lambda: _find_view(self.caller, view))
        shown = VIEW.show(row)
        saved_view_actions.remove(self.caller, row, author=self.author)
        return Response(shown)
