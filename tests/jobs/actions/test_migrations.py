"""Concurrent index creation in migrations: after an interruption, and next to a waiting transaction."""

from __future__ import annotations

import threading
import time

import pytest
from django.core.management import call_command
from django.db import connection

from acmeweb.services import prepare
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.django_db(transaction=True)
BEFORE = "0027_progress_read_from_logs"
MADE = """
SELECT indexrelid::regclass::text, indisvalid, pg_get_expr(indpred, indrelid) FROM pg_index
WHERE indexrelid::regclass::text LIKE 'event_node_%%'
"""


def made():
    with connection.cursor() as cursor:
        cursor.execute(MADE)
        return sorted(cursor.fetchall())


@pytest.fixture
def before():
    there = made()
    call_command("migrate", "jobs", BEFORE, verbosity=0)
    assert made() == []
    yield there
    call_command("migrate", verbosity=0)


def test_index_left_invalid_by_an_interruption_is_rebuilt(before):
    with connection.cursor() as cursor:
        cursor.execute("CREATE INDEX event_node_asked ON jobs_event (id)")

    call_command("migrate", verbosity=0)

    assert made() == before
    assert [(name, valid) for name, valid, _ in made()] == [
        ("event_node_drain_requested", True),
        ("event_node_state_changed", True),
    ]


def test_waiting_transaction_does_not_block_index_creation(before):
    names, is_refused = [], threading.Event()

    def again_after(seconds):
        is_refused.set()
        time.sleep(seconds)

    def second():
        with prepare.prepare_lock(again_after):
            names.extend(made())
        connection.close()

    with prepare.prepare_lock():
        waits = threading.Thread(target=second, daemon=True)
        waits.start()
        assert is_refused.wait(PATIENCE_S)
        call_command("migrate", verbosity=0)
    waits.join(PATIENCE_S)

    assert sorted(names) == before
