"""The squashed migrations create the schema of the migrations that they replace, which older databases still need."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from urllib.parse import urlsplit

import psycopg

from acmeweb.common.env import ROOT

# Before the migrations of `jobs` were complete, some databases already had these triggers on its tables
TRIGGERS = ("scheduling", "0017_ledger_change_triggers")
# Without the order of columns, and names that Django derives from former names of tables and columns. One trigger gets
# other brackets and casts, because jobs 0058 creates it again from its own definition
SCHEMA = r"""
SELECT format('column %s.%s %s %s', c.table_name, c.column_name, c.is_nullable, c.column_default),
  format_type(a.atttypid, a.atttypmod) || a.attidentity::text
FROM information_schema.columns c
JOIN pg_attribute a ON a.attrelid = c.table_name::regclass AND a.attname = c.column_name WHERE c.table_schema = 'public'
UNION ALL
SELECT format('constraint %s of %s', CASE WHEN conname !~ '^(jobs|failures|scheduling)_' THEN conname END,
  conrelid::regclass),
  pg_get_constraintdef(oid)
FROM pg_constraint WHERE connamespace = 'public'::regnamespace
UNION ALL
SELECT 'index', regexp_replace(indexdef, 'INDEX \w+_([0-9a-f]{8}(_like|_uniq)?|pkey|key) ', 'INDEX ') FROM pg_indexes
WHERE schemaname = 'public'
UNION ALL
SELECT format('trigger %s of %s', tgname, tgrelid::regclass),
  CASE WHEN tgname = 'scheduling_ledger_job'
  THEN regexp_replace(pg_get_triggerdef(oid), '[()]|::[a-z ]+(\[\])?', '', 'g') ELSE pg_get_triggerdef(oid) END
FROM pg_trigger WHERE NOT tgisinternal
UNION ALL
SELECT 'function', pg_get_functiondef(p.oid) FROM pg_proc p WHERE pronamespace = 'public'::regnamespace
AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = p.oid AND d.deptype = 'e')
UNION ALL
SELECT 'sequence', sequencename FROM pg_sequences WHERE sequencename !~ '_id_seq$'
ORDER BY 1, 2
"""


# If there are arguments, they name the app and the migration up to which the squashed migrations are not used
MIGRATE = """
import django, sys
django.setup()
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader

for targets in ([tuple(sys.argv[1:])], []) if sys.argv[1:] else ([],):
    executor = MigrationExecutor(connection)
    executor.loader = MigrationLoader(connection, replace_migrations=not targets)
    executor.migrate(targets or executor.loader.graph.leaf_nodes())
"""


@contextmanager
def new_database(name):
    """The URL of a new database, which is dropped afterwards."""
    url = os.environ["DATABASE_URL"]
    with psycopg.connect(url, autocommit=True) as session:
        session.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        session.execute(f"CREATE DATABASE {name}")
        try:
            yield urlsplit(url)._replace(path=f"/{name}").geturl()
        finally:
            session.execute(f"DROP DATABASE {name} WITH (FORCE)")


def migrate(url, *first):
    environment = os.environ | {"DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "acmeweb.settings"}
    subprocess.run([sys.executable, "-c", MIGRATE, *first], cwd=ROOT, env=environment, check=True)


def schema(url):
    with psycopg.connect(url) as session:
        return session.execute(SCHEMA).fetchall()


def test_squashed_migrations_create_the_same_schema():
    with new_database("squashed") as squashed, new_database("one_by_one") as one_by_one:
        migrate(squashed)
        migrate(one_by_one, *TRIGGERS)

        once, by_steps = schema(squashed), schema(one_by_one)

    assert [row for row in by_steps if row not in once] == []
    assert sorted(once) == sorted(by_steps)
