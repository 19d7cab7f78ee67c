"""`manage.py token`: the secret alone on stdout, or one sentence and a failure."""

from __future__ import annotations

import io
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command

from jobs.models import Event, Membership, Token, TokenScope
from tests.jobs.api import api_make as make

pytestmark = pytest.mark.django_db


def test_prints_the_secret_and_nothing_else(client):
    make.person("ada")
    out = io.StringIO()

    call_command("token", "ada", "--scope", "read", "--days", "7", "--name", "nightly", stdout=out)

    secret = out.getvalue().removesuffix("\n")
    token = Token.objects.get()
    assert (token.scope, token.name, token.digest) == (TokenScope.READ, "nightly", Token.secret_digest(secret))
    assert secret not in str(vars(token))
    answer = client.get("/api/v1/me/", headers={"Authorization": f"Bearer {secret}"})
    assert answer.json()["user"] == "ada"


def test_a_token_made_here_is_told_like_any_other():
    make.person("ada")

    call_command("token", "ada", "--scope", "read", stdout=io.StringIO())

    told = Event.objects.get(what="token.made")
    assert told.by.endswith("manage.py")
    assert told.detail == {"token": Token.objects.get().prefix, "name": "script", "user": "ada", "scope": "read"}


def test_it_may_be_good_from_some_networks_only(client):
    make.person("ada")
    out = io.StringIO()

    call_command("token", "ada", "--scope", "read", "--network", "10.0.0.0/8", "--network", "fd00::/8", stdout=out)

    assert Token.objects.get().networks == ["10.0.0.0/8", "fd00::/8"]
    answer = client.get("/api/v1/me/", headers={"Authorization": f"Bearer {out.getvalue().strip()}"})
    assert answer.status_code == 401
    assert answer.json()["detail"] == "This token may not be used from your network."


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nobody", "--scope", "read"], "There is no user 'nobody'."),
        (["ada", "--scope", "root"], "'root' is no scope; there are read, submit, operate, admin."),
        (["ada", "--scope", "read", "--days", "0"], "--days 0 is not between 1 and 3650."),
        (["ada", "--scope", "read", "--team", "speech"], "ada is in no team 'speech'."),
        (
            ["ada", "--scope", "read", "--network", "10.0.0.1/8"],
            "'10.0.0.1/8' is no network such as 10.0.0.0/8 or 2001:db8::/32: 10.0.0.1/8 has host bits set",
        ),
    ],
)
def test_what_cannot_be_is_one_sentence_and_exit_code_1(words, sentence):
    make.person("ada")

    with pytest.raises(CommandError) as failed:
        call_command("token", *words)

    assert str(failed.value) == sentence
    assert failed.value.returncode == 1
    assert not Token.objects.exists()


@pytest.mark.parametrize("how", ["revoked", "expired", "of nobody active"])
def test_a_token_is_turned_away_from_its_next_request_on(how):
    person = make.person()
    caller = make.Caller(person)
    assert caller.get("me/").status_code == 200

    token = Token.objects.get()
    match how:
        case "revoked":
            Token.objects.update(revoked_at=token.created_at)
        case "expired":
            Token.objects.update(expires_at=token.created_at)
        case _:
            type(person).objects.update(is_active=False)

    assert caller.get("me/").status_code == 401


def test_a_role_that_was_taken_away_is_gone_with_the_next_request():
    caller = make.Caller(make.person())
    assert caller.get("me/").json()["teams"] == [{"team": "vision", "role": "researcher"}]

    Membership.objects.all().delete()

    assert caller.get("me/").json()["teams"] == []


def test_without_days_a_token_lives_as_long_as_the_site_allows(settings):
    settings.ACME_TOKEN_MAX_DAYS = 20
    make.person("ada")

    call_command("token", "ada", "--scope", "read", stdout=io.StringIO())

    token = Token.objects.get()
    assert abs(token.expires_at - token.created_at - timedelta(days=20)) < timedelta(hours=1)


def test_more_days_than_the_site_allows_are_refused(settings):
    settings.ACME_TOKEN_MAX_DAYS = 20
    make.person("ada")

    with pytest.raises(CommandError, match="at most 20 days here"):
        call_command("token", "ada", "--scope", "read", "--days", "21")


def test_without_a_limit_a_token_without_days_does_not_expire(settings):
    settings.ACME_TOKEN_MAX_DAYS = 0
    make.person("ada")

    call_command("token", "ada", "--scope", "read", stdout=io.StringIO())

    assert Token.objects.get().expires_at is None
