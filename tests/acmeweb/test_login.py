"""Signing in with a password, and changing it."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
from django.test import Client

from acmeweb import login
from jobs.door import throttle
from tests import make

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def count_here(settings, monkeypatch):
    settings.VALKEY_URL = ""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    monkeypatch.setattr(login, "counter", throttle.Counter())
    # all in one window, whenever and however slowly this runs
    monkeypatch.setattr(throttle, "time", SimpleNamespace(time=lambda: 1_800_000_000.0, monotonic=time.monotonic))
    make.user("ada").set_password("x")
    person = make.user("ada")
    person.set_password(make.PASSWORD)
    person.save()


def attempt(client, name="ada", password="wrong", address="10.0.0.1"):
    return client.post("/login/", {"username": name, "password": password}, REMOTE_ADDR=address)


def test_after_ten_wrong_passwords_even_the_right_one_has_to_wait(client):
    for _ in range(login.MOST_FOR_NAME):
        assert attempt(client).status_code == 200

    refused = attempt(client, password=make.PASSWORD)

    assert refused.status_code == 429 and 0 < int(refused["Retry-After"]) <= login.WINDOW_S
    assert "Too many wrong passwords" in refused.content.decode()


def test_a_stranger_elsewhere_cannot_lock_a_colleague_out(client):
    for _ in range(login.MOST_FOR_NAME + 1):
        attempt(client, address="203.0.113.9")

    assert attempt(client, password=make.PASSWORD).status_code == 302


def test_many_names_from_one_address_are_stopped_too(client):
    for number in range(login.MOST_FOR_ADDRESS):
        attempt(client, name=f"guess{number}")

    assert attempt(client, password=make.PASSWORD).status_code == 429


def test_right_passwords_do_not_count():
    for _ in range(login.MOST_FOR_NAME + 1):
        assert attempt(Client(), password=make.PASSWORD).status_code == 302


def test_a_person_changes_their_password_and_stays_signed_in(client):
    attempt(client, password=make.PASSWORD)
    other = Client()
    attempt(other, password=make.PASSWORD)

    fresh = "a sentence nobody guesses"
    new = {"old_password": make.PASSWORD, "new_password1": fresh, "new_password2": fresh}
    assert client.post("/account/password/", new)["Location"] == "/account/"

    assert client.get("/account/").status_code == 200
    assert other.get("/account/").status_code == 302


@pytest.mark.parametrize(("old", "new"), [("wrong", "a sentence nobody guesses"), (make.PASSWORD, "short")])
def test_a_password_is_changed_by_who_knows_it_and_to_one_worth_having(client, old, new):
    client.force_login(make.user("ada"))

    page = client.post("/account/password/", {"old_password": old, "new_password1": new, "new_password2": new})

    assert page.status_code == 200 and "why bad" in page.content.decode()
    assert make.user("ada").check_password(make.PASSWORD)
