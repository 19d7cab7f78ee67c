"""What the programs' door remembers of requests. The answers are shown without their bodies: they may be long."""

from __future__ import annotations

from django.contrib import admin

from jobs.admin import looks
from jobs.admin.record import RecordAdmin
from jobs.models import IdempotencyKey


@admin.register(IdempotencyKey)
class IdempotencyKeyAdmin(RecordAdmin):
    list_display = ("made", "key", "user", "status")
    list_select_related = ("user",)
    list_filter = ("status",)
    date_hierarchy = "created_at"
    search_fields = ("key__exact", "user__username__exact")
    search_help_text = "A whole key, or a user's name."
    fields = ("made", "key", "user", "status", "digest")

    @admin.display(description="at", ordering="created_at")
    def made(self, row: IdempotencyKey) -> str:
        return looks.when(row.created_at)
