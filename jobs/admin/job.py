"""Admin of jobs, with the columns of squeue."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import OuterRef, Q, QuerySet, Subquery
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone

from jobs.admin import formatting
from jobs.admin.event import EventInline, events_page_url
from jobs.admin.execution import AttemptInline, CheckpointInline, DependencyInline
from jobs.admin.job_verbs import JOB_ADMIN_ACTIONS
from jobs.admin.record import RecordAdmin
from jobs.admin.verbs import AdminActionsMixin
from jobs.core.display_text import safe_display_text
from jobs.core.lifecycle import FINAL_STATES, LIVE_STATES, State
from jobs.core.request_fields import TEXTS_ON_PAGE
from jobs.core.slurm_notation import format_duration, format_memory
from jobs.models import Attempt, HoldKind, Job


class JobStageFilter(admin.SimpleListFilter):
    title = "stage"
    parameter_name = "stage"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [
            ("unfinished", "waiting or live"),
            ("waiting", "waiting"),
            ("held", "held"),
            ("live", "live"),
            ("finished", "finished"),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        # Positive lists of states, as in the conditions of the partial indexes; a negation could not use them
        conditions = {
            "unfinished": Q(state__in=sorted({State.PENDING, *LIVE_STATES})),
            "waiting": Q(state=State.PENDING),
            "held": Q(state=State.PENDING) & ~Q(hold=HoldKind.NONE),
            "live": Q(state__in=sorted(LIVE_STATES)),
            "finished": Q(state__in=sorted(FINAL_STATES)),
        }
        return queryset.filter(conditions[self.value()]) if self.value() in conditions else queryset


@admin.register(Job)
class JobAdmin(AdminActionsMixin, RecordAdmin):
    verbs = JOB_ADMIN_ACTIONS
    verb_permission = "jobs.change_job"
    touched_columns = ("ST", "job", "name", "user", "team", "time", "nodes", "GPUs")
    list_display = (
        *("jobid", "cluster", "name", "user", "st", "time", "nodes", "nodelist_reason"),
        *("gpu_count", "team", "priority", "submit_time"),
    )
    sortable_by = ("jobid", "priority", "nodes")
    list_select_related = ("cluster", "user", "team")
    list_filter = (JobStageFilter, "state", "kind", "cluster", "team", "preemptible")
    date_hierarchy = "submitted_at"
    # Prefix searches can use an index. Ids are looked up separately (get_search_results)
    search_fields = ("name__startswith", "user__username__startswith")
    search_help_text = "Beginning of a job id, a job name or a user name; or the cluster's job id."
    inlines = (AttemptInline, DependencyInline, CheckpointInline, EventInline)
    fieldsets = (
        (
            None,
            {
                "fields": (
                    "long_st",
                    "waits_for",
                    ("run_and_wait_time", "limit"),
                    ("submit_time_long", "start_time", "end_time"),
                    ("name", "kind"),
                    ("cluster", "team", "user"),
                    ("array", "comment_block"),
                )
            },
        ),
        (
            "Resources",
            {"fields": (("nodes", "gpus_per_node", "gpu_model"), ("cpus_per_node", "memory", "nic_type"))},
        ),
        (
            "Scheduling",
            {
                "fields": (
                    ("priority", "preemptible", "hold"),
                    "preemption_text",
                    ("begin_at", "requeue_count"),
                    ("deadline_at", "deadline_action"),
                )
            },
        ),
        (
            "Command",
            {
                "fields": (
                    *("command_block", *TEXTS_ON_PAGE, "variables"),
                    ("checkpoint_dir", "checkpoint_interval", "checkpoint_signal"),
                    "label_pairs",
                )
            },
        ),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Job]:
        newest = Attempt.objects.filter(job=OuterRef("pk")).order_by("-number")
        return super().get_queryset(request).annotate(last_nodelist=Subquery(newest.values("nodelist")[:1]))

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Job], search_term: str
    ) -> tuple[QuerySet[Job], bool]:
        """Search by id first, using the id indexes. One OR of ids and names would scan all jobs."""
        term = search_term.strip()
        for by_id in (
            Q(public_id__startswith=term),
            Q(pk__in=Attempt.objects.filter(backend_id=term).values("job")),
        ):
            if term and (matches := queryset.filter(by_id)).exists():
                return matches, False
        return super().get_search_results(request, queryset, search_term)

    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """Show the job's events in place of Django's change history."""
        return HttpResponseRedirect(events_page_url("job", object_id))

    def confirmation_cells(self, job: Job) -> tuple[Any, ...]:
        time = formatting.duration(job.elapsed(timezone.now()))
        return (
            formatting.badge(job.badge),
            formatting.link(job),
            job.name,
            job.user,
            job.team,
            time,
            job.nodes,
            job.gpus,
        )

    @admin.display(description="JOBID", ordering="public_id")
    def jobid(self, job: Job) -> str:
        return job.public_id

    @admin.display(description="reason")
    def waits_for(self, job: Job) -> str:
        return f"({job.reason}) {job.why}" if job.reason else job.why or formatting.MISSING_TEXT

    @admin.display(description="requeues")
    def requeue_count(self, job: Job) -> str:
        return f"{job.requeues} of {job.requeue_limit}"

    @admin.display(description="ST", ordering="state")
    def st(self, job: Job) -> str:
        return formatting.badge(job.badge)

    @admin.display(description="state")
    def long_st(self, job: Job) -> str:
        return formatting.long_badge(job.badge)

    @admin.display(description="time")
    def time(self, job: Job) -> str:
        return formatting.duration(job.elapsed(timezone.now()))

    @admin.display(description="time")
    def run_and_wait_time(self, job: Job) -> str:
        run_time, wait_time = job.elapsed(timezone.now()), format_duration(job.waited(timezone.now()))
        if run_time is None:
            return f"waited {wait_time}"
        return f"{format_duration(run_time)}, after waiting {wait_time}"

    @admin.display(description="time limit")
    def limit(self, job: Job) -> str:
        return format_duration(job.time_limit)

    @admin.display(description="nodelist (reason)")
    def nodelist_reason(self, job: Job) -> str:
        if job.state == State.PENDING:
            return formatting.text_with_title(f"({job.reason or 'None'})", job.why)
        return formatting.clip_text(job.last_nodelist or "", 40)

    @admin.display(description="GPUs")
    def gpu_count(self, job: Job) -> float:
        return job.gpus

    @admin.display(description="submitted", ordering="submitted_at")
    def submit_time(self, job: Job) -> str:
        return formatting.relative_time(job.submitted_at)

    @admin.display(description="submitted")
    def submit_time_long(self, job: Job) -> str:
        return formatting.exact_and_relative_time(job.submitted_at)

    @admin.display(description="started")
    def start_time(self, job: Job) -> str:
        return formatting.exact_and_relative_time(job.started_at)

    @admin.display(description="ended")
    def end_time(self, job: Job) -> str:
        code = "" if job.exit_code is None and job.signal is None else f"{job.exit_code or 0}:{job.signal or 0}"
        return formatting.join_texts(formatting.exact_and_relative_time(job.ended_at), code and f"exit {code}")

    @admin.display(description="array")
    def array(self, job: Job) -> str:
        if job.array_index is None:
            return formatting.MISSING_TEXT
        return f"task {job.array_index} of {job.array_id}, {job.array_limit or 'all'} at once"

    @admin.display(description="memory per node")
    def memory(self, job: Job) -> str:
        return format_memory(job.memory_per_node_mb)

    @admin.display(description="command")
    def command_block(self, job: Job) -> str:
        return formatting.block(safe_display_text(job.command))

    @admin.display(description="comment")
    def comment_block(self, job: Job) -> str:
        return formatting.block(safe_display_text(job.comment))

    @admin.display(description="labels")
    def label_pairs(self, job: Job) -> str:
        return formatting.masked_environment(job.labels)

    @admin.display(description="environment")
    def variables(self, job: Job) -> str:
        return formatting.masked_environment(job.environment)
