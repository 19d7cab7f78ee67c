"""Which Acme this is on its clusters. Shown only: running jobs carry the id."""

from __future__ import annotations

from django.contrib import admin

from jobs.admin import formatting
from jobs.admin.record import RecordAdmin
from jobs.models import Installation


@admin.register(Installation)
class InstallationAdmin(RecordAdmin):
    list_display = ("id_on_clusters", "made")
    ordering = ("created_at",)
    search_fields = ("id_on_clusters__exact",)
    search_help_text = "A whole id."
    fields = ("id_on_clusters", "made")

    @admin.display(description="since", ordering="created_at")
    def made(self, row: Installation) -> str:
        return formatting.relative_time(row.created_at)
