"""Admin of clusters and nodes. Configuration and topology are editable, reported values are read-only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.admin.utils import flatten_fieldsets
from django.db.models import Count, IntegerField, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import HttpRequest

from jobs.actions import nodes as node_actions
from jobs.admin import formatting
from jobs.admin.event import EventInline, EventsLinkMixin
from jobs.admin.record import AcmeAdmin, CappedPaginator, ProtectedHistoryMixin
from jobs.admin.verbs import AdminAction, AdminActionInput, AdminActionsMixin, count_text
from jobs.core.slurm_notation import format_memory
from jobs.models import Allocation, Attempt, Cluster, ClusterMode, DrainMode, Node, clock
from jobs.models.cluster import CONNECTION_FIELDS, TOKEN_FIELDS, token_paths
from jobs.queries import drain_impact


class ClusterAdminForm(forms.ModelForm):
    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        others = Cluster.objects.exclude(pk=self.instance.pk)
        owners = others.with_tokens_for_another_address(token_paths(cleaned), cleaned.get("address", ""))
        if {"address", *TOKEN_FIELDS}.intersection(self.changed_data):
            for name, owner in owners.items():
                self.add_error(name, owner.token_address_warning)
        self._refuse_saved_token_elsewhere(cleaned)
        return cleaned

    def _refuse_saved_token_elsewhere(self, cleaned: dict[str, Any]) -> None:
        """Refuse an address change that would send the saved token elsewhere; only the settings page can confirm it."""
        itself = Cluster.objects.filter(pk=self.instance.pk)
        if itself.with_tokens_for_another_address(token_paths(cleaned), cleaned.get("address", "")):
            page = f"/settings/clusters/of/{self.instance.name}/"
            self.add_error(
                "address", f"The saved token would be sent to the new address. Change the address at {page} instead."
            )


@admin.register(Cluster)
class ClusterAdmin(EventsLinkMixin, ProtectedHistoryMixin, AcmeAdmin):
    form = ClusterAdminForm
    history = ("jobs", "events", "commands", "nodes")
    list_display = (
        "name",
        "title",
        "mode",
        "policy",
        "node_count",
        "closed_count",
        "product",
        "last_response",
        "short_trouble",
    )
    list_filter = ("mode", "policy")
    search_fields = ("name__startswith", "title")
    search_help_text = "Beginning of the name, or any part of the title."
    date_hierarchy = "created_at"
    readonly_fields = (
        "product",
        "api",
        "last_response_long",
        "last_error",
        "unreadable_text",
        "created_time",
    )
    fieldsets = (
        (None, {"fields": ("name", "title", "mode", "policy", "policy_settings", "placement")}),
        (
            "Connection",
            {"fields": (*CONNECTION_FIELDS, "checkpoint_root")},
        ),
        ("Jobs and nodes", {"fields": ("checkpoint_signal", "test_command")}),
        (
            "Protection from preemption",
            {
                "fields": (
                    ("min_exempt_minutes", "max_exempt_minutes"),
                    "checkpoint_clause",
                    ("min_preemptions_per_day", "max_preemptions_per_day"),
                )
            },
        ),
        ("Deadlines", {"fields": (("unlikely_deadlines", "min_deadline_percent"),)}),
        (
            "Status",
            {
                "fields": (
                    "product",
                    "api",
                    "last_response_long",
                    "last_error",
                    "unreadable_text",
                    "created_time",
                )
            },
        ),
    )

    # Changed on the queue page, which records an event
    decided_by = ("policy", "policy_settings", "placement")

    def get_readonly_fields(self, request: HttpRequest, obj: Cluster | None = None) -> tuple[str, ...]:
        decided = self.decided_by if obj else ()
        set_by_acme = CONNECTION_FIELDS if obj and obj.is_bundled else ()
        return (*self.readonly_fields, *decided, *set_by_acme)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Cluster]:
        closed = Q(nodes__in=Node.objects.not_usable().values("pk"))
        return (
            super().get_queryset(request).annotate(node_total=Count("nodes"), node_closed=Count("nodes", filter=closed))
        )

    @admin.display(description="nodes")
    def node_count(self, cluster: Cluster) -> int:
        return cluster.node_total

    @admin.display(description="closed nodes")
    def closed_count(self, cluster: Cluster) -> int:
        return cluster.node_closed

    @admin.display(description="last response", ordering="last_contact_at")
    def last_response(self, cluster: Cluster) -> str:
        return formatting.relative_time(cluster.last_contact_at)

    @admin.display(description="problem")
    def short_trouble(self, cluster: Cluster) -> str:
        return formatting.clip_text(cluster.problem)

    @admin.display(description="last response")
    def last_response_long(self, cluster: Cluster) -> str:
        return formatting.exact_and_relative_time(cluster.last_contact_at)

    @admin.display(description="created")
    def created_time(self, cluster: Cluster) -> str:
        return formatting.exact_and_relative_time(cluster.created_at)


# --- nodes


def _running_on(nodes: Sequence[Node]) -> int:
    live = Attempt.objects.filter(ended_at__isnull=True, allocations__released_at__isnull=True)
    return live.filter(allocations__node__in=nodes).distinct().count()


def _drain_effect(nodes: Sequence[Node]) -> str:
    running = count_text(_running_on(nodes), "running job", "finish")
    return f"drain: no new jobs start on {count_text(len(nodes), 'node')}; {running}."


def _drain_now_effect(nodes: Sequence[Node]) -> str:
    now = clock.now()
    affected = drain_impact.affected_jobs(nodes, now)
    return f"drain now: {drain_impact.drain_impact_text(affected, DrainMode.NOW)}"


def _resume_effect(nodes: Sequence[Node]) -> str:
    closed = count_text(sum(not node.is_schedulable for node in nodes), "closed node", "accept")
    return f"resume: {closed} jobs again as soon as the cluster confirms it. The drain reasons are cleared."


def _drain_node(node: Node, values: AdminActionInput) -> None:
    node_actions.drain(node, author=values.author, why=values.why, now=clock.now())


def _drain_after_checkpoint(node: Node, values: AdminActionInput) -> None:
    node_actions.drain(node, author=values.author, why=values.why, now=clock.now(), mode=DrainMode.CHECKPOINT)


def _drain_after_checkpoint_effect(nodes: Sequence[Node]) -> str:
    now = clock.now()
    affected = drain_impact.affected_jobs(nodes, now)
    return f"drain after checkpoint: {drain_impact.drain_impact_text(affected, DrainMode.CHECKPOINT)}"


def _drain_node_now(node: Node, values: AdminActionInput) -> None:
    node_actions.drain(node, author=values.author, why=values.why, now=clock.now(), mode=DrainMode.NOW)


def _resume_node(node: Node, values: AdminActionInput) -> None:
    node_actions.resume(node, author=values.author, why=values.why, now=clock.now())


def _test_node(node: Node, values: AdminActionInput) -> None:
    node_actions.start_node_test(node, author=values.author, why=values.why)


def _test_effect(nodes: Sequence[Node]) -> str:
    return f"test: a test job checks {count_text(len(nodes), 'node')}. The result appears in the events."


def _drain_mode_differs(mode: str) -> Callable[[Node], bool]:
    return lambda node: (
        node.cluster.mode == ClusterMode.DRIVE and not (node.drain_requested and node.drain_mode == mode)
    )


NODE_ACTIONS = (
    AdminAction(
        name="drain",
        label="Drain",
        act=_drain_node,
        effect=_drain_effect,
        fits=lambda node: not node.is_drained,
        needs_reason=True,
    ),
    AdminAction(
        name="drain-after-checkpoint",
        label="Drain after checkpoint",
        act=_drain_after_checkpoint,
        effect=_drain_after_checkpoint_effect,
        fits=_drain_mode_differs(DrainMode.CHECKPOINT),
        needs_reason=True,
    ),
    AdminAction(
        name="drain-now",
        label="Drain now",
        act=_drain_node_now,
        effect=_drain_now_effect,
        fits=_drain_mode_differs(DrainMode.NOW),
        needs_reason=True,
    ),
    AdminAction(
        name="test",
        label="Test",
        act=_test_node,
        effect=_test_effect,
        fits=lambda node: node.drain_requested and node.cluster.mode == ClusterMode.DRIVE,
    ),
    AdminAction(
        name="resume",
        label="Resume",
        act=_resume_node,
        effect=_resume_effect,
        fits=lambda node: node.is_drained or not node.is_schedulable,
    ),
)


class AcceptsJobsFilter(admin.SimpleListFilter):
    title = "accepts jobs"
    parameter_name = "is_schedulable"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("yes", "accepts new jobs"), ("no", "closed to new jobs")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Node]) -> QuerySet[Node]:
        if self.value() == "yes":
            return queryset.usable()
        if self.value() == "no":
            return queryset.not_usable()
        return queryset


@admin.register(Node)
class NodeAdmin(AdminActionsMixin, EventsLinkMixin, ProtectedHistoryMixin, AcmeAdmin):
    verbs = NODE_ACTIONS
    verb_permission = "jobs.operate_cluster"
    touched_columns = ("state", "node", "cluster", "GPUs used", "reason")
    history = ("events", "allocations", "commands", "samples")
    paginator = CappedPaginator
    show_full_result_count = False
    list_display = (
        *("name", "cluster", "st", "gpus_used", "short_reason", "reason_by", "in_state"),
        *("gpu_model", "cpus", "memory", "rack", "last_report"),
    )
    list_select_related = ("cluster",)
    list_filter = (AcceptsJobsFilter, "state", "cluster", "gpu_model", "nic_type")
    date_hierarchy = "since"
    search_fields = ("name__startswith", "rack__startswith", "leaf__startswith", "gpu_uuids__icontains")
    search_help_text = "Beginning of the name of a node, rack or leaf switch; or a GPU's UUID."
    topology = ("rack", "leaf", "pod", "nic_type", "nic_count")  # clusters do not report these
    inlines = (EventInline,)
    fieldsets = (
        (
            None,
            {"fields": (("long_st", "work", "cluster"), "reason", "reason_who", ("in_state_long", "last_report_long"))},
        ),
        ("Topology", {"fields": (topology[:3], topology[3:])}),
        ("Hardware", {"fields": (("gpus_used", "gpu_model", "cpus", "memory"), "uuids", "pci")}),
    )

    def get_readonly_fields(self, request: HttpRequest, obj: Node | None = None) -> list[str]:
        return [name for name in flatten_fieldsets(self.fieldsets) if name not in self.topology]

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Nodes are created when their cluster reports them."""
        return False

    def has_view_permission(self, request: HttpRequest, obj: Node | None = None) -> bool:
        return self.may_use_actions(request) or super().has_view_permission(request, obj)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Node]:
        live = Allocation.objects.filter(node=OuterRef("pk"), released_at__isnull=True, gpu__isnull=False)
        count = live.order_by().values("node").annotate(count=Count("gpu", distinct=True)).values("count")
        used = Coalesce(Subquery(count, output_field=IntegerField()), 0)
        return super().get_queryset(request).annotate(used=used)

    def confirmation_cells(self, node: Node) -> tuple[Any, ...]:
        return (formatting.badge(node.badge), formatting.link(node), node.cluster, self.gpus_used(node), node.reason)

    @admin.display(description="state", ordering="state")
    def st(self, node: Node) -> str:
        return formatting.badge(node.badge)

    @admin.display(description="state")
    def long_st(self, node: Node) -> str:
        return formatting.long_badge(node.badge)

    @admin.display(description="accepts jobs", boolean=True)
    def work(self, node: Node) -> bool:
        return node.is_schedulable

    @admin.display(description="GPUs used")
    def gpus_used(self, node: Node) -> str:
        return f"{node.used}/{node.gpus}"

    @admin.display(description="memory", ordering="memory_mb")
    def memory(self, node: Node) -> str:
        return format_memory(node.memory_mb)

    @admin.display(description="reason")
    def short_reason(self, node: Node) -> str:
        return formatting.clip_text(node.reason, 50)

    @admin.display(description="reason set")
    def reason_who(self, node: Node) -> str:
        return formatting.join_texts(
            formatting.exact_and_relative_time(node.reason_at), node.reason_by and f"by {node.reason_by}"
        )

    @admin.display(description="since", ordering="since")
    def in_state(self, node: Node) -> str:
        return formatting.relative_time(node.since)

    @admin.display(description="since")
    def in_state_long(self, node: Node) -> str:
        return formatting.exact_and_relative_time(node.since)

    @admin.display(description="last report", ordering="seen_at")
    def last_report(self, node: Node) -> str:
        return formatting.relative_time(node.seen_at)

    @admin.display(description="last report")
    def last_report_long(self, node: Node) -> str:
        return formatting.exact_and_relative_time(node.seen_at)

    @admin.display(description="GPU UUIDs")
    def uuids(self, node: Node) -> str:
        return formatting.gpu_value_list(node.gpu_uuids)

    @admin.display(description="GPU PCI addresses")
    def pci(self, node: Node) -> str:
        return formatting.gpu_value_list(node.gpu_pci)
