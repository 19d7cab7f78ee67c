"""Overload is a 503 with the time to come back, wherever it strikes; only a defect is a 500, and it is told apart."""

from __future__ import annotations

import logging
from io import StringIO

import pytest
from django.db import OperationalError, connection, transaction
from django.db.utils import ConnectionHandler

from acmeweb import error_pages
from acmeweb.middleware import RequestLogFormatter
from acmeweb.pages import home
from jobs.rest.errors import UNAVAILABLE_RETRY_S, DatabaseUnavailable, to_api_exception
from tests.jobs.api import api_make as make

pytestmark = pytest.mark.django_db


@pytest.fixture
def browser(client):
    client.raise_request_exception = False
    client.force_login(make.person())
    return client


def raising(error):
    def fails(*_words, **_names):
        raise error

    return fails


@pytest.fixture
def log():
    """What the server's log says meanwhile."""
    console = next(one for one in logging.getLogger().handlers if isinstance(one.formatter, RequestLogFormatter))
    written = StringIO()
    before = console.setStream(written)
    yield written
    console.setStream(before)


def test_a_refusal_is_one_line_in_the_log_under_the_id_of_its_answer(browser, log):
    answer = browser.post("/settings/teams/add/", {"name": "mine"})

    (line,) = log.getvalue().splitlines()
    assert answer.status_code == 403
    assert "Forbidden" in line and line.endswith(f"[{answer['X-Request-ID']}]")


def test_a_defect_is_told_in_full_under_the_id_of_its_answer(browser, log, monkeypatch):
    monkeypatch.setattr(home.clock, "now", raising(RuntimeError("a word for us alone")))

    answer = browser.get("/")

    first = log.getvalue().splitlines()[0]
    assert "Internal Server Error" in first and first.endswith(f"[{answer['X-Request-ID']}]")
    assert "Traceback" in log.getvalue() and "a word for us alone" in log.getvalue()


def test_a_page_without_a_connection_is_a_503_and_a_sentence(browser, monkeypatch):
    monkeypatch.setattr(home.clock, "now", raising(OperationalError("couldn't get a connection after 10.00 sec")))

    answer = browser.get("/")

    assert answer.status_code == 503 and answer["Retry-After"] == str(UNAVAILABLE_RETRY_S)
    assert "The database does not answer at the moment" in answer.content.decode()
    assert answer["X-Request-ID"] and answer["Content-Security-Policy"]


def test_so_is_one_whose_session_cannot_be_read(browser, monkeypatch):
    store = "django.contrib.sessions.backends.db.SessionStore"
    monkeypatch.setattr(f"{store}._get_session_from_db", raising(OperationalError("gone")))

    assert browser.get("/").status_code == 503
    assert browser.get("/api/v1/docs/").json() == {"detail": DatabaseUnavailable.default_detail}


def test_a_defect_stays_a_500_that_tells_nothing_of_its_inside(browser, monkeypatch):
    monkeypatch.setattr(home.clock, "now", raising(RuntimeError("secret")))

    answer = browser.get("/")

    assert answer.status_code == 500 and "Retry-After" not in answer
    assert "Something broke" in answer.content.decode() and "secret" not in answer.content.decode()


def test_a_defect_behind_the_api_is_answered_in_json(browser, monkeypatch):
    monkeypatch.setattr("acmeweb.api_root.openapi_schema", raising(RuntimeError("secret")))

    answer = browser.get("/api/v1/schema/")

    assert answer.status_code == 500 and answer["X-Request-ID"]
    assert answer.json()["detail"].startswith("The server failed; nothing was done.")


def test_a_pool_whose_connections_are_all_busy_is_what_we_take_for_overload():
    here = {**connection.settings_dict, "CONN_MAX_AGE": 0}
    tiny = {**here, "OPTIONS": {"pool": {"min_size": 1, "max_size": 1, "timeout": 0.05}}}
    first, second = (ConnectionHandler({"default": here, "tiny": tiny})["tiny"] for _ in range(2))
    try:
        first.pool.open(wait=True)
        first.ensure_connection()
        with pytest.raises(OperationalError) as caught:
            second.ensure_connection()
        refused = to_api_exception(caught.value)
        assert isinstance(refused, DatabaseUnavailable) and refused.wait == UNAVAILABLE_RETRY_S
    finally:
        first.close()
        first.close_pool()


def stopped(statement="SELECT pg_sleep(60)"):
    """What Django raises when PostgreSQL stops a statement."""
    with pytest.raises(OperationalError) as caught, transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL statement_timeout = 1")
        cursor.execute(statement)
    return caught.value


def test_a_statement_that_was_stopped_is_told_apart_from_a_database_that_is_away():
    refusal = to_api_exception(stopped())

    assert (refusal.status_code, refusal.wait) == (503, UNAVAILABLE_RETRY_S)
    assert str(refusal.detail).startswith("The database took too long")


@pytest.mark.parametrize("path", ["/jobs/", "/api/v1/jobs/"])
def test_a_page_says_that_its_statement_was_stopped(rf, path):
    try:
        raise stopped()
    except OperationalError:
        response = error_pages.server_error(rf.get(path))

    assert response.status_code == 503 and response["Retry-After"] == str(UNAVAILABLE_RETRY_S)
    assert "The database took too long and was stopped." in response.content.decode()
