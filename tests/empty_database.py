"""Empties the database after a test that commits.

Django truncates every table and creates the content types and permissions again, which takes most of a second. Most
tests fill a few tables with a few rows, which are deleted in a few milliseconds.
"""

from __future__ import annotations

from django.db import connection, transaction
from django.test import TransactionTestCase

KEPT = ("django_content_type", "auth_permission")  # the tables that `migrate` fills


def delete_rows() -> None:
    """Delete all rows, in any order and without triggers, which takes a superuser: no foreign key is checked."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(_filled_tables_query())
        if filled := [table for (table,) in cursor.fetchall()]:
            cursor.execute("SET LOCAL session_replication_role = replica")
            cursor.execute("; ".join(f"DELETE FROM {table}" for table in filled))


def _filled_tables_query() -> str:
    tables = connection.introspection.django_table_names(only_existing=True, include_views=False)
    names = [connection.ops.quote_name(table) for table in tables if table not in KEPT]
    return " UNION ALL ".join(f"SELECT '{name}' WHERE EXISTS (SELECT FROM {name})" for name in names)


def use_delete_rows() -> None:
    """Make Django's tests, and so those of pytest-django, empty the database like this."""
    TransactionTestCase._fixture_teardown = lambda self: delete_rows()
