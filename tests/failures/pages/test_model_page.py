"""The page of the model: what is configured without its key, and a question that shows whether it works."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Permission
from django.test import Client

from tests import make
from tests.failures.learning.test_agent import said, serving, verdict

pytestmark = pytest.mark.django_db


def browser(*codenames):
    person = make.user("olga")
    person.user_permissions.add(*Permission.objects.filter(codename__in=codenames))
    client = Client()
    client.force_login(person)
    return client


def test_it_is_for_operators():
    assert browser().get("/settings/model/").status_code == 403


def test_without_an_endpoint_it_says_how_to_have_one(settings):
    settings.ACME_AGENT_URL = ""

    page = browser("operate_cluster").post("/settings/model/").content.decode()

    assert "None is configured, and none is required" in page and "ACME_AGENT_URL" in page


def test_a_model_that_answers_is_shown_with_its_answer_and_never_its_key(settings):
    with serving(lambda *_: (200, said(verdict("OutOfMemoryError")))) as (url, asked):
        settings.ACME_AGENT_URL, settings.ACME_AGENT_MODEL, settings.ACME_AGENT_KEY = url, "tiny", "sk-secret"
        settings.ACME_AGENT_CALL_S = settings.ACME_AGENT_BUDGET_S = 120
        page = browser("operate_cluster").post("/settings/model/").content.decode()

    assert "It answers in our shape" in page and "OutOfMemoryError" in page
    assert "sk-secret" not in page and len(asked) == 1


def test_a_model_that_talks_nonsense_is_told(settings):
    with serving(lambda *_: (200, said("I think <script>it</script> is the fan"))) as (url, _):
        settings.ACME_AGENT_URL, settings.ACME_AGENT_MODEL = url, "tiny"
        page = browser("operate_cluster").post("/settings/model/").content.decode()

    assert "no answer that could be used" in page and "no JSON" in page


def test_a_server_that_says_no_is_told(settings):
    with serving(lambda *_: (401, b"{}")) as (url, _):
        settings.ACME_AGENT_URL, settings.ACME_AGENT_MODEL = url, "tiny"
        page = browser("operate_cluster").post("/settings/model/").content.decode()

    assert "refused the question with 401" in page
