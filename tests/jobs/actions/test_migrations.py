"""Concurrent index creation in migrations: after an interruption, and next to a waiting transaction."""

from __future__ import annotations

import threading
import time

import pytest
from django.db import connection
from django.db.migrations.loader import MigrationLoader

from acmeweb.services import prepare
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.django_db(transaction=True)
BEFORE, MIGRATION = ("jobs", "0027_progress_read_from_logs"), ("jobs", "0028_events_of_nodes")
SCHEMA = "before_0028"
INDEXES = """
SELECT relname, indisvalid, pg_get_expr(indpred, indrelid) IS NOT NULL FROM pg_index
JOIN pg_class ON pg_class.oid = indexrelid WHERE relnamespace = %s::regnamespace
"""
BOTH = [("event_node_asked", True, True), ("event_node_moved", True, True)]


def execute(statement, *values):
    with connection.cursor() as cursor:
        cursor.execute(statement, values or None)
        return sorted(cursor.fetchall()) if cursor.description else []


def indexes():
    return execute(INDEXES, SCHEMA)


def migrate():
    loader = MigrationLoader(connection, replace_migrations=False)
    with connection.schema_editor(atomic=False) as editor:
        loader.get_migration(*MIGRATION).apply(loader.project_state(BEFORE), editor)


@pytest.fixture(autouse=True)
def events_before_the_migration():
    """A schema with the columns that the migration indexes, which is quicker than unapplying all later migrations."""
    execute(f"CREATE SCHEMA {SCHEMA}")
    execute(f"CREATE TABLE {SCHEMA}.jobs_event (id bigint, node_id bigint, what text, at timestamptz)")
    execute(f"SET search_path TO {SCHEMA}")
    yield
    execute("RESET search_path")
    execute(f"DROP SCHEMA {SCHEMA} CASCADE")


def test_index_left_invalid_by_an_interruption_is_rebuilt():
    execute("CREATE INDEX event_node_asked ON jobs_event (id)")

    migrate()

    assert indexes() == BOTH


def test_waiting_transaction_does_not_block_index_creation():
    seen, is_refused = [], threading.Event()

    def again_after(seconds):
        is_refused.set()
        time.sleep(seconds)

    def second():
        with prepare.prepare_lock(again_after):
            seen.extend(indexes())
        connection.close()

    with prepare.prepare_lock():
        waits = threading.Thread(target=second, daemon=True)
        waits.start()
        assert is_refused.wait(PATIENCE_S)
        migrate()
    waits.join(PATIENCE_S)

    assert seen == BOTH
