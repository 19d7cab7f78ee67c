"""Saved views of the list of jobs: whose they are, who may change them, and with which one a list begins."""

from __future__ import annotations

import pytest
from django.test import Client

from jobs.actions import saved_views as saved_view_actions
from jobs.actions.saved_views import SavedViewError
from jobs.core.parsing import InvalidField
from jobs.models import Event, SavedView, TeamRole
from jobs.models.permissions import Caller
from jobs.pages import saved_views
from tests import make

pytestmark = pytest.mark.django_db
FAILED = "state=failed&mine=1"


@pytest.fixture
def team():
    return make.team(
        "pretraining", ada=TeamRole.RESEARCHER, ben=TeamRole.RESEARCHER, olga=TeamRole.OPERATOR, vic=TeamRole.VIEWER
    )


def caller(name="ada"):
    return Caller(user=make.user(name))


def saved(name="mine that failed", query=FAILED, by="ada", team=None):
    return saved_view_actions.save(caller(by), name, query, team=team, author=make.author(by))[0]


def browser(name="ada"):
    client = Client()
    client.force_login(make.user(name))
    return client


def names(user):
    return [view.name for view in saved_view_actions.views_of_caller(caller(user))]


def first(user="ada"):
    return saved_views.default_view(saved_view_actions.views_of_caller(caller(user)))


# --- whose they are


def test_a_personal_view_is_its_owners_and_a_teams_is_for_all_in_it(team):
    saved("my own")
    saved("our nights", team=team)
    make.team("speech", eve=TeamRole.ADMIN)

    assert names("ada") == ["my own", "our nights"]
    assert names("ben") == ["our nights"] == names("vic")
    assert names("eve") == []


def test_two_people_may_call_theirs_the_same_and_one_may_not_have_two(team):
    saved("mine"), saved("mine", by="ben")

    assert saved("mine", query="kind=sft").query == "kind=sft"
    assert SavedView.objects.filter(name="mine").count() == 2


def test_who_left_the_team_sees_its_views_no_longer(team):
    saved_view_actions.set_first_view(caller(), saved("ours", by="olga", team=team))
    team.memberships.filter(user__username="ada").delete()

    assert names("ada") == []
    assert first() is None


# --- who may change them


@pytest.mark.parametrize(("who", "may"), [("ada", True), ("ben", False), ("olga", True), ("vic", False)])
def test_a_teams_view_is_changed_by_who_saved_it_and_by_operators(team, who, may):
    view = saved("ours", team=team)

    assert saved_view_actions.may_change(caller(who), view) is may
    if not may:
        with pytest.raises(SavedViewError, match="somebody else's"):
            saved_view_actions.rename(caller(who), view, "taken", author=make.author(who))
        with pytest.raises(SavedViewError, match="somebody else's"):
            saved("ours", query="", by=who, team=team) if who == "ben" else saved_view_actions.remove(
                caller(who), view, author=make.author(who)
            )
    assert SavedView.objects.get().name == "ours"


def test_viewers_save_for_themselves_only(team):
    saved("mine", by="vic")

    with pytest.raises(SavedViewError, match="researcher"):
        saved("ours", by="vic", team=team)


def test_no_one_else_finds_a_personal_view_by_its_number(team):
    view = saved()

    assert browser("olga").post(f"/jobs/views/{view.pk}/remove/").status_code == 404
    assert SavedView.objects.filter(pk=view.pk).exists()


@pytest.mark.parametrize("name", ["", "   ", "x" * 41, "a\x07b"])
def test_a_name_is_short_and_can_be_read(team, name):
    with pytest.raises(InvalidField, match="name"):
        saved(name)


def test_a_person_has_so_many_views_and_no_more(team):
    ada = make.user()
    SavedView.objects.bulk_create(SavedView(owner=ada, name=f"view {n}") for n in range(saved_view_actions.MAX_VIEWS))

    with pytest.raises(SavedViewError, match="remove one first"):
        saved("one more")


