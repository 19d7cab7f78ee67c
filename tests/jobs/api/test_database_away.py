"""API responses while the database is unavailable: 503 with Retry-After."""

from __future__ import annotations

import pytest
from django.db import InterfaceError, OperationalError

from jobs.rest.errors import UNAVAILABLE_RETRY_S
from tests.jobs.api import api_make as make
from tests.statements import failing_statement

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    "error", [OperationalError("couldn't get a connection after 10.00 sec"), InterfaceError("gone")]
)
def test_an_unavailable_database_is_a_503_with_retry_after(client, error):
    token = make.token(make.person())

    with failing_statement("jobs_token", error=error):
        answer = client.get("/api/v1/me/", headers={"Authorization": f"Bearer {token}"})

    assert answer.status_code == 503 and answer["Retry-After"] == str(UNAVAILABLE_RETRY_S)
    assert answer.json() == {"detail": "The database is not responding. Try again."}
