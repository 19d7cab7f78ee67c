"""The progress of the demo's history, and the mark of a demo."""

import pytest
from django.db import connection
from django.test import override_settings

from acmeweb.common import metrics_store
from scheduling.simulation.demo.history import progress, write
from tests import make

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def no_history(db):
    """Forget what other tests have left: the stored share, and reserved keys, which no rollback returns."""
    metrics_store.valkey.ask([("DEL", "acme:figures:history:demo")])
    with connection.cursor() as cursor:
        cursor.execute("SELECT setval('jobs_job_id_seq', 1)")


@pytest.fixture
def reader(client):
    client.force_login(make.user())
    return client


@override_settings(IS_DEMO=True, DEMO_HISTORY_DAYS=30)
def test_progress_is_shown_until_the_history_is_written(reader):
    make.cluster()
    without_history = reader.get("/demo/history/").text
    write.reserve_keys()
    new = reader.get("/demo/history/").text
    progress.store_share(0.42)
    running = reader.get("/demo/history/").text
    progress.store_share(1.0)
    done = reader.get("/demo/history/").text

    assert "<p>" not in without_history
    assert "0%" in new and "every 3s" in new
    assert "42%" in running and "every 3s" in running
    assert "are ready" in done and "every 3s" not in done


@pytest.mark.parametrize("is_demo", [True, False])
def test_only_a_demo_is_marked(reader, is_demo):
    make.cluster()
    write.reserve_keys()  # no share is stored: tests in other processes use the same Valkey
    with override_settings(IS_DEMO=is_demo):
        page = reader.get("/")

    assert ("Demo data" in page.text) is is_demo
    assert ('id="history"' in page.text) is is_demo
