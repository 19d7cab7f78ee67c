"""The power budgets on the settings page of a cluster: a table, and forms to add, change and remove budgets."""

from __future__ import annotations

import re
from collections.abc import Iterator

from django.contrib.auth.decorators import permission_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.utils.text import capfirst
from django.views.decorators.http import require_POST

from acmeweb.common.errors import InvalidField
from jobs.actions.journal import Author
from jobs.models import Cluster, Node, clock
from jobs.web.page import posted_number, show_change
from scheduling.models import BudgetScope, PowerBudget
from scheduling.models.power_budget import budget_title
from scheduling.power.actions import budgets as budget_actions
from scheduling.power.actions.budgets import CAP_PERCENTS_RULE
from scheduling.power.reads.caps import cap_obstacle

OPERATE_PERMISSION = "jobs.operate_cluster"
MAX_PLACES_OFFERED = 500
SEPARATOR = ":"


def budget_places(cluster: Cluster) -> list[tuple[str, str]]:
    """The choices of a new budget: value and label of the cluster, and of each of its racks, leaves and pods, if they
    have none yet."""
    taken = set(PowerBudget.objects.filter(cluster=cluster).values_list("scope", "place"))
    found = [(scope, place) for scope, place in _places(cluster) if (scope, place) not in taken]
    return [(f"{scope}{SEPARATOR}{place}", capfirst(budget_title(scope, place))) for scope, place in found]


def _places(cluster: Cluster) -> Iterator[tuple[str, str]]:
    yield str(BudgetScope.CLUSTER), ""
    for scope in map(str, (BudgetScope.RACK, BudgetScope.LEAF, BudgetScope.POD)):
        rows = Node.objects.filter(cluster=cluster).exclude(**{scope: ""}).order_by(scope)
        for place in rows.values_list(scope, flat=True).distinct()[:MAX_PLACES_OFFERED]:
            yield scope, place


@require_POST
@permission_required(OPERATE_PERMISSION, raise_exception=True)
def add_budget(request: HttpRequest, name: str) -> HttpResponse:
    row = get_object_or_404(Cluster, name=name)
    scope, _, place = request.POST.get("place", "").partition(SEPARATOR)

    def add() -> str:
        added = budget_actions.add(
            row, scope=scope, place=place, limit_kw=_limit_kw(request), author=Author.of(request)
        )
        return f"{capfirst(added.title)}: the power budget was added. Takes effect in the next scheduling turn."

    show_change(request, add)
    return redirect("cluster", name)


@require_POST
@permission_required(OPERATE_PERMISSION, raise_exception=True)
def change_budget(request: HttpRequest, name: str, number: int) -> HttpResponse:
    """Change the limit and what happens near it, or with `do=remove` remove the budget."""
    row = get_object_or_404(PowerBudget.objects.select_related("cluster"), cluster__name=name, pk=number)

    def change() -> str:
        if request.POST.get("do") == "remove":
            budget_actions.remove(row, author=Author.of(request))
            return f"{capfirst(row.title)}: the power budget was removed."
        mode = request.POST.get("cap_mode", row.mode)
        budget_actions.change(
            row,
            limit_kw=_limit_kw(request),
            cap_mode=mode,
            cap_percents=_cap_percents(request),
            author=Author.of(request),
            now=clock.now(),
        )
        row.refresh_from_db()
        obstacle = cap_obstacle(row.cluster) if row.is_acting else ""
        note = f" Clocks are not capped yet: {obstacle}." if obstacle else ""
        return f"{capfirst(row.title)}: the power budget was changed. Takes effect in the next scheduling turn.{note}"

    show_change(request, change)
    return redirect("cluster", name)


def _limit_kw(request: HttpRequest) -> float:
    return posted_number(request, "limit_kw", "a number of kW, such as 1200")


def _cap_percents(request: HttpRequest) -> list[int] | None:
    text = request.POST.get("cap_percents", "").strip()
    try:
        return [int(word) for word in re.split(r"[\s,]+", text)] if text else None
    except ValueError:
        raise InvalidField("cap_percents", CAP_PERCENTS_RULE) from None
