"""Saved views of the job list in the API, with the same permissions and error messages as on the page."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.http import QueryDict
from django.utils.http import urlencode
from rest_framework.response import Response

from acmeweb.common.errors import InvalidField
from jobs.actions import saved_views as saved_view_actions
from jobs.core import parsing
from jobs.models import SavedView, TokenScope
from jobs.models.permissions import Caller
from jobs.queries import keyset
from jobs.rest import query_params
from jobs.rest.endpoint import (
    ActionEndpoint,
    ChangeableDetailEndpoint,
    ListEndpoint,
    RemoveEndpoint,
    find_or_404,
)
from jobs.rest.permissions import EndpointRule
from jobs.rest.shapes import (
    NOTHING_SHAPE,
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
from jobs.web.job_filters import LIST_FILTERS, LIST_ORDER, LIST_SWITCHES
from jobs.web.page import MAX_PARAM_LENGTH, PageQuery

VIEW_FILTERS = (*LIST_FILTERS, *LIST_SWITCHES, LIST_ORDER)
FILTERS_HELP = f"Filters as in the URL of the job list: {', '.join(VIEW_FILTERS)}. Empty: the view shows all jobs."

VIEW_FIELDS: dict[str, ShapeField] = {
    "id": integer_field(),
    "name": text_field(),
    "team": text_field(
        "Team that sees the view; null: only its owner.",
        get=attribute_path("team.name"),
        needs=("team__name",),
        nullable=True,
    ),
    "owner": text_field(get=attribute_path("owner.username"), needs=("owner__username",)),
    "filters": text_map_field(FILTERS_HELP, get=lambda row: QueryDict(row.query).dict(), needs=("query",)),
    "is_first": boolean_field("True if this is your default view.", needs=()),
    "created_at": datetime_field(),
}
VIEW = ResourceShape("SavedView", VIEW_FIELDS)
VIEW_REQUEST = ResourceShape(
    "SavedViewRequest",
    {
        "name": text_field("An existing view of this name, of yours or of the team, is updated."),
        "filters": text_map_field(FILTERS_HELP, required=False),
        "team": text_field("Team that sees the view. Default: only you.", required=False),
        "is_first": boolean_field("Make this your default view.", required=False),
    },
    example={"name": "Nights", "filters": {"state": "failed", "kind": "pretrain"}, "team": "pretraining"},
)
VIEW_CHANGE = ResourceShape(
    "SavedViewChange",
    {
        "name": text_field(required=False),
        "filters": text_map_field(FILTERS_HELP, required=False),
        "is_first": boolean_field("Whether this is your default view.", required=False),
    },
    example={"name": "Night shift"},
)


def _read_view_query(name: str, value: Any) -> str:
    """The filters as a query string, validated by the reader of the page."""
    filters = parsing.read_object(name, value)
    for key in filters:
        if key not in VIEW_FILTERS:
            parsing.raise_invalid_field(
                name,
                f"{parsing.short_repr(key)} is not a filter of the job list; use any of {', '.join(VIEW_FILTERS)}",
            )
    read_text = parsing.text_reader(MAX_PARAM_LENGTH)
    address = PageQuery({key: read_text(f"{name}.{key}", text) for key, text in filters.items()})
    selection = job_filters.read_job_filters(address)
    for wrong in address.wrong:
        parsing.raise_invalid_field(f"{name}.{wrong.field}", wrong.why)
    return urlencode(selection.params)


VIEW_READERS: dict[str, parsing.FieldReader] = {
    "name": parsing.text_reader(200),
    "filters": _read_view_query,
    "is_first": parsing.read_bool,
}


def _find_view(caller: Caller, view: int) -> SavedView:
    """The view, or 404. Site administrators can read any view by id, although lists show only their own."""
    rows = saved_view_actions.views_of_caller(caller, everywhere=caller.is_site_admin)
    row: SavedView = find_or_404(rows, "view", pk=view)
    return row


class Views(ActionEndpoint, ListEndpoint):
    """List saved views and save a view."""

    tag = "Jobs"
    what = "views"
    shape = VIEW
    filters = {"name": query_params.text_filter("name"), "team": query_params.text_filter("team__name")}
    orderings = {"name": keyset.SortColumn(column="name"), "id": keyset.SORT_BY_ID}
    ordering = "name"
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ,
            says="List saved views of you and your teams",
            answer=VIEW,
            many=True,
        ),
        "POST": EndpointRule(
            scope=TokenScope.SUBMIT,
            says="Save filters of the job list under a name",
            body=VIEW_REQUEST,
            answer=VIEW,
            status=201,
            conflicts=True,
            also={200: "An existing view of this name was updated."},
        ),
    }

    def rows(self) -> QuerySet[SavedView]:
        return saved_view_actions.views_of_caller(self.caller)

    def work(self) -> Response:
        body = self.body(VIEW_READERS | {"team": parsing.text_reader(40)}, "a view")
        if "name" not in body:
            raise InvalidField("name", "is required")
        team = self.caller.teams().filter(name=body["team"]).first() if "team" in body else None
        if "team" in body and team is None:
            raise InvalidField("team", f"you are not a member of team {parsing.short_repr(body['team'])}")
        view, is_new = saved_view_actions.save(
            self.caller, body["name"], body.get("filters", ""), team=team, author=self.author
        )
        if body.get("is_first"):
            saved_view_actions.set_first_view(self.caller, view)
        payload = VIEW.show(_find_view(self.caller, view.pk))
        url = self.request.build_absolute_uri(f"{self.request.path}{view.pk}/")
        return Response(payload, status=201 if is_new else 200, headers={"Location": url} if is_new else {})


class OneView(ChangeableDetailEndpoint):
    """Get and change one saved view."""

    tag = "Jobs"
    shape = VIEW
    rules = {
        "GET": EndpointRule(scope=TokenScope.READ, says="Get one saved view", answer=VIEW, team=True),
        "PATCH": EndpointRule(
            scope=TokenScope.SUBMIT,
            says="Rename a saved view, change its filters, or make it your default",
            body=VIEW_CHANGE,
            answer=VIEW,
            team=True,
            conflicts=True,
        ),
    }

    def row(self, view: int) -> SavedView:
        return _find_view(self.caller, view)

    def changes(self) -> dict[str, Any]:
        return self.body(VIEW_READERS, "a view")

    def change(self, row: Any, values: dict[str, Any]) -> None:
        if "name" in values:
            saved_view_actions.rename(self.caller, row, values["name"], author=self.author)
        if "filters" in values:
            saved_view_actions.set_view_query(self.caller, row, values["filters"], author=self.author)
        if values.get("is_first", row.is_first) != row.is_first:
            saved_view_actions.set_first_view(self.caller, row if values["is_first"] else None)


class RemoveView(RemoveEndpoint):
    """Remove a saved view. The jobs that it shows are not affected."""

    tag = "Jobs"
    shape = VIEW
    rules = {
        "POST": EndpointRule(
            scope=TokenScope.SUBMIT,
            says="Remove a saved view",
            body=NOTHING_SHAPE,
            answer=VIEW,
            team=True,
            conflicts=True,
        )
    }

    def row(self, view: int) -> SavedView:
        return _find_view(self.caller, view)

    def remove(self, row: SavedView, values: dict[str, Any]) -> None:
        saved_view_actions.remove(self.caller, row, author=self.author)
