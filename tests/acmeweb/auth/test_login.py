"""Login with a password, and changing the password."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.test import Client

from acmeweb.auth import login_limits
from jobs.actions import tokens as token_actions
from jobs.models import Event, LoginAttempts, Token, clock
from tests import make
from tests.page_text import page_text
from tests.patience import until

pytestmark = pytest.mark.django_db
FRESH = "a sentence nobody guesses"


@pytest.fixture(autouse=True)
def ada(settings, db):
    person = make.user("ada")  # created first: its hash is cached for other tests, which use the default hasher
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    person.set_password(make.PASSWORD)
    person.save()


def attempt(client, name="ada", password="wrong", address="10.0.0.1"):
    return client.post("/login/", {"username": name, "password": password}, REMOTE_ADDR=address)


def test_correct_password_is_refused_after_ten_wrong_ones(client):
    for _ in range(login_limits.MAX_PER_NAME):
        assert attempt(client).status_code == 200

    refused = attempt(client, password=make.PASSWORD)

    assert refused.status_code == 429 and 0 < int(refused["Retry-After"]) <= login_limits.ATTEMPT_WINDOW.total_seconds()
    assert "Too many wrong passwords" in refused.content.decode()


def test_attempts_from_another_address_do_not_lock_a_user_out(client):
    for _ in range(login_limits.MAX_PER_NAME + 1):
        attempt(client, address="203.0.113.9")

    assert attempt(client, password=make.PASSWORD).status_code == 302


def test_many_names_from_one_address_are_throttled(client):
    for number in range(login_limits.MAX_PER_ADDRESS):
        attempt(client, name=f"guess{number}")

    assert attempt(client, password=make.PASSWORD).status_code == 429


def test_right_passwords_do_not_count():
    for _ in range(login_limits.MAX_PER_NAME + 1):
        assert attempt(Client(), password=make.PASSWORD).status_code == 302


def test_user_stays_signed_in_after_a_password_change(client):
    attempt(client, password=make.PASSWORD)
    other = Client()
    attempt(other, password=make.PASSWORD)

    fresh = "a sentence nobody guesses"
    new = {"old_password": make.PASSWORD, "new_password1": fresh, "new_password2": fresh}
    assert client.post("/account/password/", new)["Location"] == "/account/"

    assert client.get("/account/").status_code == 200
    assert other.get("/account/").status_code == 302


@pytest.mark.parametrize(("old", "new"), [("wrong", "a sentence nobody guesses"), (make.PASSWORD, "short")])
def test_password_change_needs_the_old_password_and_a_strong_new_one(client, old, new):
    client.force_login(make.user("ada"))

    page = client.post("/account/password/", {"old_password": old, "new_password1": new, "new_password2": new})

    assert page.status_code == 200 and "why bad" in page.content.decode()
    assert make.user("ada").check_password(make.PASSWORD)


def admin_attempt(client, password="wrong", address="10.0.0.1"):
    return client.post("/admin/login/", {"username": "ada", "password": password}, REMOTE_ADDR=address)


def test_the_login_page_and_the_admin_share_one_limit(client):
    for _ in range(login_limits.MAX_PER_NAME // 2):
        attempt(client)
        admin_attempt(client)

    assert attempt(client, password=make.PASSWORD).status_code == 429
    assert login_limits.TOO_MANY_MESSAGE in admin_attempt(client, password=make.PASSWORD).content.decode()


def test_the_old_password_of_a_password_change_counts_like_a_login(client):
    client.force_login(make.user("ada"))
    guess = {"old_password": "wrong", "new_password1": FRESH, "new_password2": FRESH}
    for _ in range(login_limits.MAX_PER_NAME):
        assert client.post("/account/password/", guess).status_code == 200

    refused = client.post("/account/password/", guess | {"old_password": make.PASSWORD})

    assert refused.status_code == 429 and int(refused["Retry-After"]) > 0
    assert make.user("ada").check_password(make.PASSWORD)


def test_a_successful_login_does_not_reset_the_count_of_its_address(client):
    make.user("mallory").set_password("x")
    mallory = make.user("mallory")
    mallory.set_password(make.PASSWORD)
    mallory.save()
    for number in range(login_limits.MAX_PER_ADDRESS):
        attempt(client, name=f"guess{number}")
        if number < login_limits.MAX_PER_ADDRESS - 1:
            assert attempt(Client(), name="mallory", password=make.PASSWORD).status_code == 302

    assert attempt(client, name="mallory", password=make.PASSWORD).status_code == 429


def test_ipv6_addresses_of_one_network_share_the_limit(client):
    for number in range(login_limits.MAX_PER_NAME):
        attempt(client, address=f"2001:db8:0:1::{number + 1:x}")

    assert attempt(client, address="2001:db8:0:1:ffff::1").status_code == 429
    assert attempt(client, address="2001:db8:0:2::1").status_code == 200


def test_a_count_starts_again_after_its_window(client):
    for _ in range(login_limits.MAX_PER_NAME):
        attempt(client)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE jobs_loginattempts SET since = since - %s", [login_limits.ATTEMPT_WINDOW])

    assert attempt(client, password=make.PASSWORD).status_code == 302


def test_old_counts_are_forgotten(client):
    for number in range(5):
        attempt(client, name=f"guess{number}", address=f"10.0.1.{number}")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE jobs_loginattempts SET since = since - %s", [login_limits.ATTEMPT_WINDOW])

    attempt(client)

    assert LoginAttempts.objects.count() == 2


def test_the_limit_holds_without_valkey(client, settings):
    settings.VALKEY_URL = "redis://127.0.0.1:1/0"
    for _ in range(login_limits.MAX_PER_NAME):
        assert attempt(client).status_code == 200

    assert attempt(client).status_code == 429


def token(name="ada"):
    expires_at = clock.now() + timedelta(days=30)
    return token_actions.create_token(
        user=make.user(name), name="x", scope="read", author=make.author(name), expires_at=expires_at
    )[0]


def change(client, **fields):
    new = {"old_password": make.PASSWORD, "new_password1": FRESH, "new_password2": FRESH, **fields}
    return client.post("/account/password/", new)


def test_password_page_offers_to_revoke_tokens_by_default(client):
    client.force_login(make.user("ada"))

    assert 'name="revoke_tokens" checked' in page_text(client.get("/account/password/"))


def test_password_change_revokes_tokens_if_requested(client):
    mine, theirs = token(), token("ben")
    client.force_login(make.user("ada"))

    change(client, revoke_tokens="on")

    assert list(Token.objects.filter(revoked_at=None)) == [theirs]
    told = Event.objects.get(type="token.revoked")
    assert (told.by, told.why, told.detail["token"]) == ("ada", "The password was changed.", mine.prefix)


def test_password_change_keeps_tokens_if_requested(client):
    token()
    client.force_login(make.user("ada"))

    assert change(client).status_code == 302

    assert Token.objects.filter(revoked_at=None).count() == 1


def test_the_password_page_of_the_admin_leads_to_ours(client):
    client.force_login(make.user("ada"))

    assert client.get("/admin/password_change/")["Location"] == "/account/password/"


@pytest.mark.django_db(transaction=True)
def test_twenty_parallel_attempts_do_not_exceed_the_limit(settings):
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.PBKDF2PasswordHasher"]
    make.user("ada")

    def one(_):
        try:
            return attempt(Client()).status_code
        finally:
            connection.close()

    with ThreadPoolExecutor(20) as threads:
        statuses = list(threads.map(one, range(20)))

    assert statuses.count(200) == login_limits.MAX_PER_NAME
    assert statuses.count(429) == 20 - login_limits.MAX_PER_NAME


def _is_somebody_waiting_for_us():
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid() = ANY(pg_blocking_pids(pid)) FROM pg_locks WHERE NOT granted")
        return any(found for (found,) in cursor.fetchall())


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("act", [login_limits.count_attempt, login_limits.uncount_attempt])
def test_counters_are_locked_in_the_order_of_their_keys(act):
    for key in ("b", "a"):
        LoginAttempts.objects.create(key=key, since=clock.now(), count=1)

    def run():
        try:
            act({"b": 10, "a": 50})
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as threads:
        with transaction.atomic():
            LoginAttempts.objects.select_for_update().get(key="b")
            running = threads.submit(run)
            until(_is_somebody_waiting_for_us)
            free = list(LoginAttempts.objects.select_for_update(skip_locked=True).values_list("key", flat=True))
        running.result()

    assert free == ["b"]
