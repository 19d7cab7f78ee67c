"""Sessions end after a time without activity, and activity rarely costs a write."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.conf import settings
from django.contrib.sessions.models import Session
from django.test import Client
from django.utils import timezone

from tests import make

pytestmark = pytest.mark.django_db

IDLE = timedelta(seconds=settings.SESSION_COOKIE_AGE)
PAGE = {"Accept": "text/html,*/*"}


@pytest.fixture
def browser():
    return make.browser("ada")


def set_expiry(after):
    """Let the session expire so long from now. Return when that is."""
    Session.objects.update(expire_date=timezone.now() + after)
    return expiry()


def expiry():
    return Session.objects.get().expire_date


def test_session_lasts_twelve_hours_by_default(browser):
    assert timedelta(hours=12) == IDLE
    assert expiry() <= timezone.now() + IDLE


def test_session_without_activity_ends(browser):
    set_expiry(timedelta(seconds=-1))

    assert browser.get("/account/", headers=PAGE).status_code == 302


def test_page_that_a_user_opens_moves_the_expiry_and_renews_the_cookie(browser):
    set_expiry(IDLE / 2)

    answer = browser.get("/account/", headers=PAGE)

    assert answer.cookies[settings.SESSION_COOKIE_NAME]["max-age"] == settings.SESSION_COOKIE_AGE
    assert expiry() > timezone.now() + IDLE * 0.9


def test_form_that_a_user_sends_moves_the_expiry(browser):
    before = set_expiry(IDLE / 2)

    browser.post("/jobs/new/", {})

    assert expiry() > before


@pytest.mark.parametrize("headers", [{**PAGE, "HX-Request": "true"}, {"Accept": "application/json"}, {"Accept": "*/*"}])
def test_request_that_a_page_sends_by_itself_is_no_activity(browser, headers):
    before = set_expiry(IDLE / 2)

    browser.get("/account/", headers=headers)

    assert expiry() == before


def test_recent_activity_is_not_written_again(browser):
    before = set_expiry(IDLE * 0.99)

    browser.get("/account/", headers=PAGE)

    assert expiry() == before


def test_visitor_without_a_session_gets_none():
    Client().get("/login/", headers=PAGE)

    assert not Session.objects.exists()
