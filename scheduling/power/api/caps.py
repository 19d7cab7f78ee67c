"""Power caps in the API: those of clusters and of jobs so far. What they do now is with their budget."""

from __future__ import annotations

from typing import Any

from django.db.models import Q, QuerySet
from django.urls import path
from rest_framework.response import Response

from jobs.api.clusters import find_cluster
from jobs.models import TokenScope, clock
from jobs.rest import query_params
from jobs.rest.endpoint import (
    ApiEndpoint,
    ListEndpoint,
    find_job_or_404,
    reject_unknown_params,
)
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
from scheduling.models import BudgetScope, PowerCap
from scheduling.power.reads.caps import job_cap_times

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


class PowerCapList(ListEndpoint):
    """List the caps of a cluster's power budgets."""

    tag = "Clusters and teams"
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
        return PowerCap.objects.filter(budget__cluster=find_cluster(name)).alias(is_open=Q(ended_at=None))


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
        job, now = find_job_or_404(self.caller.jobs(), id), clock.now()
        times = job_cap_times(list(job.attempts.values_list("pk", flat=True)), now)
        return Response({"caps": [CAP_TIME.show(one) for one in times]})


urlpatterns = [
    path("jobs/<public_id:id>/power-caps/", JobPowerCaps.as_view()),
    path("clusters/<slug:name>/power-caps/", PowerCapList.as_view()),
]
