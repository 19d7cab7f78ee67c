"""The REST API of incidents."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db.models import QuerySet
from rest_framework.exceptions import PermissionDenied
from rest_framework.response import Response

from failures.actions import incidents as incident_actions
from failures.api import shapes
from failures.diagnosis.labels import LABELS
from failures.diagnosis.values import FailureCategory
from failures.incidents.grouping import IncidentScope
from failures.models import Incident, IncidentState
from failures.models import permissions as failure_permissions
from jobs.api.shapes import REASON_BODY
from jobs.core import parsing
from jobs.models import TokenScope, clock
from jobs.models.permissions import Caller
from jobs.queries import keyset
from jobs.rest import etags, query_params
from jobs.rest.endpoint import ActionEndpoint, DetailEndpoint, ListEndpoint, find_or_404
from jobs.rest.permissions import EndpointRule

MAX_INVOLVED = 200


def attach_involved_attempts(incident: Any, caller: Caller) -> Any:
    """Set `incident.involved` to the failed attempts that the caller may see, and return the incident."""
    rows = (
        failure_permissions.visible_diagnoses(caller)
        .filter(incident=incident)
        .select_related("attempt__job__team", "attempt__job__user")
    )
    incident.involved = [
        _InvolvedAttempt(row)
        for row in rows.defer("bundle", "evidence", "chain").order_by("failed_at", "id")[:MAX_INVOLVED]
    ]
    return incident


class _InvolvedAttempt:
    def __init__(self, row: Any) -> None:
        job = row.attempt.job
        self.id, self.job, self.team, self.user = row.attempt.key, job.public_id, job.team.name, job.user.username
        self.root_cause, self.failed_at, self.gpu_hours_lost = row.root_cause, row.failed_at, row.gpu_hours_lost


class Incidents(ListEndpoint):
    """Incidents: failures grouped by cause."""

    tag = "Failures"
    what = "incidents"
    shape = shapes.INCIDENT_SHAPE
    filters = {
        "id": query_params.integer_filter("id"),
        "cluster": query_params.text_filter("cluster__name"),
        "root_cause": query_params.choice_filter("root_cause", list(LABELS)),
        "category": query_params.choice_filter("category", [one.value for one in FailureCategory]),
        "scope": query_params.choice_filter("scope", [one.value for one in IncidentScope]),
        "state": query_params.choice_filter("state", IncidentState.values),
        "subject": query_params.text_filter("subject", "contains"),
        "first_symptom_at": query_params.datetime_filter("first_symptom_at"),
        "last_symptom_at": query_params.datetime_filter("last_symptom_at"),
    }
    orderings = {
        "id": keyset.SORT_BY_ID,
        "first_symptom_at": keyset.SortColumn(column="first_symptom_at", kind=datetime),
        "last_symptom_at": keyset.SortColumn(column="last_symptom_at", kind=datetime),
    }
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ,
            says="List the incidents that affect your teams",
            answer=shapes.INCIDENT_SHAPE,
            many=True,
        )
    }

    def rows(self) -> QuerySet[Incident]:
        return failure_permissions.visible_incidents(self.caller)

    def attach_computed_values(self, rows: list[Any], names: list[str]) -> None:
        if "involved" in names:
            for row in rows:
                attach_involved_attempts(row, self.caller)


def get_incident_row(caller: Caller, incident: int) -> Any:
    rows = shapes.INCIDENT_SHAPE.load(failure_permissions.visible_incidents(caller), shapes.INCIDENT_SHAPE.fields)
    return attach_involved_attempts(find_or_404(rows, "incident", pk=incident), caller)


class OneIncident(DetailEndpoint):
    """One incident."""

    tag = "Failures"
    shape = shapes.INCIDENT_SHAPE
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ,
            says="Show one incident with its nodes and attempts",
            answer=shapes.INCIDENT_SHAPE,
            team=True,
        )
    }

    def row(self, incident: int) -> Any:
        return get_incident_row(self.caller, incident)


def _incident_verb(name: str, says: str, act: Any) -> type[ActionEndpoint]:
    def work(self: Any, incident: int) -> Response:
        values = self.body({"reason": parsing.text_reader(1000, lines=True)}, f"the verb {name}")
        row = get_incident_row(self.caller, incident)
        if not failure_permissions.may_handle_incident(self.caller, row):
            raise PermissionDenied("Only operators and the owners of the failed jobs can do this.")
        locked = Incident.objects.select_for_update(of=("self",)).select_related("lead__attempt__job").get(pk=row.pk)
        etags.check_if_match(self.request, shapes.INCIDENT_SHAPE.show(get_incident_row(self.caller, incident)))
        act(locked, author=self.author, now=clock.now(), why=values.get("reason", ""))
        representation = shapes.INCIDENT_SHAPE.show(get_incident_row(self.caller, incident))
        return Response(representation, headers={"ETag": etags.etag(representation)})

    rule = EndpointRule(
        scope=TokenScope.SUBMIT, says=says, body=REASON_BODY, answer=shapes.INCIDENT_SHAPE, conflicts=True, team=True
    )  # fmt: skip
    return type(
        f"{name.title()}Incident", (ActionEndpoint,), {"tag": "Failures", "rules": {"POST": rule}, "work": work}
    )


AcknowledgeIncident = _incident_verb("acknowledge", "Acknowledge an incident", incident_actions.acknowledge)
ResolveIncident = _incident_verb("resolve", "Resolve an incident", incident_actions.resolve)
