"""What migrations that build indexes concurrently share. Not a migration: Django skips names with an underscore."""

from django.db import migrations


def drop_invalid(name: str) -> migrations.RunSQL:
    """Drop the invalid index of that name that an interrupted build leaves."""
    return migrations.RunSQL(f"DROP INDEX CONCURRENTLY IF EXISTS {name}", migrations.RunSQL.noop)
