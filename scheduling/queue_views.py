"""The page of the queue: who waits in which order and why, what teams own and hold, what is drained, how it decides."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from jobs import clock
from jobs.journal import Author
from jobs.lifecycle import Kind, NodeFlag
from jobs.models import Allocation, Cluster, Event, Node, Team
from jobs.pages import Address, answer, cluster_asked
from scheduling import maintenance_views, policy_actions
from scheduling.accounts import Account, Part, accounts
from scheduling.choosing import Choice, differences, in_full
from scheduling.engine.policies import BadSettings
from scheduling.forms import PolicyForm
from scheduling.policy_actions import PolicyError
from scheduling.standing import Standing, line_of, standings

MOST_CHANGES = 20
MAY_OPERATE = "jobs.operate_cluster"


@require_safe
def queue(request: HttpRequest) -> HttpResponse:
    asked = Address(request.GET)
    clusters, cluster = cluster_asked(asked)
    now = clock.now()
    if cluster is None:
        return answer(request, "scheduling/queue.html", {"now": now}, wrong=asked.wrong)
    standing = cache(lambda: standings.of(cluster, now))
    context = {
        "now": now,
        "cluster": cluster,
        "clusters": clusters,
        "here": f"{reverse('queue')}?cluster={cluster.name}",
        "line": cache(lambda: line_of(standing(), request.user)),
        "bars": cache(lambda: _bars(request, cluster, standing())),
        "drains": cache(lambda: _drains(cluster)),
        "windows": cache(lambda: maintenance_views.shown(cluster, now)),
        "choice": cache(lambda: _shown(policy_actions.of(cluster))),
        "changes": cache(lambda: list(_changes(cluster))),
        "may_operate": request.user.has_perm(MAY_OPERATE),
    }
    parts = ("line", "quotas", "drains", "maintenance", "policy")
    fragments = {part: f"scheduling/_{part}.html" for part in parts}
    return answer(request, "scheduling/queue.html", context, fragments, asked.wrong)


# --- what teams own


@dataclass(frozen=True, kw_only=True)
class Bar:
    account: Account
    parts: list[Part]
    mark: float  # where the quota ends, in percent of the scale


def _bars(request: HttpRequest, cluster: Cluster, standing: Standing) -> list[Bar]:
    """Names of teams are for their members and for who operates; the rest is one bar together."""
    teams = set(Team.objects.where(request.user).values_list("name", flat=True))
    knows_all = request.user.has_perm(MAY_OPERATE)

    def sees(team: str) -> bool:
        return knows_all or team in teams

    found = accounts(standing.picture.quotas, standing.uses, _reserves(cluster), sees)
    most = max((one.widest for one in found), default=0) or 1
    return [Bar(account=one, parts=one.parts(most), mark=100 * (one.owned or 0) / most) for one in found]


def _reserves(cluster: Cluster) -> frozenset[Kind]:
    choice = policy_actions.of(cluster)
    try:
        return in_full(choice).reserve if choice.is_acme else frozenset()
    except BadSettings:
        return frozenset()


# --- what is drained


@dataclass(frozen=True, kw_only=True)
class Drain:
    node: Node
    held: int


def _drains(cluster: Cluster) -> list[Drain]:
    closed = Q(drain_asked=True) | Q(flags__contains=[NodeFlag.DRAIN.value])
    rows = list(Node.objects.filter(closed, cluster=cluster).select_related("cluster").order_by("-reason_at", "name"))
    held = Allocation.objects.held_per_node() if rows else {}
    return [Drain(node=node, held=held.get(node.pk, 0)) for node in rows]


# --- how it decides


def _shown(choice: Choice) -> dict[str, Any]:
    try:
        return {"lines": choice.amounts_to().items()}
    except BadSettings as bad:
        return {"lines": (("policy", choice.policy), ("placement", choice.placement)), "trouble": str(bad)}


def _changes(cluster: Cluster) -> Any:
    return Event.objects.filter(cluster=cluster, what="policy.changed").order_by("-id")[:MOST_CHANGES]


@require_http_methods(["GET", "HEAD", "POST"])
@permission_required(MAY_OPERATE, raise_exception=True)
def policy(request: HttpRequest, cluster: str) -> HttpResponse:
    """Asked, shown as a difference, confirmed: nothing changes before the third."""
    row = get_object_or_404(Cluster, name=cluster)
    now_so = policy_actions.of(row)
    form = PolicyForm(request.POST or None, initial=PolicyForm.filled(now_so))
    found = None
    if request.method == "POST" and form.is_valid():
        try:
            if request.POST.get("confirm") == now_so.mark:
                return _chosen(request, row, form, now_so)
            policy_actions.checked(form.choice())
            found = differences(now_so, form.choice())
            if request.POST.get("confirm"):
                messages.warning(request, f"Somebody changed how {row} decides in the meantime; look again.")
        except BadSettings as bad:
            field, _, why = str(bad).partition(": ")
            form.add_error(field if field in form.fields else None, why or str(bad))
        except PolicyError as error:
            messages.error(request, str(error))
    context = {"now": clock.now(), "cluster": row, "form": form, "differences": found, "mark": now_so.mark}
    return render(request, "scheduling/policy.html", context, status=400 if form.errors else 200)


def _chosen(request: HttpRequest, row: Cluster, form: PolicyForm, now_so: Choice) -> HttpResponse:
    why = form.cleaned_data["why"]
    done = policy_actions.choose(row, form.choice(), before=now_so, author=Author.of(request), why=why)
    count = f"{len(done)} thing{'' if len(done) == 1 else 's'}"
    messages.success(request, f"{row} decides otherwise from the next turn on: {count} changed.")
    return redirect(f"{reverse('queue')}?cluster={row.name}")
