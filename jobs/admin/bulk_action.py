"""Read-only admin of actions on many jobs in the background."""

from __future__ import annotations

from django.contrib import admin

from jobs.admin import formatting
from jobs.admin.record import IsOpenFilter, RecordAdmin
from jobs.models import BulkAction


@admin.register(BulkAction)
class BulkActionAdmin(RecordAdmin):
    list_display = ("created_time", "action", "user", "matched", "position", "refused", "end_time", "error")
    list_select_related = ("user",)
    list_filter = (IsOpenFilter, "action")
    date_hierarchy = "created_at"
    search_fields = ("request_id__exact", "user__username__exact")
    search_help_text = "A request id, or a user name."
    fields = ("created_time", "action", "user", "source", "request_id", "why", "priority", *list_display[3:], "errors")

    @admin.display(description="at", ordering="created_at")
    def created_time(self, row: BulkAction) -> str:
        return formatting.relative_time(row.created_at)

    @admin.display(description="ended")
    def end_time(self, row: BulkAction) -> str:
        return formatting.relative_time(row.ended_at)
