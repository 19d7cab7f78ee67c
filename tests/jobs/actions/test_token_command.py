"""`manage.py token`: prints only the secret, or one error sentence."""

from __future__ import annotations

import io
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command

from jobs.models import Event, Membership, Token, TokenScope
from tests.jobs.api import api_make as make

pytestmark = pytest.mark.django_db


def test_command_prints_only_the_secret(client):
    make.person("ada")
    out = io.StringIO()

    call_command("token", "ada", "--scope", "read", "--days", "7", "--name", "nightly", stdout=out)

    secret = out.getvalue().removesuffix("\n")
    token = Token.objects.get()
    assert (token.scope, token.name, token.digest) == (TokenScope.READ, "nightly", Token.secret_digest(secret))
    assert secret not in str(vars(token))
    answer = client.get("/api/v1/me/", headers={"Authorization": f"Bearer {secret}"})
    assert answer.json()["user"] == "ada"


def test_token_created_by_the_command_has_an_event():
    make.person("ada")

    call_command("token", "ada", "--scope", "read", stdout=io.StringIO())

    event = Event.objects.get(type="token.created")
    assert event.by.endswith("manage.py")
    assert event.detail == {"token": Token.objects.get().prefix, "name": "script", "user": "ada", "scope": "read"}


def test_token_can_be_limited_to_networks(client):
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
        (["nobody", "--scope", "read"], "User 'nobody' not found."),
        (["ada", "--scope", "root"], "'root' is not a scope. Use one of read, submit, operate, admin."),
        (["ada", "--scope", "read", "--days", "0"], "--days 0 is not between 1 and 3650."),
        (["ada", "--scope", "read", "--team", "speech"], "ada is not a member of team 'speech'."),
        (
            ["ada", "--scope", "read", "--network", "10.0.0.1/8"],
            "'10.0.0.1/8' is not a network such as 10.0.0.0/8 or 2001:db8::/32: 10.0.0.1/8 has host bits set.",
        ),
    ],
)
def test_invalid_arguments_give_one_sentence_and_exit_code_1(words, sentence):
    make.person("ada")

    with pytest.raises(CommandError) as failed:
        call_command("token", *words)

    assert str(failed.value) == sentence
    assert failed.value.returncode == 1
    assert not Token.objects.exists()


@pytest.mark.parametrize("how", ["revoked", "expired", "of nobody active"])
def test_revoked_token_is_rejected_with_its_next_request(how):
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


def test_removed_role_is_gone_with_the_next_request():
    caller = make.Caller(make.person())
    assert caller.get("me/").json()["teams"] == [{"team": "vision", "role": "researcher"}]

    Membership.objects.all().delete()

    assert caller.get("me/").json()["teams"] == []


def test_token_without_days_gets_the_maximum_lifetime(settings):
    settings.ACME_TOKEN_MAX_DAYS = 20
    make.person("ada")

    call_command("token", "ada", "--scope", "read", stdout=io.StringIO())

    token = Token.objects.get()
    assert abs(token.expires_at - token.created_at - timedelta(days=20)) < timedelta(hours=1)


def test_lifetime_above_the_maximum_is_rejected(settings):
    settings.ACME_TOKEN_MAX_DAYS = 20
    make.person("ada")

    with pytest.raises(CommandError, match="at most 20 days"):
        call_command("token", "ada", "--scope", "read", "--days", "21")


def test_token_without_days_does_not_expire_without_a_maximum(settings):
    settings.ACME_TOKEN_MAX_DAYS = 0
    make.person("ada")

    call_command("token", "ada", "--scope", "read", stdout=io.StringIO())

    assert Token.objects.get().expires_at is None
