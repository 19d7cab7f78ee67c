"""The database's clock: the only one that all workers share."""

from __future__ import annotations

from datetime import datetime

from django.db import connection


def now() -> datetime:
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        return cursor.fetchone()[0]
