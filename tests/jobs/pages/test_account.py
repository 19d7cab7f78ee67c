"""The account page: token scopes are limited to the user's own, and tokens of others are hidden."""

from __future__ import annotations

from datetime import timedelta

import pytest

from acmeweb.common.errors import InvalidInput, StateConflict
from jobs.actions import tokens as token_actions
from jobs.models import Event, TeamRole, Token, TokenScope, clock
from tests import make

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def people():
    make.team("pretraining", ada=TeamRole.RESEARCHER, olga=TeamRole.ADMIN)
    make.team("evaluation", ben=TeamRole.RESEARCHER)


def asked(**fields):
    return {"name": "nightly", "scope": "read", "team": "", "networks": "", "lives": "90", **fields}


def token(name, team=None):
    home = make.team(team) if team else None
    expires_at = clock.now() + timedelta(days=30)
    return token_actions.create_token(
        user=make.user(name), name="x", scope="read", team=home, author=make.author(name), expires_at=expires_at
    )


def test_the_secret_is_shown_once_and_opens_the_api(client):
    page = make.browser().post("/account/", asked(scope="submit", networks="127.0.0.0/8"))

    made = Token.objects.get()
    secret = next(word for word in page.content.decode().replace("<", " ").replace(">", " ").split() if "acme_" in word)
    assert Token.secret_digest(secret) == made.digest
    assert page["Cache-Control"] == "no-store"
    assert made.expires_at - clock.now() > timedelta(days=89)
    assert client.get("/api/v1/me/", headers={"Authorization": f"Bearer {secret}"}).json()["scope"] == "submit"
    assert secret not in make.browser().get("/account/").content.decode()


def test_creating_and_revoking_a_token_leave_events_with_user_and_address():
    ada = make.browser()
    ada.post("/account/", asked(), REMOTE_ADDR="10.1.2.3")
    ada.post(f"/account/tokens/{Token.objects.get().pk}/revoke/")

    told = Event.objects.filter(type__startswith="token.").order_by("id")
    assert [one.type for one in told] == ["token.created", "token.revoked"]
    assert (told[0].by, told[0].source) == ("ada", "10.1.2.3")
    assert "acme_" in told[0].detail["token"] and len(told[0].detail["token"]) == 12


REFUSED = {
    "a scope beyond the role": {"scope": "operate"},
    "no such scope": {"scope": "root"},
    "another's team": {"team": "evaluation"},
    "no network": {"networks": "10.0.0.0/99"},
    "too many networks": {"networks": ",".join(f"10.0.{n}.0/24" for n in range(30))},
    "no name": {"name": ""},
    "control characters": {"name": "a\x1b[2J"},
    "an endless life": {"lives": "100000"},
}


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_token_fields_are_refused_at_the_field(name):
    changed = dict(REFUSED[name])
    if "team" in changed:
        changed["team"] = str(make.team(changed["team"]).pk)

    page = make.browser().post("/account/", asked(**changed))

    assert page.status_code == 422 and 'class="error"' in page.content.decode()
    assert not Token.objects.exists()


def test_a_user_without_a_team_can_create_a_read_token():
    make.user("nobody")

    assert make.browser("nobody").post("/account/", asked(scope="read")).status_code == 200
    assert make.browser("nobody").post("/account/", asked(scope="submit")).status_code == 422


def test_users_see_and_revoke_only_their_own_tokens():
    mine, theirs = token("ada")[0], token("ben")[0]
    ada = make.browser()

    page = ada.get("/account/").content.decode()
    refused = ada.post(f"/account/tokens/{theirs.pk}/revoke/")

    assert mine.prefix in page and theirs.prefix not in page
    assert refused.status_code == 404
    theirs.refresh_from_db()
    assert theirs.revoked_at is None


def test_an_admin_of_a_team_sees_and_revokes_the_tokens_bound_to_it():
    bound, free = token("ada", "pretraining")[0], token("ada")[0]
    olga = make.browser("olga")

    page = olga.get("/account/").content.decode()
    olga.post(f"/account/tokens/{bound.pk}/revoke/")

    assert bound.prefix in page and free.prefix not in page
    bound.refresh_from_db()
    assert bound.revoked_at


def test_revoking_a_token_twice_is_refused_with_a_reason():
    made = token("ada")[0]
    token_actions.revoke(made, author=make.author())

    with pytest.raises(StateConflict, match="already revoked"):
        token_actions.revoke(made, author=make.author())


def test_no_role_can_grant_a_scope_above_its_own():
    for role in TeamRole:
        make.team("pretraining", ada=role)
        widest = token_actions.max_token_scope(make.user("ada"), None)
        for scope in TokenScope:
            made = make.browser().post("/account/", asked(scope=scope)).status_code == 200
            assert made == widest.covers(scope), (role, scope)


def test_the_account_page_requires_a_login(client):
    assert client.get("/account/")["Location"].startswith("/login/")


def test_the_page_offers_no_token_lifetime_beyond_the_site_limit(settings):
    settings.ACME_TOKEN_MAX_DAYS = 30

    page = make.browser().get("/account/").content.decode()

    assert 'value="30"' in page and 'value="90"' not in page and "until revoked" not in page
    assert make.browser().post("/account/", asked(lives="90")).status_code == 422
    assert make.browser().post("/account/", asked(lives="")).status_code == 200
    assert Token.objects.get().expires_at - clock.now() <= timedelta(days=30)


def test_an_unusual_lifetime_limit_is_offered_as_a_choice(settings):
    settings.ACME_TOKEN_MAX_DAYS = 45

    assert make.browser().post("/account/", asked(lives="45")).status_code == 200
    assert timedelta(days=44) < Token.objects.get().expires_at - clock.now() <= timedelta(days=45)


def test_without_a_limit_a_token_may_live_until_it_is_revoked(settings):
    settings.ACME_TOKEN_MAX_DAYS = 0

    assert make.browser().post("/account/", asked(lives="")).status_code == 200
    assert Token.objects.get().expires_at is None


def test_an_older_token_without_expiry_is_shown_with_a_hint(settings):
    settings.ACME_TOKEN_MAX_DAYS = 0
    make.browser().post("/account/", asked(lives=""))
    assert "replace it" not in make.browser().get("/account/").content.decode()

    settings.ACME_TOKEN_MAX_DAYS = 365

    assert "replace it" in make.browser().get("/account/").content.decode()


def test_create_token_refuses_a_lifetime_beyond_the_limit():
    for expires_at in (None, clock.now() + timedelta(days=366)):
        with pytest.raises(InvalidInput, match=r"at most 365 days \(ACME_TOKEN_MAX_DAYS\)"):
            token_actions.create_token(
                user=make.user("ada"), name="x", scope="read", author=make.author(), expires_at=expires_at
            )
