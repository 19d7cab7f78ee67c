"""Maintenance through the programs' door: declare it, move its end, call it off."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import Q, QuerySet
from rest_framework.response import Response

from jobs import clock, maintenance_actions, readers
from jobs.api.jobs import LONGEST_REASON
from jobs.api.nodes import held
from jobs.api.places import cluster_row
from jobs.api.shapes import CLUSTER_DETAIL, HELD
from jobs.door import pages, query, versions
from jobs.door.endpoint import Detail, Listing, Verb, as_it_is, found, locked, refuse_unknown
from jobs.door.errors import BadField
from jobs.door.rights import Rule
from jobs.door.shapes import Field, Shape, many, moment, number, seconds, text, truth
from jobs.maintenance_actions import Wanted
from jobs.models import Cluster, DrainMode, Maintenance, Scope
from jobs.models.maintenance import LEAD

PHASES = ("planned", "going on", "over", "cancelled")
MODES = "When it begins running jobs finish, are requeued after their next checkpoint, or are requeued now."

FIELDS: dict[str, Field] = {
    "id": number(),
    "name": text(),
    "reason": text(),
    "phase": text(
        choices=PHASES,
        get=lambda row: row.phase(clock.now()),
        needs=("cancelled_at", "closed_at", "start_at", "end_at"),
    ),
    "whole_cluster": truth("Also nodes that it reports later."),
    "nodes": Field(
        schema={"type": "array", "items": {"type": "string"}, "description": "Empty: the whole cluster."},
        get=lambda row: sorted(node.name for node in row.nodes.all()),
        needs=(),
        joins=("nodes",),
    ),
    "start_at": moment(),
    "end_at": moment(),
    "mode": text(MODES, choices=DrainMode.values),
    "lead": seconds("Jobs without a time limit do not start there so long before."),
    "by": text(),
    "created_at": moment(),
    "begun_at": moment("The first node was closed.", nullable=True),
    "cancelled_at": moment(nullable=True),
    "closed_at": moment("Its nodes take work again.", nullable=True),
}
MAINTENANCE = Shape("Maintenance", FIELDS)
WISH = Shape(
    "MaintenanceRequest",
    {
        "name": text("No other open one of the cluster has it."),
        "reason": text("People whose jobs wait for it read it."),
        "nodes": text("As Slurm writes them: gpu[001-016]. Left out: the whole cluster.", required=False),
        "start_at": moment("Left out: now.", required=False),
        "end_at": moment(),
        "mode": text(MODES, choices=DrainMode.values, required=False),
        "lead": Field(
            schema={"type": ["integer", "string"], "description": "Seconds or D-HH:MM:SS; a day if left out."},
            required=False,
        ),
        "dry_run": truth("Say what it would mean, and change nothing.", required=False),
    },
    example={
        "name": "cooling",
        "reason": "new pumps in row 3",
        "nodes": "gpu[001-016]",
        "start_at": "2100-01-31T22:00:00Z",
        "end_at": "2100-02-01T04:00:00Z",
    },
)
AHEAD = Shape(
    "MaintenanceAhead",
    {
        "id": number("Null for a dry run.", nullable=True),
        "effect": text("What it means, as sentences."),
        "nodes": number(),
        "gpus": number(),
        "running": many(HELD, "Jobs that may still be there when it begins; gpus counts those on its nodes."),
        "over_before": number("Running jobs whose time limits end before."),
        "waiting": number("Jobs that are too long to be over before, by their time limits."),
        "waiting_gpus": number(),
    },
)
LATER = Shape("MaintenanceEnd", {"end_at": moment(), "reason": text(required=False)})
WHY = Shape("MaintenanceWhy", {"reason": text(required=False)})


def _cluster(name: str) -> Cluster:
    row: Cluster = found(Cluster.objects.all(), "cluster", name=name)
    return row


def _one(cluster: str, number: int) -> Maintenance:
    rows = Maintenance.objects.select_related("cluster").prefetch_related("nodes")
    row: Maintenance = found(rows.filter(cluster__name=cluster), "maintenance", pk=number)
    return row


class Maintenances(Verb, Listing):
    """When nodes of a cluster are wanted empty."""

    tag = "Nodes"
    what = "maintenance"
    shape = MAINTENANCE
    filters = {"name": query.text("name"), "open": query.truth("is_open")}
    orderings = {"start_at": pages.Sort(column="start_at", kind=datetime), "id": pages.ID}
    ordering = "-start_at"
    rules = {
        "GET": Rule(
            scope=Scope.READ,
            says="Maintenance of a cluster, the latest first",
            answer=MAINTENANCE,
            many=True,
            team=True,
        ),
        "POST": Rule(
            scope=Scope.OPERATE,
            says="Declare a maintenance: jobs that would reach into it do not start there. A dry run shows which",
            body=WISH,
            answer=AHEAD,
            operator=True,
            conflicts=True,
            team=True,
        ),
    }

    def rows(self, name: str) -> QuerySet[Maintenance]:
        rows = Maintenance.objects.filter(cluster=_cluster(name))
        return rows.alias(is_open=Q(closed_at=None))

    def work(self, name: str) -> Response:
        table = {
            "name": readers.text(60),
            "reason": readers.text(LONGEST_REASON, lines=True),
            "nodes": readers.text(100_000),
            "start_at": readers.moment,
            "end_at": readers.moment,
            "mode": readers.one_of(DrainMode.values),
            "lead": readers.duration,
            "dry_run": readers.truth,
        }
        asked = self.body(table, "a maintenance")
        for field in ("name", "reason", "end_at"):
            if field not in asked:
                raise BadField(field, "is needed")
        dry, now, cluster = asked.pop("dry_run", False), clock.now(), cluster_row(name, self.caller)
        versions.refuse_stale(self.request, CLUSTER_DETAIL.show(cluster), CLUSTER_DETAIL.observed)
        if "lead" in asked and asked["lead"] is None:
            raise BadField("lead", "is UNLIMITED: then no job without a time limit would ever start there")
        fields: dict[str, Any] = {"start_at": now, "lead": LEAD} | asked
        wanted = Wanted(**fields)
        ahead = maintenance_actions.ahead(cluster, wanted, now)
        row = None if dry else maintenance_actions.declare(cluster, wanted, author=self.author, now=now)
        return Response(
            {
                "id": row.pk if row else None,
                "effect": ahead.effect,
                "nodes": ahead.nodes,
                "gpus": ahead.gpus,
                "running": [held(one) for one in ahead.running],
                "over_before": ahead.over_before,
                "waiting": ahead.waiting,
                "waiting_gpus": ahead.waiting_gpus,
            }
        )


class OneMaintenance(Detail):
    """One maintenance."""

    tag = "Nodes"
    shape = MAINTENANCE
    rules = {
        "GET": Rule(scope=Scope.READ, says="One maintenance", answer=MAINTENANCE, team=True),
        "PATCH": Rule(
            scope=Scope.OPERATE,
            says="Move the end of a maintenance",
            body=LATER,
            answer=MAINTENANCE,
            operator=True,
            conflicts=True,
            team=True,
        ),
    }

    def row(self, name: str, number: int) -> Maintenance:
        return _one(name, number)

    def patch(self, request: Any, name: str, number: int) -> Response:
        refuse_unknown(request)
        asked = self.body({"end_at": readers.moment, "reason": readers.text(LONGEST_REASON, lines=True)}, "an end")
        if "end_at" not in asked:
            raise BadField("end_at", "is needed")
        with transaction.atomic():
            row = locked(request, MAINTENANCE, lambda: _one(name, number))
            why = asked.get("reason", "")
            maintenance_actions.move_end(row, asked["end_at"], author=self.author, why=why, now=clock.now())
        return as_it_is(MAINTENANCE, _one(name, number))


class CancelMaintenance(Verb):
    """Call it off, or end it now."""

    tag = "Nodes"
    rules = {
        "POST": Rule(
            scope=Scope.OPERATE,
            says="Call a maintenance off, or end it now: its nodes take work again",
            body=WHY,
            answer=MAINTENANCE,
            operator=True,
            conflicts=True,
            team=True,
        )
    }

    def work(self, name: str, number: int) -> Response:
        asked = self.body({"reason": readers.text(LONGEST_REASON, lines=True)}, "the verb cancel")
        row = locked(self.request, MAINTENANCE, lambda: _one(name, number))
        maintenance_actions.cancel(row, author=self.author, why=asked.get("reason", ""), now=clock.now())
        return Response(MAINTENANCE.show(_one(name, number)))
