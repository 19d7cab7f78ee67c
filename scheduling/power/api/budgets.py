"""Power budgets in the API: list, add, change and remove those of a cluster, and say whether clocks are capped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db.models import QuerySet
from django.urls import path
from rest_framework.response import Response

from acmeweb.common.errors import InvalidField
from jobs.api.clusters import find_cluster, visible_cluster
from jobs.api.jobs import MAX_REASON_LENGTH
from jobs.api.shapes import CLUSTER_DETAIL
from jobs.core import parsing
from jobs.models import TokenScope, clock
from jobs.rest import etags, query_params
from jobs.rest.endpoint import ActionEndpoint, ChangeableDetailEndpoint, ListEndpoint, RemoveEndpoint, find_or_404
from jobs.rest.permissions import EndpointRule, operator_rule
from jobs.rest.shapes import (
    ResourceShape,
    attribute_path,
    datetime_field,
    integer_field,
    integer_list_field,
    number_field,
    text_field,
)
from scheduling.models import BudgetScope, PowerBudget, PowerCapMode
from scheduling.models.power_budget import MAX_LIMIT_W
from scheduling.power.actions import budgets as budget_actions
from scheduling.power.budget_states import budget_states
from scheduling.power.reads.caps import cap_status
from scheduling.power.rules.caps import MAX_PERCENT, MIN_PERCENT, POLCA_PERCENTS

TAG = "Clusters and teams"
MAX_LIMIT_KW = MAX_LIMIT_W // 1000


def _kw(name: str) -> Callable[[Any], float | None]:
    """A getter of watts of the budget's state in kW; None if the state is not known."""
    return lambda row: getattr(row.state, name) / 1000 if row.state else None


