"""Admin pages of leases and power budgets. The pages are read-only: loops write leases, and budgets are changed on the
settings page of their cluster, which records an event."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone

from jobs.admin import formatting
from jobs.admin.record import RecordAdmin
from scheduling.models import GpuSpeed, Lease, PowerBudget


class LeaseHolderFilter(admin.SimpleListFilter):
    title = "held now"
    parameter_name = "held"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("yes", "yes"), ("no", "free")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Lease]) -> QuerySet[Lease]:
        if self.value() == "yes":
            return queryset.filter(expires_at__gt=timezone.now())
        return queryset.filter(expires_at__lte=timezone.now()) if self.value() == "no" else queryset


@admin.register(Lease)
class LeaseAdmin(RecordAdmin):
    list_display = ("name", "holder", "term", "held", "expires")
    ordering = ("name",)
    list_filter = (LeaseHolderFilter,)
    date_hierarchy = "expires_at"
    search_fields = ("name__startswith", "holder__startswith")
    search_help_text = "Start of the loop's or the worker's name."
    fields = ("name", "holder", "term", "held", "expires_long")

    @admin.display(description="held now", boolean=True)
    def held(self, lease: Lease) -> bool:
        return lease.expires_at > timezone.now()

    @admin.display(description="expires")
    def expires(self, lease: Lease) -> str:
        return formatting.relative_time(lease.expires_at)

    @admin.display(description="expires")
    def expires_long(self, lease: Lease) -> str:
        return formatting.exact_and_relative_time(lease.expires_at)


@admin.register(PowerBudget)
class PowerBudgetAdmin(RecordAdmin):
    list_display = ("cluster", "scope", "place", "limit", "created")
    ordering = ("id",)
    list_filter = ("scope",)
    list_select_related = ("cluster",)
    search_fields = ("cluster__name__startswith", "place__startswith")
    search_help_text = "Start of the cluster's name, or of the rack, leaf or pod."
    fields = ("cluster", "scope", "place", "limit", "created")

    @admin.display(description="limit", ordering="limit_w")
    def limit(self, budget: PowerBudget) -> str:
        return f"{budget.limit_w / 1000:,.1f} kW"

    @admin.display(description="created")
    def created(self, budget: PowerBudget) -> str:
        return formatting.relative_time(budget.created_at)


@admin.register(GpuSpeed)
class GpuSpeedAdmin(RecordAdmin):
    list_display = ("cluster", "pattern", "gpu_model", "speed", "created")
    ordering = ("id",)
    list_filter = ("gpu_model",)
    list_select_related = ("cluster",)
    search_fields = ("cluster__name__startswith", "pattern__startswith")
    search_help_text = "Start of the cluster's name, or of the job name."
    fields = ("cluster", "pattern", "gpu_model", "speed", "created")

    @admin.display(description="created")
    def created(self, row: GpuSpeed) -> str:
        return formatting.relative_time(row.created_at)
