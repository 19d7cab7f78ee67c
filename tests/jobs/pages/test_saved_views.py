"""Saved views of the job list: ownership, permissions, and the default view."""

from __future__ import annotations

import pytest

from acmeweb.common.errors import InvalidField, NotAllowed, StateConflict
from jobs.actions import saved_views as saved_view_actions
from jobs.models import Event, SavedView, TeamRole
from jobs.models.permissions import Caller
from jobs.pages import saved_views
from tests import make
from tests.page_text import page_text

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


def names(user):
    return [view.name for view in saved_view_actions.views_of_caller(caller(user))]


def first(user="ada"):
    return saved_views.default_view(saved_view_actions.views_of_caller(caller(user)))


# --- whose they are


def test_only_the_owner_sees_a_personal_view_and_all_members_see_a_team_view(team):
    saved("my own")
    saved("our nights", team=team)
    make.team("speech", eve=TeamRole.ADMIN)

    assert names("ada") == ["my own", "our nights"]
    assert names("ben") == ["our nights"] == names("vic")
    assert names("eve") == []


def test_view_names_are_unique_per_owner(team):
    saved("mine"), saved("mine", by="ben")

    assert saved("mine", query="kind=sft").query == "kind=sft"
    assert SavedView.objects.filter(name="mine").count() == 2


def test_a_user_who_left_the_team_does_not_see_its_views(team):
    saved_view_actions.set_first_view(caller(), saved("ours", by="olga", team=team))
    team.memberships.filter(user__username="ada").delete()

    assert names("ada") == []
    assert first() is None


# --- who may change them


@pytest.mark.parametrize(("who", "may"), [("ada", True), ("ben", False), ("olga", True), ("vic", False)])
def test_a_team_view_is_changed_by_its_owner_and_by_operators(team, who, may):
    view = saved("ours", team=team)

    assert saved_view_actions.may_change(caller(who), view) is may
    if not may:
        with pytest.raises(NotAllowed, match="belongs to another user"):
            saved_view_actions.rename(caller(who), view, "taken", author=make.author(who))
        with pytest.raises(NotAllowed, match="belongs to another user"):
            saved("ours", query="", by=who, team=team) if who == "ben" else saved_view_actions.remove(
                caller(who), view, author=make.author(who)
            )
    assert SavedView.objects.get().name == "ours"


def test_viewers_can_save_only_personal_views(team):
    saved("mine", by="vic")

    with pytest.raises(NotAllowed, match="researcher"):
        saved("ours", by="vic", team=team)


def test_other_users_cannot_open_a_personal_view_by_id(team):
    view = saved()

    assert make.browser("olga").post(f"/jobs/views/{view.pk}/remove/").status_code == 404
    assert SavedView.objects.filter(pk=view.pk).exists()


@pytest.mark.parametrize("name", ["", "   ", "x" * 41, "a\x07b"])
def test_a_view_name_is_short_and_printable(team, name):
    with pytest.raises(InvalidField, match="name"):
        saved(name)


def test_the_number_of_views_per_user_is_limited(team):
    ada = make.user()
    SavedView.objects.bulk_create(SavedView(owner=ada, name=f"view {n}") for n in range(saved_view_actions.MAX_VIEWS))

    with pytest.raises(StateConflict, match="remove one first"):
        saved("one more")


def test_renaming_a_view_to_an_existing_name_is_refused(team):
    saved("one")

    with pytest.raises(StateConflict, match="called one already exists"):
        saved_view_actions.rename(caller(), saved("two"), "one", author=make.author())


def test_renaming_a_view_that_was_removed_meanwhile_is_refused(team):
    view = saved()
    SavedView.objects.all().delete()

    with pytest.raises(StateConflict, match="just renamed or removed"):
        saved_view_actions.rename(caller(), view, "new", author=make.author())
    with pytest.raises(StateConflict, match="just removed"):
        saved_view_actions.remove(caller(), view, author=make.author())


def test_every_change_has_its_event(team):
    view = saved("ours", team=team)
    saved("ours", query="kind=sft", team=team)
    saved_view_actions.rename(caller(), view, "theirs", author=make.author())
    saved_view_actions.remove(caller(), view, author=make.author())

    told = Event.objects.filter(type__startswith="view.").order_by("id")
    assert [one.type for one in told] == ["view.saved", "view.changed", "view.renamed", "view.removed"]
    assert {one.detail["team"] for one in told} == {"pretraining"} and {one.by for one in told} == {"ada"}


# --- in the list


def test_the_filters_of_the_list_are_saved_under_a_name(team):
    asked = {"name": "Nights", "for": "pretraining", "state": "failed", "q": "a&b", "color": "red", "user": ""}
    answer = make.browser().post("/jobs/views/", asked, follow=True)

    view = SavedView.objects.get()
    assert view.query == "q=a%26b&state=failed" and view.team == team
    assert answer.redirect_chain[-1][0] == "/jobs/?q=a%26b&state=failed"
    page = page_text(answer)
    assert "View Nights saved." in page
    assert '?q=a%26b&amp;state=failed" aria-current="true">Nights' in page


def test_the_job_list_without_parameters_opens_the_default_view(team):
    ada, view = make.browser(), saved()
    assert ada.get("/jobs/").status_code == 200

    ada.post(f"/jobs/views/{view.pk}/first/")

    assert ada.get("/jobs/").url == f"/jobs/?{FAILED}"
    assert ada.get("/jobs/?view=0").status_code == 200
    assert ada.get("/jobs/?kind=sft").status_code == 200
    assert make.browser("ben").get("/jobs/").status_code == 200


def test_a_user_has_at_most_one_default_view_and_can_clear_it(team):
    ada, one, two = make.browser(), saved("one", "kind=sft"), saved("two", "kind=rlhf")

    for view, verb, wanted in ((one, "first", one), (two, "first", two), (two, "not-first", None)):
        ada.post(f"/jobs/views/{view.pk}/{verb}/")
        assert first() == wanted


def test_a_default_view_without_filters_causes_no_redirect_loop(team):
    view = saved("all", query="")
    make.browser().post(f"/jobs/views/{view.pk}/first/")

    assert make.browser().get("/jobs/").status_code == 200


def test_view_names_are_escaped(team):
    saved("<img src=x onerror=alert(1)>")

    page = make.browser().get("/jobs/").content.decode()

    assert "<img src=x" not in page and "&lt;img src=x" in page


def test_unknown_view_actions_and_foreign_teams_are_a_404(team):
    make.team("speech", eve=TeamRole.ADMIN)

    assert make.browser().post(f"/jobs/views/{saved().pk}/burn/").status_code == 404
    assert make.browser().post("/jobs/views/", {"name": "x", "for": "speech"}).status_code == 404
    assert make.browser().get("/jobs/views/").status_code == 405


def test_a_refused_view_is_reported_and_the_filters_stay(team):
    answer = make.browser().post("/jobs/views/", {"name": " ", "state": "failed"}, follow=True)

    assert "a view needs a name" in answer.content.decode()
    assert answer.redirect_chain[-1][0] == "/jobs/?state=failed"
