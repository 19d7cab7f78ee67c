"""Power caps in the API: what the caps of a budget do now, their mode, and the caps of clusters and jobs so far."""

from __future__ import annotations

from typing import Any

from django.db.models import Q, QuerySet
from django.urls import path
from rest_framework.response import Response

from jobs.core import parsing
from jobs.models import Cluster, TokenScope, clock
from jobs.rest import query_params
from jobs.rest.endpoint import (
    ApiEndpoint,
    ChangeableDetailEndpoint,
    ListEndpoint,
    find_or_404,
    reject_unknown_params,
)
from jobs.rest.errors import InvalidRequestField
from jobs.rest.permissions import EndpointRule
from jobs.rest.shapes import (
    ResourceShape,
    attribute_path,
    boolean_field,
    datetime_field,
    integer_field,
    nested_list_field,
    number_field,
    text_field,
)
from scheduling.actions import power_caps as cap_actions
from scheduling.actions.power_caps import PowerCapError
from scheduling.models import BudgetScope, PowerBudget, PowerCap, PowerCapMode
from scheduling.queries.power_caps import cap_status, job_cap_times

TAG = "Clusters and teams"
MODE = text_field(
    "off: nothing; observe: caps are recorded, and no clock changes; act: clocks of GPUs are capped.",
    choices=PowerCapMode.values,
)
POWER_CAP_STATE = ResourceShape(
    "PowerCapState",
    {
        "budget": integer_field(get=attribute_path("pk"), needs=()),
        "mode": MODE,
        "limit_kw": number_field(get=lambda row: row.limit_w / 1000, needs=("limit_w",)),
        "measured_kw": number_field(
            "At the newest reading.",
            get=lambda row: None if row.measured_w is None else row.measured_w / 1000,
            needs=("measured_w",),
            nullable=True,
            observed=True,
        ),
        "reading_at": datetime_field(nullable=True, observed=True),
        "unread_nodes": integer_field("Nodes without a fresh reading, which are estimated.", low=0, observed=True),
        "level": integer_field("Of the caps; 0: no clock is capped.", low=0, observed=True),
        "level_since": datetime_field(nullable=True, observed=True),
        "command_error": text_field("Why the last command to set clocks failed.", observed=True),
        "status": text_field(
            "What the caps do now.", get=lambda row: cap_status(row, clock.now()), needs=(), observed=True
        ),
    },
)
POWER_CAP_CHANGE = ResourceShape("PowerCapChange", {"mode": MODE}, example={"mode": "act"})
POWER_CAP = ResourceShape(
    "PowerCap",
    {
        "id": integer_field(),
        "budget": integer_field(get=attribute_path("budget_id"), needs=("budget_id",)),
        "scope": text_field(
            choices=BudgetScope.values, get=attribute_path("budget.scope"), needs=("budget__scope", "budget__place")
        ),
        "place": text_field(
            "The rack, leaf or pod; empty for the cluster.",
            get=attribute_path("budget.place"),
            needs=("budget__place",),
        ),
        "level": integer_field(low=1),
        "low_mhz": integer_field("Clock of evaluation and debug jobs on an A100; others have the same share.", low=1),
        "high_mhz": integer_field("Clock of all other jobs on an A100.", low=1),
        "is_observed": boolean_field("In mode observe: no clock was changed."),
        "began_at": datetime_field(),
        "ended_at": datetime_field(nullable=True),
        "peak_share": number_field("The highest measured power, as a share of the limit.", low=0),
    },
)
CAP_TIME = ResourceShape(
    "JobPowerCap",
    {
        "began_at": datetime_field(get=attribute_path("began")),
        "ended_at": datetime_field("Null: it lasts.", nullable=True, get=attribute_path("ended")),
        "lost_share": number_field("Of the speed, by the clocks of the GPUs, not measured.", low=0, high=1),
    },
)
JOB_POWER_CAPS = ResourceShape("JobPowerCaps", {"caps": nested_list_field(CAP_TIME)})
READERS = {"mode": parsing.choice_reader(PowerCapMode.values)}


class PowerCapDetail(ChangeableDetailEndpoint):
    """The caps of one power budget."""

    tag = TAG
    shape = POWER_CAP_STATE
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ, says="What the caps of a power budget do now", answer=POWER_CAP_STATE, team=True
        ),
        "PATCH": EndpointRule(
            scope=TokenScope.OPERATE,
            says="Change whether clocks are capped when measured power approaches the budget",
            body=POWER_CAP_CHANGE,
            answer=POWER_CAP_STATE,
            operator=True,
            conflicts=True,
            team=True,
        ),
    }

    def row(self, name: str, number: int) -> PowerBudget:
        rows = PowerBudget.objects.select_related("cluster").filter(cluster__name=name)
        row: PowerBudget = find_or_404(rows, "power budget", pk=number)
        return row

    def changes(self) -> dict[str, Any]:
        return parsing.read_fields(self.object(), READERS, "the caps of a power budget", required=("mode",))

    def change(self, row: PowerBudget, values: dict[str, Any]) -> None:
        try:
            cap_actions.set_mode(row, values["mode"], author=self.author, now=clock.now())
        except PowerCapError as error:
            raise InvalidRequestField("mode", f"{error}.") from None


class PowerCapList(ListEndpoint):
    """List the caps of a cluster's power budgets."""

    tag = TAG
    what = "power caps"
    shape = POWER_CAP
    filters = {
        "budget": query_params.integer_filter("budget"),
        "open": query_params.boolean_filter("is_open"),
    }
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ,
            says="List the times in which power was capped or would have been, newest first",
            answer=POWER_CAP,
            many=True,
            team=True,
        )
    }

    def rows(self, name: str) -> QuerySet[PowerCap]:
        cluster: Cluster = find_or_404(Cluster.objects.all(), "cluster", name=name)
        return PowerCap.objects.filter(budget__cluster=cluster).alias(is_open=Q(ended_at=None))


class JobPowerCaps(ApiEndpoint):
    """The power caps of a job."""

    tag = "Jobs"
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ,
            says="When clocks of the job's GPUs were capped and what that cost, newest first",
            answer=JOB_POWER_CAPS,
        )
    }

    def get(self, request: Any, id: str) -> Response:
        reject_unknown_params(request)
        job, now = find_or_404(self.caller.jobs(), "job", public_id=id), clock.now()
        times = job_cap_times(list(job.attempts.values_list("pk", flat=True)), now)
        return Response({"caps": [CAP_TIME.show(one) for one in times]})


urlpatterns = [
    path("jobs/<public_id:id>/power-caps/", JobPowerCaps.as_view()),
    path("clusters/<slug:name>/power-caps/", PowerCapList.as_view()),
    path("clusters/<slug:name>/power-budgets/<int:number>/caps/", PowerCapDetail.as_view()),
]
