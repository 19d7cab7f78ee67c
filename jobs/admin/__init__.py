"""The console of last resort: every row of the record, and the verbs that people may use on it.

Rows that loops write are only shown. What changes a job or a node goes through the same verbs as everywhere else, one
row at a time, with a reason, so an Event tells of it.
"""

from django.contrib import admin

from jobs.admin import (  # noqa: F401 (importing them registers them)
    cluster,
    event,
    execution,
    idempotency,
    installation,
    job,
    maintenance,
    people,
    telemetry,
    token,
    user,
)

admin.site.site_header = "Acme operations"
admin.site.site_title = "Acme operations"
admin.site.index_title = "The record, and who may change it"
