"""Migrations: concurrent index creation, and databases that are too old."""

from __future__ import annotations

import threading
import time

import pytest
from django.core.management.base import CommandError
from django.db import connection
from django.db.migrations.loader import MigrationLoader

from acmeweb.services import prepare
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.django_db(transaction=True)
BEFORE, MIGRATION = ("jobs", "0070_bulk_actions"), ("jobs", "0071_waiting_limits")
SCHEMA = "before_0071"
INDEXES = """
SELECT relname, indisvalid, pg_get_expr(indpred, indrelid) IS NOT NULL FROM pg_index
JOIN pg_class ON pg_class.oid = indexrelid WHERE relnamespace = %s::regnamespace
"""
BOTH = [("job_waiting_of_team", True, True), ("job_waiting_of_user", True, True)]


def execute(statement, *values):
    with connection.cursor() as cursor:
        cursor.execute(statement, values or None)
        return sorted(cursor.fetchall()) if cursor.description else []


def indexes():
    return execute(INDEXES, SCHEMA)


def migrate():
    loader = MigrationLoader(connection)
    with connection.schema_editor(atomic=False) as editor:
        loader.get_migration(*MIGRATION).apply(loader.project_state(BEFORE), editor)


@pytest.fixture(autouse=True)
def jobs_before_the_migration():
    """A schema with the columns that the migration indexes, which is quicker than unapplying all later migrations."""
    execute(f"CREATE SCHEMA {SCHEMA}")
    execute(f"CREATE TABLE {SCHEMA}.jobs_job (id bigint, user_id bigint, team_id bigint, state text)")
    execute(f"SET search_path TO {SCHEMA}")
    yield
    execute("RESET search_path")
    execute(f"DROP SCHEMA {SCHEMA} CASCADE")


def test_index_left_invalid_by_an_interruption_is_rebuilt():
    execute("CREATE INDEX job_waiting_of_user ON jobs_job (id)")

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


def test_database_of_deleted_migrations_is_refused():
    prepare.refuse_old_database(set())
    prepare.refuse_old_database({"0001_squashed_0069_runs_of_name", "0070_bulk_actions"})

    with pytest.raises(CommandError, match=r"too old .* Upgrade it first"):
        prepare.refuse_old_database({"0001_initial", "0002_guards"})
