"""Admin of this installation's id on its clusters. Read-only, because running jobs carry the id."""

from __future__ import annotations

from django.contrib import admin

from jobs.admin import formatting
from jobs.admin.record import RecordAdmin
from jobs.models import Installation


@admin.register(Installation)
class InstallationAdmin(RecordAdmin):
    list_display = ("id_on_clusters", "created_time")
    ordering = ("created_at",)
    search_fields = ("id_on_clusters__exact",)
    search_help_text = "A complete id."
    fields = ("id_on_clusters", "created_time")

    @admin.display(description="since", ordering="created_at")
    def created_time(self, row: Installation) -> str:
        return formatting.relative_time(row.created_at)
