"""Incidents through the programs' door."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db.models import QuerySet
from rest_framework.exceptions import PermissionDenied
from rest_framework.response import Response

from failures import actions, rights
from failures.api import shapes
from failures.diagnosis.labels import LABELS
from failures.diagnosis.values import Category
from failures.grouping import Scope as Reach
from failures.models import Incident, Standing
from jobs import clock, readers
from jobs.api.shapes import WHY
from jobs.door import pages, query, versions
from jobs.door.endpoint import Detail, Listing, Verb, found
from jobs.door.errors import Conflict
from jobs.door.rights import Rule
from jobs.models import Scope
from jobs.rights import Caller

MOST_INVOLVED = 200


def with_involved(incident: Any, caller: Caller) -> Any:
    """The attempts that the caller may see."""
    rows = rights.diagnoses(caller).filter(incident=incident).select_related("attempt__job__team", "attempt__job__user")
    incident.involved = [
        _Involved(row) for row in rows.defer("bundle", "evidence", "chain").order_by("failed_at", "id")[:MOST_INVOLVED]
    ]
    return incident


class _Involved:
    def __init__(self, row: Any) -> None:
        job = row.attempt.job
        self.id, self.job, self.team, self.user = row.attempt.key, job.public_id, job.team.name, job.user.username
        self.root_cause, self.failed_at, self.gpu_hours_lost = row.root_cause, row.failed_at, row.gpu_hours_lost


class Incidents(Listing):
    """What went wrong."""

    tag = "Failures"
    what = "incidents"
    shape = shapes.INCIDENT
    filters = {
        "id": query.number("id"),
        "cluster": query.text("cluster__name"),
        "root_cause": query.choice("root_cause", list(LABELS)),
        "category": query.choice("category", [one.value for one in Category]),
        "scope": query.choice("scope", [one.value for one in Reach]),
        "state": query.choice("state", Standing.values),
        "subject": query.text("subject", "contains"),
        "first_symptom_at": query.moment("first_symptom_at"),
        "last_symptom_at": query.moment("last_symptom_at"),
    }
    orderings = {
        "id": pages.ID,
        "first_symptom_at": pages.Sort(column="first_symptom_at", kind=datetime),
        "last_symptom_at": pages.Sort(column="last_symptom_at", kind=datetime),
    }
    rules = {"GET": Rule(scope=Scope.READ, says="Incidents that touched your teams", answer=shapes.INCIDENT, many=True)}

    def rows(self) -> QuerySet[Incident]:
        return rights.incidents(self.caller)

    def complete(self, rows: list[Any], names: list[str]) -> None:
        if "involved" in names:
            for row in rows:
                with_involved(row, self.caller)


def whole(caller: Caller, incident: int) -> Any:
    rows = shapes.INCIDENT.load(rights.incidents(caller), shapes.INCIDENT.fields)
    return with_involved(found(rows, "incident", pk=incident), caller)


class OneIncident(Detail):
    """One incident."""

    tag = "Failures"
    shape = shapes.INCIDENT
    rules = {"GET": Rule(scope=Scope.READ, says="One incident, with its nodes", answer=shapes.INCIDENT, team=True)}

    def row(self, incident: int) -> Any:
        return whole(self.caller, incident)


def _verb(name: str, says: str, act: Any) -> type[Verb]:
    def work(self: Any, incident: int) -> Response:
        asked = self.body({"reason": readers.text(1000, lines=True)}, f"the verb {name}")
        row = whole(self.caller, incident)
        if not rights.may_handle(self.caller, row):
            raise PermissionDenied("Operators, and the owners of its jobs, do that.")
        locked = Incident.objects.select_for_update(of=("self",)).select_related("lead__attempt__job").get(pk=row.pk)
        versions.refuse_stale(self.request, shapes.INCIDENT.show(whole(self.caller, incident)))
        try:
            act(locked, author=self.author, now=clock.now(), why=asked.get("reason", ""))
        except actions.Moved as moved:
            raise Conflict(str(moved)) from None
        shown = shapes.INCIDENT.show(whole(self.caller, incident))
        return Response(shown, headers={"ETag": versions.etag(shown)})

    rule = Rule(
        scope=Scope.SUBMIT, says=says, body=WHY, answer=shapes.INCIDENT, conflicts=True, team=True
    )  # fmt: skip
    return type(f"{name.title()}Incident", (Verb,), {"tag": "Failures", "rules": {"POST": rule}, "work": work})


AcknowledgeIncident = _verb("acknowledge", "Say that somebody is at it", actions.acknowledge)
ResolveIncident = _verb("resolve", "Say that it is over", actions.resolve)
