"""The users that jobs are submitted as: names, tokens, and the messages for users without a token."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.backends import senders
from scheduling.backends.base import RequestRejected
from scheduling.backends.senders import ServiceTokenIdentities, SlurmIdentity, UserTokenIdentities

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
LATER = int(NOW.timestamp()) + 60


def jwt(**claims):
    part = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    return f"e30.{part}.c2ln"


def directory(**tokens):
    def read(path):
        try:
            return tokens[path.removeprefix("/tokens/")]
        except KeyError:
            raise ValueError("cannot be read (No such file or directory)") from None

    return UserTokenIdentities(service_user="acme", directory="/tokens", read=read, now=lambda: NOW)


def test_header_senders_send_the_name_with_the_service_token():
    sender = ServiceTokenIdentities(service_user="acme", token="t").of("ada")

    assert sender.headers == {"X-SLURM-USER-NAME": "ada", "X-SLURM-USER-TOKEN": "t"}


@pytest.mark.parametrize("name", ["root", "slurm", "munge", "nobody", "acme"])
def test_jobs_are_never_submitted_as_privileged_users(name):
    with pytest.raises(RequestRejected, match=f"not submitted as the cluster's user {name}"):
        ServiceTokenIdentities(service_user="acme", token="t").of(name)
    with pytest.raises(RequestRejected, match=f"not submitted as the cluster's user {name}"):
        directory(ada=jwt(sun=name, exp=LATER)).of("ada")


def test_token_senders_use_the_users_own_token_and_its_name():
    token = jwt(sun="ada.lovelace", exp=LATER)

    assert directory(ada=token).of("ada") == SlurmIdentity(user="ada.lovelace", token=token)


def test_token_without_a_name_belongs_to_the_user_of_its_file():
    assert directory(ada="opaque").of("ada") == SlurmIdentity(user="ada", token="opaque")


def test_message_for_a_user_without_a_token_says_what_to_do():
    with pytest.raises(RequestRejected, match=r"no Slurm token for user bob: /tokens/bob cannot be read .* released"):
        directory().of("bob")


def test_expired_token_is_not_sent():
    with pytest.raises(RequestRejected, match="the Slurm token of user ada expired on 2026-11-21 12:00 UTC"):
        directory(ada=jwt(sun="ada", exp=int(NOW.timestamp()))).of("ada")


@pytest.mark.parametrize("name", ["", ".", "..", "../secrets/admin", "a/b", ".hidden"])
def test_user_name_that_is_not_a_file_name_is_rejected(name):
    with pytest.raises(RequestRejected, match="cannot be the name of a token file"):
        directory().of(name)


@given(st.text() | st.builds(lambda raw: f"a.{base64.urlsafe_b64encode(raw).decode()}.b", st.binary()))
def test_claims_can_be_read_from_any_text(token):
    assert isinstance(senders.token_user(token), str)
    assert senders.token_expiry(token) is None or isinstance(senders.token_expiry(token), datetime)
