"""Speeds of GPU models in the API: list, add, change and remove those of a cluster, and show those of a job."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.urls import path
from rest_framework.response import Response

from acmeweb.common.errors import InvalidField
from jobs.api.clusters import find_cluster, visible_cluster
from jobs.api.jobs import MAX_REASON_LENGTH
from jobs.api.shapes import CLUSTER_DETAIL
from jobs.core import parsing
from jobs.models import TokenScope
from jobs.rest import etags, query_params
from jobs.rest.endpoint import (
    ActionEndpoint,
    ApiEndpoint,
    ChangeableDetailEndpoint,
    ListEndpoint,
    RemoveEndpoint,
    find_job_or_404,
    find_or_404,
    reject_unknown_params,
)
from jobs.rest.permissions import EndpointRule, operator_rule
from jobs.rest.shapes import ResourceShape, datetime_field, integer_field, nested_list_field, number_field, text_field
from scheduling.actions import gpu_speeds as speed_actions
from scheduling.engine.gpu_speeds import MAX_SPEED, SpeedSource
from scheduling.models import GpuSpeed
from scheduling.models.gpu_speed import MAX_PATTERN_LENGTH
from scheduling.queries.gpu_speeds import job_model_speeds

TAG = "Clusters and teams"
UNIT = "Steps per second, or any unit that all models of the pattern share; only ratios count."
PATTERN = "A job name; * stands for any text, ? for one character. The most specific pattern counts."

GPU_SPEED = ResourceShape(
    "GpuSpeed",
    {
        "id": integer_field(),
        "pattern": text_field(PATTERN),
        "gpu_model": text_field(),
        "speed": number_field(UNIT),
        "created_at": datetime_field(),
    },
)
REASON = text_field("Recorded with the change.", required=False)
NEW_SPEED = ResourceShape(
    "NewGpuSpeed",
    {
        "pattern": text_field(PATTERN),
        "gpu_model": text_field("A model that nodes of the cluster have."),
        "speed": number_field(UNIT, high=MAX_SPEED),
        "reason": REASON,
    },
    example={"pattern": "llama-*", "gpu_model": "h100", "speed": 2.2},
)
SPEED_CHANGE = ResourceShape(
    "GpuSpeedChange", {"speed": number_field(UNIT, high=MAX_SPEED), "reason": REASON}, example={"speed": 2.4}
)
REASON_READER: dict[str, parsing.FieldReader] = {"reason": parsing.text_reader(MAX_REASON_LENGTH, lines=True)}
CHANGE_READERS: dict[str, parsing.FieldReader] = {"speed": parsing.number_reader(0, MAX_SPEED), **REASON_READER}
NEW_READERS: dict[str, parsing.FieldReader] = {
    **CHANGE_READERS,
    "pattern": parsing.text_reader(MAX_PATTERN_LENGTH),
    "gpu_model": parsing.text_reader(40),
}
MODEL_SPEED = ResourceShape(
    "JobModelSpeed",
    {
        "gpu_model": text_field(),
        "speed": number_field("In the unit of its source; null: unknown.", nullable=True),
        "attempts": integer_field("Number of attempts, for measured speeds.", low=0),
        "slowdown": number_field(
            "How many times as long the job runs as on the first model; null if a speed is unknown.", nullable=True
        ),
    },
)
JOB_SPEEDS = ResourceShape(
    "JobGpuSpeeds",
    {
        "source": text_field(
            "given: by an operator; measured: median steps per second of the newest attempts with the same user, name "
            "and number of GPUs.",
            choices=list(SpeedSource),
        ),
        "pattern": text_field("The pattern of given speeds, else empty."),
        "models": nested_list_field(
            MODEL_SPEED,
            "Those that the job requests, in its order of preference; else those with a known speed.",
            get=lambda row: [MODEL_SPEED.show(one) for one in row.models],
        ),
    },
)


def _find_speed(cluster: str, number: int) -> GpuSpeed:
    rows = GpuSpeed.objects.select_related("cluster").filter(cluster__name=cluster)
    row: GpuSpeed = find_or_404(rows, "GPU speed", pk=number)
    return row


class GpuSpeedList(ListEndpoint, ActionEndpoint):
    """List the speeds of GPU models that operators have given; add one."""

    tag = TAG
    what = "GPU speeds"
    shape = GPU_SPEED
    filters = {
        "pattern": query_params.text_filter("pattern"),
        "gpu_model": query_params.text_filter("gpu_model"),
    }
    ordering = "id"
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ,
            says="List how fast jobs are on each GPU model of a cluster, as operators know it",
            answer=GPU_SPEED,
            many=True,
            team=True,
        ),
        "POST": operator_rule(
            says="Add the speed of jobs of some names on a GPU model", body=NEW_SPEED, answer=GPU_SPEED, status=201
        ),
    }

    def rows(self, name: str) -> QuerySet[GpuSpeed]:
        return GpuSpeed.objects.filter(cluster=find_cluster(name))

    def work(self, name: str) -> Response:
        cluster = visible_cluster(name, self.caller)
        etags.check_if_match(self.request, CLUSTER_DETAIL.show(cluster), CLUSTER_DETAIL.observed)
        values = self.body(NEW_READERS, "a GPU speed")
        for field in ("pattern", "gpu_model", "speed"):
            if field not in values:
                raise InvalidField(field, "is required")
        why = values.pop("reason", "")
        added = speed_actions.add(cluster, author=self.author, why=why, **values)
        address = self.request.build_absolute_uri(f"{self.request.path}{added.pk}/")
        shown = GPU_SPEED.show(_find_speed(name, added.pk))
        return Response(shown, status=201, headers={"Location": address})


class GpuSpeedDetail(ChangeableDetailEndpoint):
    """One speed."""

    tag = TAG
    shape = GPU_SPEED
    rules = {
        "GET": EndpointRule(scope=TokenScope.READ, says="One speed on a GPU model", answer=GPU_SPEED, team=True),
        "PATCH": operator_rule(says="Change the speed of jobs on a GPU model", body=SPEED_CHANGE, answer=GPU_SPEED),
    }

    def row(self, name: str, number: int) -> GpuSpeed:
        return _find_speed(name, number)

    def changes(self) -> dict[str, Any]:
        values = self.body(CHANGE_READERS, "a GPU speed")
        if "speed" not in values:
            raise InvalidField("speed", "is required")
        return values

    def change(self, row: GpuSpeed, values: dict[str, Any]) -> None:
        speed_actions.change(row, speed=values["speed"], author=self.author, why=values.get("reason", ""))


class RemoveGpuSpeed(RemoveEndpoint):
    """Remove a speed."""

    tag = TAG
    shape = GPU_SPEED
    readers = REASON_READER
    rules = {
        "POST": operator_rule(
            says="Remove the speed of jobs on a GPU model. Measured speeds are used instead, if there are any",
            body=ResourceShape("GpuSpeedRemoval", {"reason": REASON}, example={"reason": "measured by now"}),
            answer=GPU_SPEED,
        )
    }

    def row(self, name: str, number: int) -> GpuSpeed:
        return _find_speed(name, number)

    def remove(self, row: GpuSpeed, values: dict[str, Any]) -> None:
        speed_actions.remove(row, author=self.author, why=values.get("reason", ""))


class JobGpuSpeeds(ApiEndpoint):
    """How fast a job is on each GPU model."""

    tag = "Jobs"
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ, says="How fast a job is on each GPU model, if known", answer=JOB_SPEEDS, team=True
        )
    }

    def get(self, request: Any, id: str) -> Response:
        reject_unknown_params(request)
        job = find_job_or_404(self.caller.jobs().select_related("cluster"), id)
        return Response(JOB_SPEEDS.show(job_model_speeds(job)))


urlpatterns = [
    path("clusters/<slug:name>/gpu-speeds/", GpuSpeedList.as_view()),
    path("clusters/<slug:name>/gpu-speeds/<int:number>/", GpuSpeedDetail.as_view()),
    path("clusters/<slug:name>/gpu-speeds/<int:number>/remove/", RemoveGpuSpeed.as_view()),
    path("jobs/<str:id>/gpu-speeds/", JobGpuSpeeds.as_view()),
]
