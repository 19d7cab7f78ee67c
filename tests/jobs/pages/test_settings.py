"""Teams and roles: administrators change a team, members read it, and others cannot see it."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Permission

from acmeweb.common.errors import StateConflict
from jobs.actions import teams as team_actions
from jobs.models import Event, Membership, Team, TeamRole
from tests import make

pytestmark = pytest.mark.django_db
TEAM = "/settings/teams/of/pretraining/"


@pytest.fixture(autouse=True)
def people():
    make.team("pretraining", olga=TeamRole.ADMIN, ada=TeamRole.RESEARCHER)
    make.team("speech", ben=TeamRole.ADMIN)


def give(name, user, role, path=TEAM):
    return make.browser(name).post(f"{path}role/", {"user": user, "role": role, "why": "asked by mail"}, follow=True)


def roles(team="pretraining"):
    return dict(Membership.objects.filter(team__name=team).values_list("user__username", "role"))


def test_an_administrator_gives_changes_and_takes_roles_with_events():
    give("olga", "ben", "viewer")
    give("olga", "ada", "operator")
    give("olga", "ben", "none")

    assert roles() == {"olga": "admin", "ada": "operator"}
    told = Event.objects.filter(type="team.role_changed").order_by("id")
    assert [(one.by, one.why, one.detail["user"], one.detail["to"]) for one in told] == [
        ("olga", "asked by mail", "ben", "viewer"),
        ("olga", "asked by mail", "ada", "operator"),
        ("olga", "asked by mail", "ben", None),
    ]


@pytest.mark.parametrize("name", ["ada", "ben"])
def test_users_without_the_role_admin_cannot_change_a_team(name):
    answer = give(name, "ada", "admin")

    assert roles() == {"olga": "admin", "ada": "researcher"}
    assert answer.status_code == (404 if name == "ben" else 200)
    assert not Event.objects.filter(type="team.role_changed").exists()


def test_only_team_administrators_learn_whether_a_user_exists():
    known, unknown = give("ada", "ben", "viewer").content, give("ada", "nobody-at-all", "viewer").content

    assert b"Not allowed" in known and b"Not allowed" in unknown
    assert b"Nobody here is called" not in unknown


@pytest.mark.parametrize("role", ["none", "viewer"])
def test_the_last_team_administrator_cannot_be_removed(role):
    assert b"the team needs an administrator" in give("olga", "olga", role).content
    assert roles()["olga"] == "admin"


def test_one_of_two_administrators_can_leave_and_then_does_not_see_the_team():
    give("olga", "ada", "admin")

    assert give("olga", "olga", "none").redirect_chain[-1][0] == "/settings/teams/"
    assert roles() == {"ada": "admin"}


def test_a_site_administrator_can_remove_the_last_team_administrator():
    root = make.user("root", is_superuser=True)

    team_actions.set_team_role(
        Team.objects.get(name="speech"), make.user("ben"), None, by=root, author=make.author("root")
    )

    assert roles("speech") == {}


def test_an_unchanged_role_is_reported():
    with pytest.raises(StateConflict, match="already is researcher in pretraining"):
        team_actions.set_team_role(
            make.team("pretraining"), make.user("ada"), TeamRole.RESEARCHER, by=make.user("olga"), author=make.LOOP
        )


def test_a_deactivated_user_can_only_be_removed():
    gone = make.user("ada")
    gone.is_active = False
    gone.save()

    assert give("olga", "ada", "operator").status_code == 422
    give("olga", "ada", "none")
    assert "ada" not in roles()


@pytest.mark.parametrize("user", ["nobody-at-all", "\x00", "<script>"])
def test_an_unknown_user_name_is_reported_and_changes_nothing(user):
    answer = give("olga", user, "viewer")

    assert answer.status_code == 422
    assert b"<script>" not in answer.content.split(b"</head>")[1]
    assert roles() == {"olga": "admin", "ada": "researcher"}


def test_teams_of_others_are_a_404():
    page = make.browser("ada").get("/settings/teams/").content.decode()

    assert "pretraining" in page and "speech" not in page
    assert make.browser("ada").get("/settings/teams/of/speech/").status_code == 404


def test_creating_a_team_needs_the_permission_and_makes_the_creator_administrator():
    asked = {"name": "vision", "title": "Vision models"}
    assert make.browser("ada").post("/settings/teams/add/", asked).status_code == 403
    make.user("ada").user_permissions.add(Permission.objects.get(codename="add_team"))

    make.browser("ada").post("/settings/teams/add/", asked)

    assert roles("vision") == {"ada": "admin"}
    assert list(Event.objects.order_by("id").values_list("type", flat=True)) == ["team.created", "team.role_changed"]


@pytest.mark.parametrize("name", ["speech", "Not A Slug", "", "x" * 41])
def test_an_invalid_team_is_refused_with_a_reason(name):
    make.user("ada").user_permissions.add(Permission.objects.get(codename="add_team"))

    answer = make.browser("ada").post("/settings/teams/add/", {"name": name, "title": ""})

    assert answer.status_code == 422
    assert Team.objects.count() == 2


def test_only_administrators_change_a_team_title():
    make.browser("olga").post(f"{TEAM}title/", {"title": "Pretraining of large models"})

    assert make.browser("ada").post(f"{TEAM}title/", {"title": "mine"}).status_code == 404
    assert Team.objects.get(name="pretraining").title == "Pretraining of large models"
    assert Event.objects.get(type="team.title_changed").detail["from"] == ""


def test_members_read_the_team_without_forms():
    page = make.browser("ada").get(TEAM).content.decode()

    assert "olga" in page and "Assign a role" not in page and "Changes" not in page


def test_the_settings_page_redirects_to_teams(client):
    assert make.browser("ada").get("/settings/")["Location"] == "/settings/teams/"
