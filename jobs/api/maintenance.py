"""Maintenance in the API: schedule it, change its end, cancel it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db.models import Q, QuerySet
from rest_framework.response import Response

from acmeweb.common.errors import InvalidField
from jobs.actions import maintenance as maintenance_actions
from jobs.actions.maintenance import MaintenanceRequest
from jobs.api.clusters import find_cluster, visible_cluster
from jobs.api.jobs import MAX_REASON_LENGTH
from jobs.api.nodes import running_job_row
from jobs.api.shapes import CLUSTER_DETAIL, RUNNING_JOB
from jobs.core import parsing
from jobs.models import DrainMode, Maintenance, TokenScope, clock
from jobs.models.maintenance import DEFAULT_RUN_TIME
from jobs.queries import keyset
from jobs.rest import etags, query_params
from jobs.rest.endpoint import (
    ActionEndpoint,
    ChangeableDetailEndpoint,
    ListEndpoint,
    find_or_404,
    lock_unchanged_row,
)
from jobs.rest.permissions import EndpointRule, operator_rule
from jobs.rest.shapes import (
    ResourceShape,
    ShapeField,
    boolean_field,
    datetime_field,
    integer_field,
    nested_list_field,
    number_field,
    seconds_field,
    text_field,
)

PHASES = ("planned", "going on", "over", "cancelled")
DRAIN_MODES_TEXT = (
    "What happens to running jobs when the maintenance begins. finish: they run to their end; checkpoint: each is"
    " requeued after its next checkpoint; now: they are requeued immediately."
)

MAINTENANCE_FIELDS: dict[str, ShapeField] = {
    "id": integer_field(),
    "name": text_field(),
    "reason": text_field(),
    "phase": text_field(
        choices=PHASES,
        get=lambda row: row.phase(clock.now()),
        needs=("cancelled_at", "closed_at", "start_at", "end_at"),
    ),
    "whole_cluster": boolean_field("Covers the whole cluster, including nodes added later."),
    "nodes": ShapeField(
        schema={"type": "array", "items": {"type": "string"}, "description": "Node names; empty: the whole cluster."},
        get=lambda row: sorted(node.name for node in row.nodes.all()),
        needs=(),
        joins=("nodes",),
    ),
    "start_at": datetime_field(),
    "end_at": datetime_field(),
    "mode": text_field(DRAIN_MODES_TEXT, choices=DrainMode.values),
    "lead_time": seconds_field("Jobs without a time limit stop starting on the nodes this long before."),
    "by": text_field(),
    "created_at": datetime_field(),
    "begun_at": datetime_field("When the first node was closed.", nullable=True),
    "cancelled_at": datetime_field(nullable=True),
    "closed_at": datetime_field("When the nodes were opened again.", nullable=True),
}
MAINTENANCE = ResourceShape("Maintenance", MAINTENANCE_FIELDS)
MAINTENANCE_REQUEST = ResourceShape(
    "MaintenanceRequest",
    {
        "name": text_field("Unique among the open maintenance windows of the cluster."),
        "reason": text_field("Shown to users whose jobs wait for the maintenance."),
        "nodes": text_field("Slurm node list, such as gpu[001-016]. Default: the whole cluster.", required=False),
        "start_at": datetime_field("Default: now.", required=False),
        "end_at": datetime_field(),
        "mode": text_field(DRAIN_MODES_TEXT, choices=DrainMode.values, required=False),
        "lead_time": ShapeField(
            schema={"type": ["integer", "string"], "description": "Seconds or D-HH:MM:SS. Default: one day."},
            required=False,
        ),
        "dry_run": boolean_field("Return the effect without changing anything.", required=False),
    },
    example={
        "name": "cooling",
        "reason": "new pumps in row 3",
        "nodes": "gpu[001-016]",
        "start_at": "2100-01-31T22:00:00Z",
        "end_at": "2100-02-01T04:00:00Z",
    },
)
MAINTENANCE_PREVIEW = ResourceShape(
    "MaintenanceAhead",
    {
        "id": integer_field("Null for a dry run.", nullable=True),
        "effect": text_field("Effect of the maintenance, in sentences."),
        "nodes": integer_field(),
        "gpus": integer_field(),
        "running": nested_list_field(
            RUNNING_JOB, "Jobs that may still run when it begins; gpus counts GPUs on the affected nodes."
        ),
        "ending_before": integer_field("Running jobs whose time limits end before the maintenance."),
        "waiting": integer_field("Waiting jobs whose time limits do not end before the maintenance."),
        "waiting_gpus": number_field(),
    },
)
MAINTENANCE_END = ResourceShape(
    "MaintenanceEnd",
    {"end_at": datetime_field(), "reason": text_field(required=False)},
    example={"end_at": "2100-02-01T06:00:00Z", "reason": "A pump arrives late."},
)
MAINTENANCE_REASON = ResourceShape(
    "MaintenanceWhy", {"reason": text_field(required=False)}, example={"reason": "The pumps were not delivered."}
)


def _find_maintenance(cluster: str, number: int) -> Maintenance:
    rows = Maintenance.objects.select_related("cluster").prefetch_related("nodes")
    row: Maintenance = find_or_404(rows.filter(cluster__name=cluster), "maintenance", pk=number)
    return row


class Maintenances(ActionEndpoint, ListEndpoint):
    """List and schedule maintenance."""

    tag = "Nodes"
    what = "maintenance"
    shape = MAINTENANCE
    filters = {"name": query_params.text_filter("name"), "open": query_params.boolean_filter("is_open")}
    orderings = {"start_at": keyset.SortColumn(column="start_at", kind=datetime), "id": keyset.SORT_BY_ID}
    ordering = "-start_at"
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ,
            says="List the maintenance of a cluster, latest first",
            answer=MAINTENANCE,
            many=True,
            team=True,
        ),
        "POST": operator_rule(
            says="Schedule maintenance. Jobs that would run into it do not start on its nodes; a dry run lists them",
            body=MAINTENANCE_REQUEST,
            answer=MAINTENANCE_PREVIEW,
        ),
    }

    def rows(self, name: str) -> QuerySet[Maintenance]:
        rows = Maintenance.objects.filter(cluster=find_cluster(name))
        return rows.alias(is_open=Q(closed_at=None))

    def work(self, name: str) -> Response:
        table = {
            "name": parsing.text_reader(60),
            "reason": parsing.text_reader(MAX_REASON_LENGTH, lines=True),
            "nodes": parsing.text_reader(100_000),
            "start_at": parsing.read_timestamp,
            "end_at": parsing.read_timestamp,
            "mode": parsing.choice_reader(DrainMode.values),
            "lead_time": parsing.read_duration,
            "dry_run": parsing.read_bool,
        }
        body = self.body(table, "a maintenance")
        for field in ("name", "reason", "end_at"):
            if field not in body:
                raise InvalidField(field, "is required")
        dry, now, cluster = body.pop("dry_run", False), clock.now(), visible_cluster(name, self.caller)
        etags.check_if_match(self.request, CLUSTER_DETAIL.show(cluster), CLUSTER_DETAIL.observed)
        if "lead_time" in body and body["lead_time"] is None:
            raise InvalidField("lead_time", "must not be UNLIMITED: no job without a time limit could start")
        fields: dict[str, Any] = {"start_at": now, "lead_time": DEFAULT_RUN_TIME} | body
        window = MaintenanceRequest(**fields)
        impact = maintenance_actions.preview_maintenance(cluster, window, now)
        row = None if dry else maintenance_actions.schedule_maintenance(cluster, window, author=self.author, now=now)
        return Response(
            {
                "id": row.pk if row else None,
                "effect": impact.effect,
                "nodes": impact.nodes,
                "gpus": impact.gpus,
                "running": [running_job_row(affected) for affected in impact.running],
                "ending_before": impact.over_before,
                "waiting": impact.waiting,
                "waiting_gpus": impact.waiting_gpus,
            }
        )


class OneMaintenance(ChangeableDetailEndpoint):
    """Get one maintenance and change its end."""

    tag = "Nodes"
    shape = MAINTENANCE
    rules = {
        "GET": EndpointRule(scope=TokenScope.READ, says="Get one maintenance", answer=MAINTENANCE, team=True),
        "PATCH": operator_rule(says="Change the end of a maintenance", body=MAINTENANCE_END, answer=MAINTENANCE),
    }

    def row(self, name: str, number: int) -> Maintenance:
        return _find_maintenance(name, number)

    def changes(self) -> dict[str, Any]:
        body = self.body(
            {"end_at": parsing.read_timestamp, "reason": parsing.text_reader(MAX_REASON_LENGTH, lines=True)}, "an end"
        )
        if "end_at" not in body:
            raise InvalidField("end_at", "is required")
        return body

    def change(self, row: Maintenance, values: dict[str, Any]) -> None:
        maintenance_actions.change_maintenance_end(
            row, values["end_at"], author=self.author, why=values.get("reason", ""), now=clock.now()
        )


class CancelMaintenance(ActionEndpoint):
    """Cancel maintenance, or end it now."""

    tag = "Nodes"
    rules = {
        "POST": operator_rule(
            says="Cancel maintenance, or end it now, so that its nodes accept jobs again",
            body=MAINTENANCE_REASON,
            answer=MAINTENANCE,
        )
    }

    def work(self, name: str, number: int) -> Response:
        body = self.body({"reason": parsing.text_reader(MAX_REASON_LENGTH, lines=True)}, "the verb cancel")
        row = lock_unchanged_row(self.request, MAINTENANCE, lambda: _find_maintenance(name, number))
        maintenance_actions.cancel(row, author=self.author, why=body.get("reason", ""), now=clock.now())
        return Response(MAINTENANCE.show(_find_maintenance(name, number)))
