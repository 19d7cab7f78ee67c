"""Teams and roles: who administers a team changes it, others read or do not see it, and nobody is locked out."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Permission
from django.test import Client

from jobs.actions import teams as team_actions
from jobs.actions.teams import TeamError
from jobs.models import Event, Membership, Team, TeamRole
from tests import make

pytestmark = pytest.mark.django_db
TEAM = "/settings/teams/of/pretraining/"


@pytest.fixture(autouse=True)
def people():
    make.team("pretraining", olga=TeamRole.ADMIN, ada=TeamRole.RESEARCHER)
    make.team("speech", ben=TeamRole.ADMIN)


def browser(name):
    client = Client()
    client.force_login(make.user(name))
    return client


def give(name, user, role, path=TEAM):
    return browser(name).post(f"{path}role/", {"user": user, "role": role, "why": "asked by mail"}, follow=True)


def roles(team="pretraining"):
    return dict(Membership.objects.filter(team__name=team).values_list("user__username", "role"))


def test_an_administrator_gives_changes_and_takes_roles_with_events():
    give("olga", "ben", "viewer")
    give("olga", "ada", "operator")
    give("olga", "ben", "none")

    assert roles() == {"olga": "admin", "ada": "operator"}
    told = Event.objects.filter(what="team.role").order_by("id")
    assert [(one.by, one.why, one.detail["user"], one.detail["to"]) for one in told] == [
        ("olga", "asked by mail", "ben", "viewer"),
        ("olga", "asked by mail", "ada", "operator"),
        ("olga", "asked by mail", "ben", None),
    ]


@pytest.mark.parametrize("name", ["ada", "ben"])
def test_others_change_nothing(name):
    answer = give(name, "ada", "admin")

    assert roles() == {"olga": "admin", "ada": "researcher"}
    assert answer.status_code == (404 if name == "ben" else 200)
    assert not Event.objects.filter(what="team.role").exists()


def test_who_is_no_administrator_does_not_learn_who_has_an_account():
    known, unknown = give("ada", "ben", "viewer").content, give("ada", "nobody-at-all", "viewer").content

    assert b"Not allowed" in known and b"Not allowed" in unknown
    assert b"Nobody here is called" not in unknown


@pytest.mark.parametrize("role", ["none", "viewer"])
def test_the_last_administrator_stays(role):
    assert b"the last administrator stays" in give("olga", "olga", role).content
    assert roles()["olga"] == "admin"


def test_one_of_two_administrators_may_leave_and_does_not_see_the_team_any_more():
    give("olga", "ada", "admin")

    assert give("olga", "olga", "none").redirect_chain[-1][0] == "/settings/teams/"
    assert roles() == {"ada": "admin"}


def test_who_runs_the_site_may_remove_the_last_administrator():
    root = make.user("root", is_superuser=True)

    team_actions.set_team_role(
        Team.objects.get(name="speech"), make.user("ben"), None, by=root, author=make.author("root")
    )

    assert roles("speech") == {}


def test_nothing_to_change_is_said():
    with pytest.raises(TeamError, match="is researcher in pretraining already"):
        team_actions.set_team_role(
            make.team("pretraining"), make.user("ada"), TeamRole.RESEARCHER, by=make.user("olga"), author=make.LOOP
        )


def test_who_has_left_can_only_be_taken_away():
    gone = make.user("ada")
    gone.is_active = False
    gone.save()

    assert give("olga", "ada", "operator").status_code == 422
    give("olga", "ada", "none")
    assert "ada" not in roles()


@pytest.mark.parametrize("user", ["nobody-at-all", "\x00", "<script>"])
def test_a_name_that_nobody_has_is_said_and_changes_nothing(user):
    answer = give("olga", user, "viewer")

    assert answer.status_code == 422
    assert b"<script>" not in answer.content.split(b"</head>")[1]
    assert roles() == {"olga": "admin", "ada": "researcher"}


def test_teams_that_somebody_is_not_in_do_not_exist_for_them():
    page = browser("ada").get("/settings/teams/").content.decode()

    assert "pretraining" in page and "speech" not in page
    assert browser("ada").get("/settings/teams/of/speech/").status_code == 404


def test_making_a_team_needs_the_permission_and_makes_its_first_administrator():
    asked = {"name": "vision", "title": "Vision models"}
    assert browser("ada").post("/settings/teams/add/", asked).status_code == 403
    make.user("ada").user_permissions.add(Permission.objects.get(codename="add_team"))

    browser("ada").post("/settings/teams/add/", asked)

    assert roles("vision") == {"ada": "admin"}
    assert list(Event.objects.order_by("id").values_list("what", flat=True)) == ["team.made", "team.role"]


@pytest.mark.parametrize("name", ["speech", "Not A Slug", "", "x" * 41])
def test_a_team_that_cannot_be_made_is_explained(name):
    make.user("ada").user_permissions.add(Permission.objects.get(codename="add_team"))

    answer = browser("ada").post("/settings/teams/add/", {"name": name, "title": ""})

    assert answer.status_code == 422
    assert Team.objects.count() == 2


def test_a_title_is_changed_by_administrators_alone():
    browser("olga").post(f"{TEAM}title/", {"title": "Pretraining of large models"})

    assert browser("ada").post(f"{TEAM}title/", {"title": "mine"}).status_code == 404
    assert Team.objects.get(name="pretraining").title == "Pretraining of large models"
    assert Event.objects.get(what="team.retitled").detail["from"] == ""


def test_members_read_the_team_without_forms():
    page = browser("ada").get(TEAM).content.decode()

    assert "olga" in page and "Give a role" not in page and "Changes" not in page


def test_settings_begin_with_teams(client):
    assert browser("ada").get("/settings/")["Location"] == "/settings/teams/"
