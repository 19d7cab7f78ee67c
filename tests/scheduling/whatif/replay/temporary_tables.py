"""Empty temporary tables in place of the real ones, for this connection.

What a virtual cluster writes is invisible to other processes, and after a kill the server drops it with the connection.
Its rows can be committed: in a long transaction that is rolled back, the database cannot remove old versions of rows,
so each query is slower than the one before. Temporary tables also need not wait for the disk. Hooks on commit do not
run, because these rows do not concern other processes.

The tables have the indexes, checks and triggers of the real ones, but no foreign keys, and their exclusion constraints
have other names. Triggers whose functions take a whole row as argument fail: those of checkpoints and anomalies.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from django.db import connection, transaction

# The triggers of the tables, with the names of the temporary ones. Those of foreign keys are internal
SELECT_TRIGGERS = """
SELECT replace(pg_get_triggerdef(oid), ' ON public.', ' ON pg_temp.') FROM pg_trigger
WHERE NOT tgisinternal AND tgrelid = %s::regclass
"""

SELECT_IDS = """
SELECT table_name, column_name FROM information_schema.columns
WHERE is_identity = 'YES' AND table_schema = pg_my_temp_schema()::regnamespace::text
"""


@contextmanager
def temporary_tables() -> Iterator[Callable[[], None]]:
    """Replace all tables. Yields a function that commits what was written so far. Within a transaction of the caller,
    the tables are the real ones, nothing is committed, and everything is rolled back."""
    if connection.in_atomic_block:
        with transaction.atomic():
            yield _commit_nothing
            transaction.set_rollback(True)
        return
    try:
        with transaction.atomic():
            _create_tables()
            yield _commit
            transaction.set_rollback(True)
    finally:
        if connection.is_usable():  # otherwise the server has dropped them
            with connection.cursor() as cursor:
                cursor.execute("DISCARD TEMPORARY")


def _create_tables() -> None:
    tables = connection.introspection.django_table_names(include_views=False)
    with connection.cursor() as cursor:
        for table in tables:
            cursor.execute(f'CREATE TEMPORARY TABLE "{table}" (LIKE public."{table}" INCLUDING ALL)')
        for table in tables:
            cursor.execute(SELECT_TRIGGERS, [f'public."{table}"'])
            for (definition,) in cursor.fetchall():
                cursor.execute(definition)
        cursor.execute(SELECT_IDS)
        for table, column in cursor.fetchall():
            # Caches of this process know rows by id, so no two sets of tables may have the same ids
            first = 1 + secrets.randbelow(2**30)
            cursor.execute(f'ALTER TABLE pg_temp."{table}" ALTER COLUMN "{column}" RESTART WITH {first}')
        cursor.execute("DISCARD PLANS")  # those of functions, which name the real tables


def _commit() -> None:
    """Commit without Django, which would end the block and run the hooks."""
    with connection.wrap_database_errors:
        connection.connection.commit()
    connection.run_on_commit.clear()


def _commit_nothing() -> None:
    """The transaction is not ours."""
