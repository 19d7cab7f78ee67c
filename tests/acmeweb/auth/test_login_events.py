"""Logins, failed logins and logouts are Events with the address of the client."""

from __future__ import annotations

import pytest
from django.test import Client

from acmeweb.auth import login_limits
from jobs.models import Event
from tests import make

pytestmark = pytest.mark.django_db
ADDRESS = "203.0.113.9"


@pytest.fixture(autouse=True)
def ada(settings, db):
    person = make.user("ada", is_staff=True)  # created first: its hash is cached for other tests
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    person.set_password(make.PASSWORD)
    person.save()


def log_in(client, name="ada", password=make.PASSWORD, path="/login/"):
    headers = {"X-Request-ID": "night-1"}
    return client.post(path, {"username": name, "password": password}, REMOTE_ADDR=ADDRESS, headers=headers)


def recorded():
    return list(Event.objects.order_by("id").values_list("type", "by", "source", "request_id"))


@pytest.mark.parametrize("path", ["/login/", "/admin/login/"])
def test_login_and_logout_are_recorded_with_address_and_request(client, path):
    log_in(client, path=path)
    client.post("/logout/", REMOTE_ADDR=ADDRESS, headers={"X-Request-ID": "night-2"})

    assert recorded() == [
        ("login.succeeded", "ada", ADDRESS, "night-1"),
        ("login.ended", "ada", ADDRESS, "night-2"),
    ]
    assert {event.user.username for event in Event.objects.all()} == {"ada"}


def test_failed_login_is_recorded_with_the_name_of_the_user(client):
    log_in(client, password="wrong")

    assert recorded() == [("login.failed", "ada", ADDRESS, "night-1")]
    assert Event.objects.get().why == "Wrong password."


def test_text_that_is_no_user_name_is_not_recorded(client):
    log_in(client, name="my secret password", password="wrong")

    assert recorded() == [("login.failed", "unknown user", ADDRESS, "night-1")]


def test_attempts_beyond_the_limit_are_not_recorded(client):
    for _ in range(login_limits.MAX_PER_NAME + 3):
        log_in(client, password="wrong")

    assert len(recorded()) == login_limits.MAX_PER_NAME


def test_wrong_old_password_and_a_new_one_are_recorded(client):
    client.force_login(make.user("ada"))
    new = {"new_password1": "a sentence nobody guesses", "new_password2": "a sentence nobody guesses"}

    for old in ("wrong", make.PASSWORD):
        client.post("/account/password/", {"old_password": old, **new})

    assert [kind for kind, *_ in recorded()] == ["login.failed", "password.changed"]


def test_logout_of_an_ended_session_is_not_recorded():
    Client().post("/logout/")

    assert recorded() == []
