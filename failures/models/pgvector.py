"""Creates the PostgreSQL extension `vector`, used by the first migration."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError
from django.db import Error

MISSING_EXTENSION = (
    "The PostgreSQL extension vector (pgvector) is missing. Install the package postgresql-NN-pgvector on the database "
    "host or use the image pgvector/pgvector. If this user cannot create it, ask an administrator to run "
    "CREATE EXTENSION vector."
)


def create_vector_extension(apps: Any, schema_editor: Any) -> None:
    """Create the extension. Raises CommandError with instructions, because the tables cannot be created without it."""
    with schema_editor.connection.cursor() as cursor:
        try:
            cursor.execute("CREATE EXTENSION IF NOT EXISTS vector")
        except Error as error:
            raise CommandError(f"{MISSING_EXTENSION} ({str(error).splitlines()[0]})") from None