def test_a_name_that_is_taken_is_refused_on_renaming(team):
    saved("one")

    with pytest.raises(SavedViewError, match="called one already"):
        saved_view_actions.rename(caller(), saved("two"), "one", author=make.author())


def test_a_view_that_somebody_else_has_just_removed_is_not_renamed(team):
    view = saved()
    SavedView.objects.all().delete()

    with pytest.raises(SavedViewError, match="just renamed or removed"):
        saved_view_actions.rename(caller(), view, "new", author=make.author())
    with pytest.raises(SavedViewError, match="just removed"):
        saved_view_actions.remove(caller(), view, author=make.author())


def test_every_change_has_its_event(team):
    view = saved("ours", team=team)
    saved("ours", query="kind=sft", team=team)
    saved_view_actions.rename(caller(), view, "theirs", author=make.author())
    saved_view_actions.remove(caller(), view, author=make.author())

    told = Event.objects.filter(what__startswith="view.").order_by("id")
    assert [one.what for one in told] == ["view.saved", "view.changed", "view.renamed", "view.removed"]
    assert {one.detail["team"] for one in told} == {"pretraining"} and {one.by for one in told} == {"ada"}


# --- in the list


def test_the_filters_of_the_list_are_saved_under_a_name(team):
    asked = {"name": "Nights", "for": "pretraining", "state": "failed", "q": "a&b", "colour": "red", "user": ""}
    answer = browser().post("/jobs/views/", asked, follow=True)

    view = SavedView.objects.get()
    assert view.query == "q=a%26b&state=failed" and view.team == team
    assert answer.redirect_chain[-1][0] == "/jobs/?q=a%26b&state=failed"
    page = answer.content.decode()
    assert "Nights is saved." in page
    assert '?q=a%26b&amp;state=failed" aria-current="true">Nights' in page


def test_a_list_asked_for_nothing_begins_with_the_chosen_view(team):
    ada, view = browser(), saved()
    assert ada.get("/jobs/").status_code == 200

    ada.post(f"/jobs/views/{view.pk}/first/")

    assert ada.get("/jobs/").url == f"/jobs/?{FAILED}"
    assert ada.get("/jobs/?view=0").status_code == 200
    assert ada.get("/jobs/?kind=sft").status_code == 200
    assert browser("ben").get("/jobs/").status_code == 200


def test_a_list_begins_with_one_view_at_most_and_with_everything_again(team):
    ada, one, two = browser(), saved("one", "kind=sft"), saved("two", "kind=rlhf")

    for view, verb, wanted in ((one, "first", one), (two, "first", two), (two, "not-first", None)):
        ada.post(f"/jobs/views/{view.pk}/{verb}/")
        assert first() == wanted


def test_a_view_of_everything_does_not_send_a_list_in_circles(team):
    view = saved("all", query="")
    browser().post(f"/jobs/views/{view.pk}/first/")

    assert browser().get("/jobs/").status_code == 200


def test_a_name_is_text_on_the_page_whatever_it_says(team):
    saved("<img src=x onerror=alert(1)>")

    page = browser().get("/jobs/").content.decode()

    assert "<img src=x" not in page and "&lt;img src=x" in page


def test_a_verb_that_is_none_and_a_team_that_is_not_ones_own_are_not_there(team):
    make.team("speech", eve=TeamRole.ADMIN)

    assert browser().post(f"/jobs/views/{saved().pk}/burn/").status_code == 404
    assert browser().post("/jobs/views/", {"name": "x", "for": "speech"}).status_code == 404
    assert browser().get("/jobs/views/").status_code == 405


def test_what_cannot_be_saved_is_said_and_the_filters_stay(team):
    answer = browser().post("/jobs/views/", {"name": " ", "state": "failed"}, follow=True)

    assert "a view needs one" in answer.content.decode()
    assert answer.redirect_chain[-1][0] == "/jobs/?state=failed"
