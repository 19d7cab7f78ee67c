"""The queue page: waiting jobs in order, quotas, drained nodes, maintenance windows and the scheduling policy.

`policy_change` is the page that changes the policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_safe

from acmeweb.common.errors import InvalidField
from jobs.core.lifecycle import JobKind, NodeFlag
from jobs.models import Allocation, Cluster, Event, Node, Team, clock
from jobs.web.page import PageQuery, render_page, requested_cluster
from scheduling.core.ordering_figures import prediction_error_text
from scheduling.core.policy_choice import PolicyChoice, full_settings
from scheduling.core.quotas import QuotaAccount, QuotaBarPart, accounts
from scheduling.models import RunTimeModel
from scheduling.pages import maintenance
from scheduling.queries import policy_choices
from scheduling.queries.queue_order import QueueState, queue_states, queue_view

MAX_CHANGES_SHOWN = 20
OPERATE_PERMISSION = "jobs.operate_cluster"


@require_safe
def queue(request: HttpRequest) -> HttpResponse:
    query = PageQuery(request.GET)
    clusters, cluster = requested_cluster(query)
    now = clock.now()
    if cluster is None:
        return render_page(request, "scheduling/queue.html", {"now": now}, wrong=query.wrong)
    state = cache(lambda: queue_states.of(cluster, now))
    context = {
        "now": now,
        "cluster": cluster,
        "clusters": clusters,
        "here": f"{reverse('queue')}?cluster={cluster.name}",
        "line": cache(lambda: queue_view(state(), request.user)),
        "bars": cache(lambda: _quota_bars(request, cluster, state())),
        "drains": cache(lambda: _drained_nodes(cluster)),
        "windows": cache(lambda: maintenance.maintenance_rows(cluster, now)),
        "choice": cache(lambda: _policy_summary(policy_choices.current_policy_choice(cluster))),
        "predictions": cache(lambda: _prediction_errors(cluster)),
        "changes": cache(lambda: list(_changes(cluster))),
        "may_operate": request.user.has_perm(OPERATE_PERMISSION),
    }
    parts = ("line", "quotas", "drains", "maintenance", "policy")
    fragments = {part: f"scheduling/_{part}.html" for part in parts}
    return render_page(request, "scheduling/queue.html", context, fragments, query.wrong)


# --- quotas


@dataclass(frozen=True, kw_only=True)
class QuotaBar:
    account: QuotaAccount
    parts: list[QuotaBarPart]
    mark: float  # end of the quota, in percent of the scale

    @property
    def label(self) -> str:
        """The bar for screen readers."""
        return ", ".join(f"{part.gpus} {part.name}" for part in self.parts) or "none allocated"


def _quota_bars(request: HttpRequest, cluster: Cluster, state: QueueState) -> list[QuotaBar]:
    """Return one bar per quota. Teams that the user may not name share one bar."""
    teams = set(Team.objects.where(request.user).values_list("name", flat=True))
    knows_all = request.user.has_perm(OPERATE_PERMISSION)

    def may_name(team: str) -> bool:
        return knows_all or team in teams

    rows = accounts(state.picture.quotas, state.quota_uses, _reserved_kinds(cluster), may_name, state.model_quota_uses)
    longest = max((row.bar_length for row in rows), default=0) or 1
    return [QuotaBar(account=row, parts=row.parts(longest), mark=100 * (row.owned or 0) / longest) for row in rows]


def _reserved_kinds(cluster: Cluster) -> frozenset[JobKind]:
    choice = policy_choices.current_policy_choice(cluster)
    try:
        return full_settings(choice).reserve if choice.is_acme else frozenset()
    except InvalidField:
        return frozenset()


# --- drained nodes


@dataclass(frozen=True, kw_only=True)
class DrainedNode:
    node: Node
    held: int

    @property
    def use_text(self) -> str:
        if not self.held:
            return f"{self.node.gpus} GPUs, none allocated"
        jobs = f", jobs: {self.node.drain_mode}" if self.node.drain_requested else ""
        return f"{self.held} of {self.node.gpus} GPUs still allocated{jobs}"


def _drained_nodes(cluster: Cluster) -> list[DrainedNode]:
    closed = Q(drain_requested=True) | Q(flags__contains=[NodeFlag.DRAIN.value])
    rows = list(Node.objects.filter(closed, cluster=cluster).select_related("cluster").order_by("-reason_at", "name"))
    held = Allocation.objects.held_per_node() if rows else {}
    return [DrainedNode(node=node, held=held.get(node.pk, 0)) for node in rows]


# --- scheduling policy


def _policy_summary(choice: PolicyChoice) -> dict[str, Any]:
    try:
        return {"lines": choice.setting_texts().items()}
    except InvalidField as bad:
        return {"lines": (("policy", choice.policy), ("placement", choice.placement)), "warning": str(bad)}


def _prediction_errors(cluster: Cluster) -> list[tuple[str, str]]:
    """Label and text of the error of the rolling estimate, and of that of trees once they have been trained."""
    model = RunTimeModel.objects.filter(cluster=cluster).with_trees().first()
    if model is None:
        return [("run time predictions", prediction_error_text(0, None, None))]
    rolling = prediction_error_text(model.measured_jobs, model.median_ratio, model.p90_ratio)
    if model.trees_version is None:
        return [("run time predictions", rolling)]
    error = prediction_error_text(model.trees_measured_jobs, model.trees_median_ratio, model.trees_p90_ratio)
    trained = f"version {model.trees_version}, trained on {model.training_jobs:,} jobs"
    return [("run time predictions", rolling), ("predictions by trees", f"{error}; {trained}")]


def _changes(cluster: Cluster) -> Any:
    return Event.objects.filter(cluster=cluster, type="policy.changed").order_by("-id")[:MAX_CHANGES_SHOWN]
