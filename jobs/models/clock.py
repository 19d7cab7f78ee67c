"""Reads the database clock, the only clock that all workers share."""

from __future__ import annotations

from datetime import datetime

from django.db import connection


def now() -> datetime:
    """Return the current time of the database, not the start time of the transaction."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        return cursor.fetchone()[0]
