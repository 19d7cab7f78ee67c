"""The settings page of the language model: the configuration without its key, and a test of it."""

from __future__ import annotations

import pytest

from tests import make
from tests.failures.learning.test_agent import response_body, serving, verdict

pytestmark = pytest.mark.django_db


def test_model_page_is_for_operators_only():
    assert make.browser("olga").get("/settings/model/").status_code == 403


def test_model_page_without_an_endpoint_explains_the_configuration(settings):
    settings.ACME_AGENT_URL = ""

    page = make.browser("olga", "operate_cluster").post("/settings/model/").content.decode()

    assert "No model is configured. A model is optional" in page and "ACME_AGENT_URL" in page


def test_answer_of_the_model_is_shown_without_its_key(settings):
    with serving(lambda *_: (200, response_body(verdict("OutOfMemoryError")))) as (url, requests):
        settings.ACME_AGENT_URL, settings.ACME_AGENT_MODEL, settings.ACME_AGENT_KEY = url, "tiny", "sk-secret"
        settings.ACME_AGENT_TIMEOUT_S = settings.ACME_AGENT_BUDGET_S = 120
        page = make.browser("olga", "operate_cluster").post("/settings/model/").content.decode()

    assert "Valid response" in page and "OutOfMemoryError" in page
    assert "sk-secret" not in page and len(requests) == 1


def test_invalid_answer_of_the_model_is_reported(settings):
    with serving(lambda *_: (200, response_body("I think <script>it</script> is the fan"))) as (url, _):
        settings.ACME_AGENT_URL, settings.ACME_AGENT_MODEL = url, "tiny"
        page = make.browser("olga", "operate_cluster").post("/settings/model/").content.decode()

    assert "No usable response" in page and "not valid JSON" in page


def test_error_of_the_model_server_is_reported(settings):
    with serving(lambda *_: (401, b"{}")) as (url, _):
        settings.ACME_AGENT_URL, settings.ACME_AGENT_MODEL = url, "tiny"
        page = make.browser("olga", "operate_cluster").post("/settings/model/").content.decode()

    assert "rejected the request with status 401" in page
