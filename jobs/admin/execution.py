"""Admin of rows that belong to a job: attempts, GPU allocations, checkpoints and dependencies."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone

from jobs.admin import formatting
from jobs.admin.record import IsOpenFilter, RecordAdmin, RecordInline
from jobs.models import Allocation, Attempt, Checkpoint, Dependency


def _attempt_duration(attempt: Attempt) -> timedelta | None:
    start = attempt.confirmed_at
    return (attempt.ended_at or timezone.now()) - start if start else None


# --- inlines of the job page


class AttemptInline(RecordInline):
    model = Attempt
    fields = readonly_fields = ("opens", "badge", "backend_id", "nodelist", "began", "run_time", "exit_text", "reason")
    verbose_name_plural = "attempts, newest first"

    @admin.display(description="ST")
    def badge(self, attempt: Attempt) -> str:
        return formatting.badge(attempt.badge)

    @admin.display(description="started")
    def began(self, attempt: Attempt) -> str:
        return formatting.relative_time(attempt.confirmed_at or attempt.promised_at)

    @admin.display(description="time")
    def run_time(self, attempt: Attempt) -> str:
        return formatting.duration(_attempt_duration(attempt))


class DependencyInline(RecordInline):
    model = Dependency
    fk_name = "job"
    fields = readonly_fields = ("opens", "on", "on_state")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Dependency]:
        return super().get_queryset(request).select_related("on")

    @admin.display(description="ST")
    def on_state(self, dependency: Dependency) -> str:
        return formatting.badge(dependency.on.badge)


class CheckpointInline(RecordInline):
    model = Checkpoint
    ordering = ("-step",)
    fields = readonly_fields = ("opens", "path", "saved_time", "durable", "verdict", "verdict_why")
    verbose_name_plural = "newest checkpoints"

    @admin.display(description="saved")
    def saved_time(self, checkpoint: Checkpoint) -> str:
        return formatting.relative_time(checkpoint.saved_at)

    @admin.display(description="durable")
    def durable(self, checkpoint: Checkpoint) -> str:
        return formatting.relative_time(checkpoint.durable_at)


# --- own pages


class HeldAllocationFilter(IsOpenFilter):
    ends = "released_at"


@admin.register(Attempt)
class AttemptAdmin(RecordAdmin):
    list_display = (
        "key",
        "cluster",
        "name",
        "st",
        "time",
        "backend_id",
        "nodes",
        "exit_text",
        "promise_time",
        "stop_state",
    )
    list_select_related = ("job__cluster",)
    list_filter = (IsOpenFilter, "state", "job__cluster")
    date_hierarchy = "promised_at"
    search_fields = ("key__startswith", "backend_id__startswith")
    search_help_text = "Beginning of a job id or of the cluster's job id."

    @admin.display(description="cluster")
    def cluster(self, attempt: Attempt) -> str:
        return attempt.job.cluster.name

    @admin.display(description="name")
    def name(self, attempt: Attempt) -> str:
        return attempt.job.name

    @admin.display(description="ST")
    def st(self, attempt: Attempt) -> str:
        return formatting.badge(attempt.badge)

    @admin.display(description="time")
    def time(self, attempt: Attempt) -> str:
        return formatting.duration(_attempt_duration(attempt))

    @admin.display(description="nodelist")
    def nodes(self, attempt: Attempt) -> str:
        return formatting.clip_text(attempt.nodelist, 40)

    @admin.display(description="assigned")
    def promise_time(self, attempt: Attempt) -> str:
        return formatting.relative_time(attempt.promised_at)


@admin.register(Allocation)
class AllocationAdmin(RecordAdmin):
    list_display = ("id", "attempt", "node", "cluster", "gpu", "share", "hold_time", "release_time")
    list_select_related = ("attempt", "node__cluster")
    list_filter = (HeldAllocationFilter, "node__cluster")
    search_fields = ("attempt__key__startswith", "node__name__exact")
    search_help_text = "Beginning of a job id, or the name of a node."

    @admin.display(description="cluster")
    def cluster(self, allocation: Allocation) -> str:
        return allocation.node.cluster.name

    @admin.display(description="held since")
    def hold_time(self, allocation: Allocation) -> str:
        return formatting.relative_time(allocation.held_at)

    @admin.display(description="released")
    def release_time(self, allocation: Allocation) -> str:
        return formatting.relative_time(allocation.released_at)


class DurableCheckpointFilter(IsOpenFilter):
    """Filters checkpoints by whether they reached remote storage. Others may be lost when their node fails."""

    title = "durable"
    parameter_name = "durable"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() not in ("yes", "no"):
            return queryset
        return queryset.filter(durable_at__isnull=self.value() == "no")


@admin.register(Checkpoint)
class CheckpointAdmin(RecordAdmin):
    list_display = ("job", "step", "path", "saved_time", "durable", "verdict", "verdict_why")
    list_display_links = ("step",)
    list_select_related = ("job",)
    list_filter = ("verdict", DurableCheckpointFilter)
    date_hierarchy = "saved_at"
    search_fields = ("job__public_id__startswith", "path__startswith")
    search_help_text = "Beginning of a job id or of a path."

    @admin.display(description="saved")
    def saved_time(self, checkpoint: Checkpoint) -> str:
        return formatting.relative_time(checkpoint.saved_at)

    @admin.display(description="durable")
    def durable(self, checkpoint: Checkpoint) -> str:
        return formatting.relative_time(checkpoint.durable_at)


@admin.register(Dependency)
class DependencyAdmin(RecordAdmin):
    list_display = ("job", "st", "after", "on", "on_st")
    list_select_related = ("job", "on")
    list_filter = ("after",)
    search_fields = ("job__public_id__startswith", "on__public_id__startswith")
    search_help_text = "Beginning of the id of either job."

    @admin.display(description="ST")
    def st(self, dependency: Dependency) -> str:
        return formatting.badge(dependency.job.badge)

    @admin.display(description="ST of dependency")
    def on_st(self, dependency: Dependency) -> str:
        return formatting.badge(dependency.on.badge)
