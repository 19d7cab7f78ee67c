"""PostgreSQL's extension `vector`, asked for when the tables are made."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError
from django.db import Error

MISSING_EXTENSION = (
    "PostgreSQL lacks the extension vector (pgvector): install the package postgresql-NN-pgvector on its host or take "
    "the image pgvector/pgvector, and if this user may not, let an administrator run CREATE EXTENSION vector."
)


def create_vector_extension(apps: Any, schema_editor: Any) -> None:
    """Similar past failures are compared inside the database; without the extension nothing may start by half."""
    with schema_editor.connection.cursor() as cursor:
        try:
            cursor.execute("CREATE EXTENSION IF NOT EXISTS vector")
        except Error as trouble:
            raise CommandError(f"{MISSING_EXTENSION} ({str(trouble).splitlines()[0]})") from None
