"""Read-only admin of events and of the commands queued for clusters."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.http import urlencode

from jobs.admin import formatting
from jobs.admin.record import IsOpenFilter, RecordAdmin, RecordInline
from jobs.models import ClusterCommand, Event, Job, Node


class EventInline(RecordInline):
    model = Event
    fields = readonly_fields = ("event_time", "opens", "by", "why")
    verbose_name_plural = "latest events"

    @admin.display(description="at")
    def event_time(self, event: Event) -> str:
        return formatting.relative_time(event.at)


class EventsLinkMixin(admin.ModelAdmin):
    """Adds a button that opens the events of a row."""

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        extra = {"events_url": events_page_url(self.opts.model_name, object_id)} | (extra_context or {})
        return super().change_view(request, object_id, form_url, extra)


def events_page_url(model_name: str, object_id: str) -> str:
    return f"{reverse('admin:jobs_event_changelist')}?{urlencode({f'{model_name}__id__exact': object_id})}"


class EventSubjectFilter(admin.SimpleListFilter):
    title = "subject"
    parameter_name = "about"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("job", "jobs"), ("node", "nodes")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Event]) -> QuerySet[Event]:
        if self.value() not in ("job", "node"):
            return queryset
        return queryset.filter(**{f"{self.value()}__isnull": False})


class EventAuthorFilter(admin.SimpleListFilter):
    title = "author"
    parameter_name = "done_by"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("person", "a user"), ("loop", "a background process")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Event]) -> QuerySet[Event]:
        if self.value() not in ("person", "loop"):
            return queryset
        return queryset.filter(user__isnull=self.value() == "loop")


@admin.register(Event)
class EventAdmin(RecordAdmin):
    list_display = ("event_time", "type", "subject", "cluster", "transition", "by", "short_why", "request")
    list_select_related = ("cluster", "job", "node")
    list_filter = (EventSubjectFilter, EventAuthorFilter, "cluster")
    date_hierarchy = "at"
    search_fields = ("request_id__exact", "by__exact", "type__startswith")
    search_help_text = "Beginning of a job id or of an event name; or a node, a user name or a request id."
    fields = (
        *("event_time_long", "type", "subject", "attempt", "cluster", "from_state", "to_state", "why"),
        *("by", "user", "source", "request_id", "details"),
    )

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Event], search_term: str
    ) -> tuple[QuerySet[Event], bool]:
        """Search by job or node first, because only these columns have an index."""
        term = search_term.strip()
        if term:
            jobs = list(Job.objects.filter(public_id__startswith=term).values_list("pk", flat=True)[:100])
            nodes = list(Node.objects.filter(name=term).values_list("pk", flat=True))
            if jobs or nodes:
                return queryset.filter(Q(job__in=jobs) | Q(node__in=nodes)), False
        return super().get_search_results(request, queryset, search_term)

    @admin.display(description="at")
    def event_time(self, event: Event) -> str:
        return formatting.relative_time(event.at)

    @admin.display(description="at")
    def event_time_long(self, event: Event) -> str:
        return formatting.exact_and_relative_time(event.at)

    @admin.display(description="job or node")
    def subject(self, event: Event) -> str:
        return formatting.link(event.job or event.node)

    @admin.display(description="state change")
    def transition(self, event: Event) -> str:
        return f"{event.from_state} → {event.to_state}".strip() if event.to_state else formatting.MISSING_TEXT

    @admin.display(description="request")
    def request(self, event: Event) -> str:
        return formatting.clip_text(event.request_id, 9)

    @admin.display(description="why")
    def short_why(self, event: Event) -> str:
        return formatting.clip_text(event.why)

    @admin.display(description="detail")
    def details(self, event: Event) -> str:
        text = json.dumps(event.detail, indent=2, sort_keys=True)
        return formatting.block(text) if event.detail else formatting.MISSING_TEXT


class PendingCommandFilter(IsOpenFilter):
    """Filters commands that are not yet sent to the cluster."""

    title = "open"
    parameter_name = "open"
    ends = "done_at"


@admin.register(ClusterCommand)
class ClusterCommandAdmin(RecordAdmin):
    list_display = ("id", "kind", "subject", "cluster", "created_time", "due", "tries", "done_time", "short_outcome")
    list_select_related = ("cluster", "attempt", "node")
    list_filter = (PendingCommandFilter, "kind", "cluster")
    date_hierarchy = "created_at"
    search_fields = ("attempt__key__startswith", "node__name__exact")
    search_help_text = "Beginning of a job id, or the name of a node."

    @admin.display(description="attempt or node")
    def subject(self, command: ClusterCommand) -> str:
        return formatting.link(command.attempt or command.node)

    @admin.display(description="created")
    def created_time(self, command: ClusterCommand) -> str:
        return formatting.relative_time(command.created_at)

    @admin.display(description="not before")
    def due(self, command: ClusterCommand) -> str:
        return formatting.MISSING_TEXT if command.done_at else formatting.relative_time(command.due_at)

    @admin.display(description="done")
    def done_time(self, command: ClusterCommand) -> str:
        return formatting.relative_time(command.done_at)

    @admin.display(description="outcome")
    def short_outcome(self, command: ClusterCommand) -> str:
        return formatting.clip_text(command.outcome)
