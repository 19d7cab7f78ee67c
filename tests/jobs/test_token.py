"""`manage.py token`: the secret alone on stdout, or one sentence and a failure."""

from __future__ import annotations

import io

import pytest
from django.core.management import CommandError, call_command

from jobs.models import Scope, Token
from tests.jobs import api_make as make

pytestmark = pytest.mark.django_db


def test_prints_the_secret_and_nothing_else(client):
    make.person("ada")
    out = io.StringIO()

    call_command("token", "ada", "--scope", "read", "--days", "7", "--name", "nightly", stdout=out)

    secret = out.getvalue().removesuffix("\n")
    token = Token.objects.get()
    assert (token.scope, token.name, token.digest) == (Scope.READ, "nightly", Token.digest_of(secret))
    assert secret not in str(vars(token))
    answer = client.get("/api/v1/me/", headers={"Authorization": f"Bearer {secret}"})
    assert answer.json()["user"] == "ada"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nobody", "--scope", "read"], "There is no user 'nobody'."),
        (["ada", "--scope", "root"], "'root' is no scope; there are read, submit, operate, admin."),
        (["ada", "--scope", "read", "--days", "0"], "--days 0 is not between 1 and 3650."),
        (["ada", "--scope", "read", "--team", "speech"], "ada is in no team 'speech'."),
    ],
)
def test_what_cannot_be_is_one_sentence_and_exit_code_1(words, sentence):
    make.person("ada")

    with pytest.raises(CommandError) as failed:
        call_command("token", *words)

    assert str(failed.value) == sentence
    assert failed.value.returncode == 1
    assert not Token.objects.exists()
