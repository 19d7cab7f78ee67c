"""Admin pages of the loops and their errors. Processes write them; the page Health shows what they mean."""

from __future__ import annotations

from django.contrib import admin

from jobs.admin import formatting
from jobs.admin.record import RecordAdmin
from jobs.models import Loop, LoopFailure


@admin.register(Loop)
class LoopAdmin(RecordAdmin):
    list_display = ("key", "holder", "due", "finished", "took", "delay", "error")
    ordering = ("key",)
    list_select_related = ("cluster",)
    search_fields = ("key__startswith", "holder__startswith")
    search_help_text = "Start of the loop's name, or of its last process: HOST:PID."
    fields = ("key", "holder", "term", "due_at", "requested_at", "began_at", "finished_at", "failed_at", "last_error")

    @admin.display(description="due", ordering="due_at")
    def due(self, loop: Loop) -> str:
        return formatting.relative_time(loop.due_at)

    @admin.display(description="last run without an error")
    def finished(self, loop: Loop) -> str:
        return formatting.relative_time(loop.finished_at)

    @admin.display(description="error of the last run")
    def error(self, loop: Loop) -> str:
        return formatting.clip_text(loop.last_error)


@admin.register(LoopFailure)
class LoopFailureAdmin(RecordAdmin):
    list_display = ("loop", "signature", "count", "first", "last")
    ordering = ("-last_at",)
    list_select_related = ("loop",)
    search_fields = ("loop__key__startswith", "signature__startswith")
    search_help_text = "Start of the loop's name, or of the error's type."
    fields = ("loop", "signature", "message", "count", "first", "last")

    @admin.display(description="first")
    def first(self, row: LoopFailure) -> str:
        return formatting.exact_and_relative_time(row.first_at)

    @admin.display(description="last")
    def last(self, row: LoopFailure) -> str:
        return formatting.exact_and_relative_time(row.last_at)
