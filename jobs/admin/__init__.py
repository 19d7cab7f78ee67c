"""The Django admin: read-only lists of all rows, and the actions on jobs, nodes, maintenance and tokens.

Rows written by background processes are read-only. Jobs and nodes change only through the actions in `jobs.actions`,
one row at a time and with a reason, so that every change has an event.
"""

from django.contrib import admin

from jobs.admin import (  # noqa: F401 (importing them registers them)
    bulk_action,
    cluster,
    event,
    execution,
    idempotency,
    installation,
    job,
    loop,
    maintenance,
    people,
    telemetry,
    token,
    user,
)

admin.site.site_header = "Acme operations"
admin.site.site_title = "Acme operations"
admin.site.index_title = "Records and permissions"
