"""Admin of maintenance: read and cancel. The queue page schedules it and previews its effect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from jobs.actions import maintenance as maintenance_actions
from jobs.admin import formatting
from jobs.admin.record import RecordAdmin
from jobs.admin.verbs import AdminAction, AdminActionInput, AdminActionsMixin, count_text
from jobs.models import Maintenance, Node, clock


def _cancel_maintenance(window: Maintenance, values: AdminActionInput) -> None:
    maintenance_actions.cancel(window, author=values.author, why=values.why, now=clock.now())


def _cancel_effect(windows: Sequence[Maintenance]) -> str:
    closed = Node.objects.filter(maintenance__in=windows).count()
    nodes = count_text(closed, "node", "accept")
    return f"cancel: {count_text(len(windows), 'maintenance window')}; {nodes} jobs again after the next turn."


CANCEL_ACTION = AdminAction(
    name="cancel",
    label="Cancel",
    act=_cancel_maintenance,
    effect=_cancel_effect,
    fits=lambda window: window.phase(clock.now()) in ("planned", "going on"),
    needs_reason=True,
)


@admin.register(Maintenance)
class MaintenanceAdmin(AdminActionsMixin, RecordAdmin):
    verbs = (CANCEL_ACTION,)
    verb_permission = "jobs.operate_cluster"
    touched_columns = ("maintenance", "cluster", "phase", "begins", "ends")
    list_display = ("name", "cluster", "phase", "begins", "ends", "mode", "by")
    list_select_related = ("cluster",)
    list_filter = ("cluster", "mode")
    search_fields = ("name__startswith",)
    search_help_text = "Beginning of the name."
    fields = (
        *("name", "cluster", "reason", "phase", "begins", "ends", "mode", "lead_time", "which"),
        *("by", "created_time", "begin_time", "cancel_time", "close_time"),
    )
    readonly_fields = fields

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.may_use_actions(request) or super().has_view_permission(request, obj)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Maintenance]:
        return super().get_queryset(request).select_related("cluster")

    def confirmation_cells(self, window: Maintenance) -> tuple[Any, ...]:
        return (formatting.link(window), window.cluster, self.phase(window), self.begins(window), self.ends(window))

    @admin.display(description="phase")
    def phase(self, window: Maintenance) -> str:
        return window.phase(clock.now())

    @admin.display(description="begins")
    def begins(self, window: Maintenance) -> str:
        return formatting.exact_and_relative_time(window.start_at)

    @admin.display(description="ends")
    def ends(self, window: Maintenance) -> str:
        return formatting.exact_and_relative_time(window.end_at)

    @admin.display(description="lead time")
    def lead_time(self, window: Maintenance) -> str:
        return formatting.duration(window.lead_time)

    @admin.display(description="nodes")
    def which(self, window: Maintenance) -> str:
        if window.whole_cluster:
            return "the whole cluster"
        names = list(window.nodes.order_by("name").values_list("name", flat=True)[:101])
        return ", ".join(names[:100]) + (" …" if len(names) > 100 else "")

    @admin.display(description="scheduled")
    def created_time(self, window: Maintenance) -> str:
        return formatting.exact_and_relative_time(window.created_at)

    @admin.display(description="first node closed")
    def begin_time(self, window: Maintenance) -> str:
        return formatting.exact_and_relative_time(window.begun_at)

    @admin.display(description="cancelled")
    def cancel_time(self, window: Maintenance) -> str:
        return formatting.exact_and_relative_time(window.cancelled_at)

    @admin.display(description="nodes opened")
    def close_time(self, window: Maintenance) -> str:
        return formatting.exact_and_relative_time(window.closed_at)
