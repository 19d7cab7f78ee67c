"""What the programs' door remembers of requests. The answers are shown without their bodies: they may be long."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from jobs.admin import formatting
from jobs.admin.record import RecordAdmin
from jobs.models import IdempotencyKey, LoginAttempts


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
        return formatting.relative_time(row.created_at)


@admin.register(LoginAttempts)
class LoginAttemptsAdmin(RecordAdmin):
    """Counters by hash: neither names nor addresses are kept. A superuser may delete one, so its limit starts again."""

    list_display = ("began", "count", "key")
    ordering = ("-since",)
    date_hierarchy = "since"
    search_fields = ("key__exact",)
    search_help_text = "A whole hash."
    fields = ("began", "count", "key")

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.is_superuser

    @admin.display(description="since", ordering="since")
    def began(self, row: LoginAttempts) -> str:
        return formatting.relative_time(row.since)
