"""Saved views in the API: the same views, permissions and error messages as on the page."""

from __future__ import annotations

import pytest
from django.test import Client

from acmeweb import api_root
from jobs.models import Event, SavedView, TeamRole, TokenScope
from tests.jobs.api import api_make as make
from tests.jobs.api.api_make import Caller
from tests.jobs.api.test_schema import conforms
from tests.page_text import page_text

pytestmark = pytest.mark.django_db
FAILED = {"state": "failed", "mine": "1"}


@pytest.fixture
def ada():
    return Caller(make.person("ada"))


def listed(caller):
    return [row["name"] for row in caller.get("views/").json()["results"]]


def test_a_view_is_saved_listed_renamed_and_removed(ada):
    made = ada.post("views/", {"name": "Nights", "filters": FAILED})

    assert (made.status_code, made.json()["filters"], made.json()["team"]) == (201, FAILED, None)
    here = made.headers["Location"]
    assert ada.get(here).json() == made.json() and listed(ada) == ["Nights"]
    assert ada.patch(here, {"name": "Night shift"}).json()["name"] == "Night shift"
    assert ada.post(f"{here}remove/").status_code == 200
    assert listed(ada) == [] and not SavedView.objects.exists()
    told = Event.objects.filter(type__startswith="view.").order_by("id").values_list("type", flat=True)
    assert list(told) == ["view.saved", "view.renamed", "view.removed"]


def test_the_api_returns_the_views_of_the_page(ada):
    ada.post("views/", {"name": "Nights", "filters": FAILED, "is_first": True})
    browser = Client()
    browser.force_login(ada.user)

    assert browser.get("/jobs/").url == "/jobs/?state=failed&mine=1"
    assert 'aria-current="true">Nights' in page_text(browser.get("/jobs/?state=failed&mine=1"))


def test_saving_a_view_under_an_existing_name_updates_its_filters(ada):
    first = ada.post("views/", {"name": "Nights", "filters": FAILED}).json()

    again = ada.post("views/", {"name": "Nights", "filters": {"kind": "sft"}})

    assert (again.status_code, again.json()["id"], again.json()["filters"]) == (200, first["id"], {"kind": "sft"})
    assert SavedView.objects.count() == 1


def test_filters_and_default_of_a_view_can_be_changed_separately(ada):
    here = ada.post("views/", {"name": "Nights", "filters": FAILED, "is_first": True}).headers["Location"]

    assert ada.patch(here, {"filters": {}}).json()["filters"] == {}
    assert ada.patch(here, {}).json()["is_first"] is True
    assert ada.patch(here, {"is_first": False}).json()["is_first"] is False


@pytest.mark.parametrize(
    ("body", "field", "says"),
    [
        ({"filters": {}}, "name", "is required"),
        ({"name": " "}, "name", "a view needs a name"),
        ({"name": "x" * 41}, "name", "must have at most 40 printable characters"),
        ({"name": "x", "filters": "state=failed"}, "filters", "is text, not an object"),
        ({"name": "x", "filters": {"color": "red"}}, "filters", "'color' is not a filter of the job list"),
        ({"name": "x", "filters": {"state": "nonsense"}}, "filters.state", "'nonsense' is not one of waiting, running"),
        ({"name": "x", "filters": {"mine": True}}, "filters.mine", "is true or false, not text"),
        ({"name": "x", "team": "speech"}, "team", "you are not a member of team 'speech'"),
        ({"name": "x", "more": 1}, "more", "is not a field of a view"),
    ],
)
def test_invalid_views_are_refused_with_a_reason(ada, body, field, says):
    make.team("speech")

    answer = ada.post("views/", body)

    assert answer.status_code == 400
    assert answer.json()[field][0].startswith(says)
    assert not SavedView.objects.exists()


def test_all_members_see_a_team_view_and_owner_and_operators_change_it():
    ada, ben = Caller(make.person("ada")), Caller(make.person("ben"))
    olga, eve = Caller(make.person("olga", role=TeamRole.OPERATOR)), Caller(make.person("eve", "speech"))
    here = ada.post("views/", {"name": "Nights", "filters": FAILED, "team": "vision"}).headers["Location"]

    assert [listed(one) for one in (ben, olga, eve)] == [["Nights"], ["Nights"], []]
    assert [one.patch(here, {"name": "Mine"}).status_code for one in (ben, olga, eve)] == [403, 200, 404]
    assert ben.post("views/", {"name": "Mine", "team": "vision"}).status_code == 403


def test_a_team_token_reaches_only_the_views_of_its_team(ada):
    ada.post("views/", {"name": "my own"})
    ada.post("views/", {"name": "ours", "team": "vision"})
    make.team("speech").memberships.create(user=ada.user, role=TeamRole.RESEARCHER)
    ada.post("views/", {"name": "theirs", "team": "speech"})
    bound = Caller(ada.user, team=make.team("vision"))

    assert listed(bound) == ["ours"]
    assert bound.post("views/", {"name": "x"}).status_code == 403
    assert bound.post("views/", {"name": "x", "team": "speech"}).status_code == 400


def test_a_team_token_cannot_set_its_owners_default_view(ada):
    here = ada.post("views/", {"name": "mine", "is_first": True}).headers["Location"]
    ours = ada.post("views/", {"name": "ours", "team": "vision"}).headers["Location"]
    bound = Caller(ada.user, team=make.team("vision"))

    refused = [
        bound.patch(ours, {"is_first": True, "name": "other"}),
        bound.post("views/", {"name": "new", "team": "vision", "is_first": True}),
    ]

    assert [one.status_code for one in refused] == [403, 403]
    assert "cannot set the first view of its owner" in refused[0].json()["detail"]
    assert ada.get(here).json()["is_first"] is True and listed(bound) == ["ours"]
    assert bound.patch(ours, {"is_first": False, "name": "other"}).json()["name"] == "other"


def test_answers_are_as_described(ada):
    schema = api_root.openapi_schema()
    made = ada.post("views/", {"name": "Nights", "filters": FAILED})
    here = made.headers["Location"]

    conforms(schema, "views/", "post", made)
    conforms(schema, "views/", "post", ada.post("views/", {"name": "Nights"}))
    conforms(schema, "views/", "get", ada.get("views/"))
    conforms(schema, "views/{view}/", "get", ada.get(here))
    conforms(schema, "views/{view}/", "patch", ada.patch(here, {"name": "Days"}))
    conforms(schema, "views/{view}/remove/", "post", ada.post(f"{here}remove/"))


@pytest.mark.parametrize("number", [7, 2**63, 10**30])
def test_the_404_of_an_unknown_view_names_its_id(ada, number):
    for answer in (ada.get(f"views/{number}/"), ada.patch(f"views/{number}/", {"name": "x"})):
        assert (answer.status_code, answer.json()["detail"]) == (404, f"View {number} not found.")


def test_views_can_be_read_with_scope_read(ada):
    reader = Caller(ada.user, TokenScope.READ)

    assert reader.get("views/").status_code == 200
    assert reader.post("views/", {"name": "x"}).status_code == 403


def test_a_site_administrator_cannot_use_a_foreign_view_as_default(ada):
    here = ada.post("views/", {"name": "Nights", "filters": FAILED}).headers["Location"]
    root = Caller(make.person("root", is_superuser=True), scope=TokenScope.ADMIN)
    mine = root.post("views/", {"name": "All", "is_first": True}).headers["Location"]

    refused = root.patch(here, {"is_first": True})

    assert (refused.status_code, "is not one of your views" in refused.text) == (400, True)
    assert root.get(mine).json()["is_first"] is True
