"""Clusters and nodes: their configuration and topology may be edited, what they reported may not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.admin.utils import flatten_fieldsets
from django.db.models import Count, IntegerField, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import HttpRequest

from jobs.actions import drain_impact
from jobs.actions import nodes as node_actions
from jobs.admin import formatting
from jobs.admin.event import EventInline, EventsLinkMixin
from jobs.admin.record import AcmeAdmin, CappedPaginator, ProtectedHistoryMixin
from jobs.admin.verbs import AdminAction, AdminActionInput, AdminActionsMixin, count_text
from jobs.core.slurm_notation import format_memory
from jobs.models import Allocation, Attempt, Cluster, ClusterMode, DrainMode, Node, clock
from jobs.models.cluster import TOKEN_FIELDS, token_paths

CLUSTER_CONNECTION_FIELDS = (
    *("address", "api_user", "token_file", "submit_as", "user_token_directory"),
    *("metrics_address", "log_root"),
)


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
        """The settings page asks for a confirmation; the console has none."""
        itself = Cluster.objects.filter(pk=self.instance.pk)
        if itself.with_tokens_for_another_address(token_paths(cleaned), cleaned.get("address", "")):
            page = f"/settings/clusters/of/{self.instance.name}/"
            self.add_error("address", f"The saved token would be sent there. Change the address at {page} instead.")


@admin.register(Cluster)
class ClusterAdmin(EventsLinkMixin, ProtectedHistoryMixin, AcmeAdmin):
    form = ClusterAdminForm
    history = ("jobs", "events", "deeds", "nodes")
    list_display = (
        "name",
        "title",
        "mode",
        "policy",
        "node_count",
        "closed_count",
        "product",
        "heard",
        "short_trouble",
    )
    list_filter = ("mode", "policy")
    search_fields = ("name__startswith", "title")
    search_help_text = "Begin of the name, or any part of the title."
    date_hierarchy = "created_at"
    readonly_fields = ("product", "api", "heard_long", "trouble", "unreadable_text", "wanted", "created")
    fieldsets = (
        (None, {"fields": ("name", "title", "mode", "policy", "policy_settings", "placement")}),
        (
            "Connection",
            {"fields": (*CLUSTER_CONNECTION_FIELDS, "checkpoint_root")},
        ),
        ("What it asks of jobs and nodes", {"fields": ("checkpoint_signal", "test_command")}),
        (
            "What it said",
            {"fields": ("product", "api", "heard_long", "trouble", "unreadable_text", "wanted", "created")},
        ),
    )

    decided_by = ("policy", "policy_settings", "placement")  # changed on the page of the queue, which tells of it

    def get_readonly_fields(self, request: HttpRequest, obj: Cluster | None = None) -> tuple[str, ...]:
        decided = self.decided_by if obj else ()
        set_by_acme = CLUSTER_CONNECTION_FIELDS if obj and obj.is_bundled else ()
        return (*self.readonly_fields, *decided, *set_by_acme)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Cluster]:
        closed = Q(nodes__in=Node.objects.troubled().values("pk"))
        return (
            super().get_queryset(request).annotate(node_total=Count("nodes"), node_closed=Count("nodes", filter=closed))
        )

    @admin.display(description="nodes")
    def node_count(self, cluster: Cluster) -> int:
        return cluster.node_total

    @admin.display(description="take no work")
    def closed_count(self, cluster: Cluster) -> int:
        return cluster.node_closed

    @admin.display(description="heard", ordering="heard_at")
    def heard(self, cluster: Cluster) -> str:
        return formatting.relative_time(cluster.heard_at)

    @admin.display(description="trouble")
    def short_trouble(self, cluster: Cluster) -> str:
        return formatting.clip_text(cluster.problem)

    @admin.display(description="heard")
    def heard_long(self, cluster: Cluster) -> str:
        return formatting.exact_and_relative_time(cluster.heard_at)

    @admin.display(description="turn of its loop asked for")
    def wanted(self, cluster: Cluster) -> str:
        return formatting.exact_and_relative_time(cluster.wanted_at)

    @admin.display(description="created")
    def created(self, cluster: Cluster) -> str:
        return formatting.exact_and_relative_time(cluster.created_at)


# --- nodes


def _running_on(nodes: Sequence[Node]) -> int:
    live = Attempt.objects.filter(ended_at__isnull=True, allocations__released_at__isnull=True)
    return live.filter(allocations__node__in=nodes).distinct().count()


def _drain_effect(nodes: Sequence[Node]) -> str:
    running = count_text(_running_on(nodes), "running job", "finish")
    return f"drain: no new jobs on {count_text(len(nodes), 'node')}, {running}."


def _drain_now_effect(nodes: Sequence[Node]) -> str:
    now = clock.now()
    touched = drain_impact.affected_jobs(nodes, now)
    return f"drain now: {drain_impact.drain_impact_text(touched, DrainMode.NOW)}"


def _resume_effect(nodes: Sequence[Node]) -> str:
    closed = count_text(sum(not node.takes_work for node in nodes), "closed node", "take")
    return f"resume: {closed} new jobs again as soon as the cluster agrees; the reasons for the drain are cleared."


def _drain_node(node: Node, asked: AdminActionInput) -> None:
    node_actions.drain(node, author=asked.author, why=asked.why, now=clock.now())


def _drain_after_checkpoint(node: Node, asked: AdminActionInput) -> None:
    node_actions.drain(node, author=asked.author, why=asked.why, now=clock.now(), mode=DrainMode.CHECKPOINT)


def _drain_after_checkpoint_effect(nodes: Sequence[Node]) -> str:
    now = clock.now()
    touched = drain_impact.affected_jobs(nodes, now)
    return f"drain after checkpoint: {drain_impact.drain_impact_text(touched, DrainMode.CHECKPOINT)}"


def _drain_node_now(node: Node, asked: AdminActionInput) -> None:
    node_actions.drain(node, author=asked.author, why=asked.why, now=clock.now(), mode=DrainMode.NOW)


def _resume_node(node: Node, asked: AdminActionInput) -> None:
    node_actions.resume(node, author=asked.author, why=asked.why, now=clock.now())


def _test_node(node: Node, asked: AdminActionInput) -> None:
    node_actions.start_node_test(node, author=asked.author, why=asked.why)


def _test_effect(nodes: Sequence[Node]) -> str:
    return f"test: a job of its own checks {count_text(len(nodes), 'node')}; how it came out is told among the events."


def _drain_mode_differs(mode: str) -> Callable[[Node], bool]:
    return lambda node: node.cluster.mode == ClusterMode.DRIVE and not (node.drain_asked and node.drain_mode == mode)


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
        fits=lambda node: node.drain_asked and node.cluster.mode == ClusterMode.DRIVE,
    ),
    AdminAction(
        name="resume",
        label="Resume",
        act=_resume_node,
        effect=_resume_effect,
        fits=lambda node: node.is_drained or not node.takes_work,
    ),
)


class AcceptsJobsFilter(admin.SimpleListFilter):
    title = "takes work"
    parameter_name = "takes_work"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("yes", "takes new jobs"), ("no", "closed to new jobs")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Node]) -> QuerySet[Node]:
        if self.value() == "yes":
            return queryset.usable()
        if self.value() == "no":
            return queryset.troubled()
        return queryset


@admin.register(Node)
class NodeAdmin(AdminActionsMixin, EventsLinkMixin, ProtectedHistoryMixin, AcmeAdmin):
    verbs = NODE_ACTIONS
    verb_permission = "jobs.operate_cluster"
    touched_columns = ("state", "node", "cluster", "GPUs used", "reason")
    history = ("events", "allocations", "deeds", "samples")
    paginator = CappedPaginator
    show_full_result_count = False
    list_display = (
        *("name", "cluster", "st", "gpus_used", "short_reason", "reason_by", "in_state"),
        *("gpu_model", "cpus", "memory", "rack", "seen"),
    )
    list_select_related = ("cluster",)
    list_filter = (AcceptsJobsFilter, "state", "cluster", "gpu_model", "nic_type")
    date_hierarchy = "since"
    search_fields = ("name__startswith", "rack__startswith", "leaf__startswith", "gpu_uuids__icontains")
    search_help_text = "Begin of a node's, rack's or leaf switch's name, or a GPU's UUID."
    topology = ("rack", "leaf", "pod", "nic_type", "nic_count")  # what a cluster does not report
    inlines = (EventInline,)
    fieldsets = (
        (
            None,
            {"fields": (("long_st", "work", "cluster"), "reason", "reason_who", ("in_state_long", "seen_long"))},
        ),
        ("Topology", {"fields": (topology[:3], topology[3:])}),
        ("Hardware", {"fields": (("gpus_used", "gpu_model", "cpus", "memory"), "uuids", "pci")}),
    )

    def get_readonly_fields(self, request: HttpRequest, obj: Node | None = None) -> list[str]:
        return [name for name in flatten_fieldsets(self.fieldsets) if name not in self.topology]

    def has_add_permission(self, request: HttpRequest) -> bool:
        """A node appears when its cluster reports it."""
        return False

    def has_view_permission(self, request: HttpRequest, obj: Node | None = None) -> bool:
        return self.may_use_actions(request) or super().has_view_permission(request, obj)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Node]:
        live = Allocation.objects.filter(node=OuterRef("pk"), released_at__isnull=True, gpu__isnull=False)
        count = live.order_by().values("node").annotate(count=Count("pk")).values("count")
        used = Coalesce(Subquery(count, output_field=IntegerField()), 0)
        return super().get_queryset(request).annotate(used=used)

    def touched_cells(self, node: Node) -> tuple[Any, ...]:
        return (formatting.badge(node.badge), formatting.link(node), node.cluster, self.gpus_used(node), node.reason)

    @admin.display(description="state", ordering="state")
    def st(self, node: Node) -> str:
        return formatting.badge(node.badge)

    @admin.display(description="state")
    def long_st(self, node: Node) -> str:
        return formatting.long_badge(node.badge)

    @admin.display(description="takes work", boolean=True)
    def work(self, node: Node) -> bool:
        return node.takes_work

    @admin.display(description="GPUs used")
    def gpus_used(self, node: Node) -> str:
        return f"{node.used}/{node.gpus}"

    @admin.display(description="memory", ordering="memory_mb")
    def memory(self, node: Node) -> str:
        return format_memory(node.memory_mb)

    @admin.display(description="reason")
    def short_reason(self, node: Node) -> str:
        return formatting.clip_text(node.reason, 50)

    @admin.display(description="reason given")
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

    @admin.display(description="seen", ordering="seen_at")
    def seen(self, node: Node) -> str:
        return formatting.relative_time(node.seen_at)

    @admin.display(description="seen")
    def seen_long(self, node: Node) -> str:
        return formatting.exact_and_relative_time(node.seen_at)

    @admin.display(description="GPU UUIDs")
    def uuids(self, node: Node) -> str:
        return formatting.gpu_value_list(node.gpu_uuids)

    @admin.display(description="GPU PCI addresses")
    def pci(self, node: Node) -> str:
        return formatting.gpu_value_list(node.gpu_pci)