CAP_MODE = text_field(
    "off: nothing; observe: caps are recorded, and no clock changes; act: clocks of GPUs are capped when the measured "
    "power approaches the budget.",
    choices=PowerCapMode.values,
    get=attribute_path("mode"),
    needs=("mode",),
)
CAP_PERCENTS_HELP = (
    f"Percentages of the limit, from {MIN_PERCENT} to {MAX_PERCENT}, above which evaluation and debug jobs are capped, "
    "then all jobs, and above which all run at the lowest clock."
)
CAP_PERCENTS = integer_list_field(
    CAP_PERCENTS_HELP,
    low=MIN_PERCENT,
    high=MAX_PERCENT,
    get=lambda row: list(row.cap_percents),
    needs=("low_cap_percent", "all_cap_percent", "lowest_clock_percent"),
)
POWER_BUDGET = ResourceShape(
    "PowerBudget",
    {
        "id": integer_field(),
        "scope": text_field("Which nodes: all of the cluster, or those of one place.", choices=BudgetScope.values),
        "place": text_field("The rack, leaf or pod; empty for the cluster."),
        "limit_kw": number_field(
            "What all its nodes may draw together, with their hosts.",
            get=lambda row: row.limit_w / 1000,
            needs=("limit_w",),
        ),
        "nodes": integer_field(
            get=lambda row: row.state.nodes if row.state else 0, needs=("scope", "place"), observed=True
        ),
        "idle_kw": number_field(
            "Power of its nodes that are awake, without jobs.",
            get=_kw("idle_w"),
            needs=("scope",),
            nullable=True,
            observed=True,
        ),
        "predicted_kw": number_field(
            "Predicted peak with the running jobs.",
            get=_kw("predicted_w"),
            needs=("scope",),
            nullable=True,
            observed=True,
        ),
        "jobs_waiting": integer_field(
            "Jobs whose wait reason names this budget.",
            get=lambda row: row.state.waiting if row.state else 0,
            needs=("scope",),
            observed=True,
        ),
        "created_at": datetime_field(),
        "cap_mode": CAP_MODE,
        "cap_percents": CAP_PERCENTS,
        "measured_kw": number_field(
            "At the newest reading, if its caps are not off.",
            get=lambda row: None if row.measured_w is None else row.measured_w / 1000,
            needs=("measured_w",),
            nullable=True,
            observed=True,
        ),
        "measured_at": datetime_field(
            get=attribute_path("reading_at"), needs=("reading_at",), nullable=True, observed=True
        ),
        "unread_nodes": integer_field("Nodes without a fresh reading, which are estimated.", low=0, observed=True),
        "cap_level": integer_field(
            "Of the caps; 0: no clock is capped.", get=attribute_path("level"), needs=("level",), low=0, observed=True
        ),
        "cap_level_since": datetime_field(
            get=attribute_path("level_since"), needs=("level_since",), nullable=True, observed=True
        ),
        "cap_error": text_field(
            "Why the last command to set clocks failed.",
            get=attribute_path("command_error"),
            needs=("command_error",),
            observed=True,
        ),
        "cap_status": text_field(
            "What the caps do now.",
            get=lambda row: cap_status(row, clock.now()),
            needs=(
                *("mode", "level", "reading_at", "command_error", "unread_nodes", "low_cap_percent"),
                *("all_cap_percent", "lowest_clock_percent", "cluster__name", "cluster__mode", "cluster__product"),
            ),
            observed=True,
        ),
    },
)
REASON = text_field("Recorded with the change.", required=False)
LIMIT = number_field("What all its nodes may draw together, with their hosts.", high=MAX_LIMIT_KW)
BUDGET_CHANGE = ResourceShape(
    "PowerBudgetChange",
    {
        "limit_kw": number_field(
            "What all its nodes may draw together, with their hosts.", high=MAX_LIMIT_KW, required=False
        ),
        "cap_mode": text_field("Whether clocks are capped.", choices=PowerCapMode.values, required=False),
        "cap_percents": integer_list_field(CAP_PERCENTS_HELP, low=MIN_PERCENT, high=MAX_PERCENT, required=False),
        "reason": REASON,
    },
    example={"limit_kw": 1200},
)
NEW_BUDGET = ResourceShape(
    "NewPowerBudget",
    {
        "scope": text_field("Default: cluster.", choices=BudgetScope.values, required=False),
        "place": text_field("The rack, leaf or pod.", required=False),
        "limit_kw": LIMIT,
        "reason": REASON,
    },
    example={"scope": "rack", "place": "r01", "limit_kw": 40},
)
REASON_READER: dict[str, parsing.FieldReader] = {"reason": parsing.text_reader(MAX_REASON_LENGTH, lines=True)}
LIMIT_READERS: dict[str, parsing.FieldReader] = {"limit_kw": parsing.number_reader(0, MAX_LIMIT_KW), **REASON_READER}
CHANGE_READERS = {
    **LIMIT_READERS,
    "cap_mode": parsing.choice_reader(PowerCapMode.values),
    "cap_percents": parsing.list_reader(parsing.integer_reader(MIN_PERCENT, MAX_PERCENT), len(POLCA_PERCENTS)),
}
CHANGED_FIELDS = ("limit_kw", "cap_mode", "cap_percents")
NEW_READERS: dict[str, parsing.FieldReader] = {
    **LIMIT_READERS,
    "scope": parsing.choice_reader(BudgetScope.values),
    "place": parsing.text_reader(40),
}


def _find_budget(cluster: str, number: int) -> PowerBudget:
    rows = PowerBudget.objects.select_related("cluster").filter(cluster__name=cluster)
    row: PowerBudget = find_or_404(rows, "power budget", pk=number)
    _add_states([row])
    return row


def _add_states(rows: list[Any]) -> None:
    """Set `state` on budgets of one cluster."""
    states = {state.row.pk: state for state in budget_states(rows[0].cluster, clock.now())} if rows else {}
    for row in rows:
        row.state = states.get(row.pk)


