"""Admin of stored idempotency keys and of login attempt counters. Stored response bodies are not shown."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from jobs.admin import formatting
from jobs.admin.record import RecordAdmin
from jobs.models import IdempotencyKey, LoginAttempts


@admin.register(IdempotencyKey)
class IdempotencyKeyAdmin(RecordAdmin):
    list_display = ("created_time", "key", "user", "status")
    list_select_related = ("user",)
    list_filter = ("status",)
    date_hierarchy = "created_at"
    search_fields = ("key__exact", "user__username__exact")
    search_help_text = "A complete key, or a user name."
    fields = ("created_time", "key", "user", "status", "digest")

    @admin.display(description="at", ordering="created_at")
    def created_time(self, row: IdempotencyKey) -> str:
        return formatting.relative_time(row.created_at)


@admin.register(LoginAttempts)
class LoginAttemptsAdmin(RecordAdmin):
    """Counters keyed by hash, without names or addresses. A superuser can delete one to reset its limit."""

    list_display = ("window_start", "count", "key")
    ordering = ("-since",)
    date_hierarchy = "since"
    search_fields = ("key__exact",)
    search_help_text = "A complete hash."
    fields = ("window_start", "count", "key")

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.is_superuser

    @admin.display(description="since", ordering="since")
    def window_start(self, row: LoginAttempts) -> str:
        return formatting.relative_time(row.since)
