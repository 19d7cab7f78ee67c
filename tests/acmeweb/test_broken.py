"""Overload is a 503 with Retry-After, wherever it occurs; only a defect is a 500."""

from __future__ import annotations

import logging
from io import StringIO

import pytest
from django.db import OperationalError, connection, transaction
from django.db.utils import ConnectionHandler

from acmeweb import error_pages
from acmeweb.middleware import RequestLogFormatter
from jobs.rest.errors import DATABASE_UNAVAILABLE, UNAVAILABLE_RETRY_S, to_api_exception
from tests.jobs.api import api_make as make
from tests.statements import failing_statement

pytestmark = pytest.mark.django_db


@pytest.fixture
def browser(client):
    client.raise_request_exception = False
    client.force_login(make.person())
    return client


@pytest.fixture
def log():
    """Collect the server's log during the test."""
    console = next(one for one in logging.getLogger().handlers if isinstance(one.formatter, RequestLogFormatter))
    written = StringIO()
    before = console.setStream(written)
    yield written
    console.setStream(before)


def test_refusal_is_one_log_line_with_the_request_id(browser, log):
    answer = browser.post("/settings/teams/add/", {"name": "mine"})

    (line,) = log.getvalue().splitlines()
    assert answer.status_code == 403
    assert "Forbidden" in line and line.endswith(f"[{answer['X-Request-ID']}]")


def test_defect_is_logged_in_full_with_the_request_id(browser, log):
    with failing_statement("jobs_cluster", error=RuntimeError("a word for us alone")):
        answer = browser.get("/")

    first = log.getvalue().splitlines()[0]
    assert "Internal Server Error" in first and first.endswith(f"[{answer['X-Request-ID']}]")
    assert "Traceback" in log.getvalue() and "a word for us alone" in log.getvalue()


def test_page_without_a_database_connection_is_a_503_with_a_sentence(browser):
    with failing_statement("jobs_cluster", error=OperationalError("couldn't get a connection after 10.00 sec")):
        answer = browser.get("/")

    assert answer.status_code == 503 and answer["Retry-After"] == str(UNAVAILABLE_RETRY_S)
    assert "The database is not responding" in answer.content.decode()
    assert answer["X-Request-ID"] and answer["Content-Security-Policy"]


def test_page_whose_session_cannot_be_read_is_a_503(browser):
    with failing_statement("django_session", error=OperationalError("gone")):
        assert browser.get("/").status_code == 503
        assert browser.get("/api/v1/docs/").json() == {"detail": DATABASE_UNAVAILABLE}


def test_defect_is_a_500_without_internal_details(browser):
    with failing_statement("jobs_cluster", error=RuntimeError("secret")):
        answer = browser.get("/")

    assert answer.status_code == 500 and "Retry-After" not in answer
    assert "Internal server error" in answer.content.decode() and "secret" not in answer.content.decode()


def test_defect_in_the_api_is_answered_in_json(browser):
    with failing_statement("jobs_cluster", error=RuntimeError("secret")):
        answer = browser.get("/api/v1/clusters/")

    assert answer.status_code == 500 and answer["X-Request-ID"]
    assert answer.json()["detail"].startswith("Internal server error. Nothing was changed.")


def test_exhausted_connection_pool_counts_as_overload():
    here = {**connection.settings_dict, "CONN_MAX_AGE": 0}
    tiny = {**here, "OPTIONS": {"pool": {"min_size": 1, "max_size": 1, "timeout": 0.05}}}
    first, second = (ConnectionHandler({"default": here, "tiny": tiny})["tiny"] for _ in range(2))
    try:
        first.pool.open(wait=True)
        first.ensure_connection()
        with pytest.raises(OperationalError) as caught:
            second.ensure_connection()
        refused = to_api_exception(caught.value)
        assert refused.status_code == 503 and refused.wait == UNAVAILABLE_RETRY_S
    finally:
        first.close()
        first.close_pool()


def stopped(statement="SELECT pg_sleep(60)"):
    """Return the exception that Django raises when PostgreSQL cancels a statement."""
    with pytest.raises(OperationalError) as caught, transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL statement_timeout = 1")
        cursor.execute(statement)
    return caught.value


def test_cancelled_statement_differs_from_an_unavailable_database():
    refusal = to_api_exception(stopped())

    assert (refusal.status_code, refusal.wait) == (503, UNAVAILABLE_RETRY_S)
    assert str(refusal.detail).startswith("The database query timed out")


@pytest.mark.parametrize("path", ["/jobs/", "/api/v1/jobs/"])
def test_page_reports_a_cancelled_statement(rf, path):
    try:
        raise stopped()
    except OperationalError:
        response = error_pages.server_error(rf.get(path))

    assert response.status_code == 503 and response["Retry-After"] == str(UNAVAILABLE_RETRY_S)
    assert "The database query timed out." in response.content.decode()