class PowerBudgetList(ListEndpoint, ActionEndpoint):
    """List the power budgets of a cluster; add one."""

    tag = TAG
    what = "power budgets"
    shape = POWER_BUDGET
    filters = {
        "scope": query_params.choice_filter("scope", BudgetScope.values),
        "place": query_params.text_filter("place"),
    }
    ordering = "id"
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ,
            says="List the power budgets of a cluster, with the power that is predicted now",
            answer=POWER_BUDGET,
            many=True,
            team=True,
        ),
        "POST": operator_rule(
            says="Add a power budget for a cluster, or for one of its racks, leaves or pods",
            body=NEW_BUDGET,
            answer=POWER_BUDGET,
            status=201,
        ),
    }

    def rows(self, name: str) -> QuerySet[PowerBudget]:
        return PowerBudget.objects.filter(cluster=find_cluster(name))

    def attach_computed_values(self, rows: list[Any], names: list[str]) -> None:
        if {"nodes", "idle_kw", "predicted_kw", "jobs_waiting"}.intersection(names):
            _add_states(rows)

    def work(self, name: str) -> Response:
        cluster = visible_cluster(name, self.caller)
        etags.check_if_match(self.request, CLUSTER_DETAIL.show(cluster), CLUSTER_DETAIL.observed)
        values = self.body(NEW_READERS, "a power budget")
        if "limit_kw" not in values:
            raise InvalidField("limit_kw", "is required")
        added = budget_actions.add(
            cluster,
            scope=values.get("scope", str(BudgetScope.CLUSTER)),
            place=values.get("place", ""),
            limit_kw=values["limit_kw"],
            author=self.author,
            why=values.get("reason", ""),
        )
        address = self.request.build_absolute_uri(f"{self.request.path}{added.pk}/")
        shown = POWER_BUDGET.show(_find_budget(name, added.pk))
        return Response(shown, status=201, headers={"Location": address})


class PowerBudgetDetail(ChangeableDetailEndpoint):
    """One power budget."""

    tag = TAG
    shape = POWER_BUDGET
    rules = {
        "GET": EndpointRule(scope=TokenScope.READ, says="One power budget", answer=POWER_BUDGET, team=True),
        "PATCH": operator_rule(
            says="Change the limit of a power budget, or whether and when clocks are capped",
            body=BUDGET_CHANGE,
            answer=POWER_BUDGET,
        ),
    }

    def row(self, name: str, number: int) -> PowerBudget:
        return _find_budget(name, number)

    def changes(self) -> dict[str, Any]:
        values = self.body(CHANGE_READERS, "a power budget")
        if not set(CHANGED_FIELDS).intersection(values):
            raise InvalidField("limit_kw", "is required, or cap_mode or cap_percents")
        return values

    def change(self, row: PowerBudget, values: dict[str, Any]) -> None:
        changed = {name: values.get(name) for name in CHANGED_FIELDS}
        budget_actions.change(row, **changed, author=self.author, why=values.get("reason", ""), now=clock.now())


class RemovePowerBudget(RemoveEndpoint):
    """Remove a power budget."""

    tag = TAG
    shape = POWER_BUDGET
    readers = REASON_READER
    rules = {
        "POST": operator_rule(
            says="Remove a power budget. Jobs that waited for power start in the next turn",
            body=ResourceShape("PowerBudgetRemoval", {"reason": REASON}, example={"reason": "feed repaired"}),
            answer=POWER_BUDGET,
        )
    }

    def row(self, name: str, number: int) -> PowerBudget:
        return _find_budget(name, number)

    def remove(self, row: PowerBudget, values: dict[str, Any]) -> None:
        budget_actions.remove(row, author=self.author, why=values.get("reason", ""))


urlpatterns = [
    path("clusters/<slug:name>/power-budgets/", PowerBudgetList.as_view()),
    path("clusters/<slug:name>/power-budgets/<int:number>/", PowerBudgetDetail.as_view()),
    path("clusters/<slug:name>/power-budgets/<int:number>/remove/", RemovePowerBudget.as_view()),
]
