"""Loads the inputs of `grouping`: a failure as a symptom, and the incidents it may belong to. Read-only."""

from __future__ import annotations

from django.db.models import Exists, OuterRef, Q

from failures.incidents import grouping
from failures.incidents.grouping import FailureSymptom, IncidentScope, OpenIncident
from failures.models import Diagnosis, Incident


def symptom_of(row: Diagnosis) -> FailureSymptom:
    attempt = row.attempt
    ran_on = attempt.allocations.order_by().values_list("node__name", flat=True).distinct()
    first = row.evidence[0]["text"] if row.evidence else ""
    return FailureSymptom(
        root_cause=row.root_cause,
        at=row.failed_at,
        job=attempt.job.array_id or attempt.job.public_id,
        nodes=frozenset(ran_on),
        suspects=frozenset(row.nodes.values_list("name", flat=True)),
        words=grouping.shape_of_line(first),
    )


def candidates(cluster_id: int, symptom: FailureSymptom) -> list[OpenIncident]:
    """Unresolved incidents that the symptom may join by place, cause and time; at most 200, newest first."""
    since = symptom.at - grouping.LONGEST_JOIN_WINDOW
    recent = Incident.objects.unresolved().filter(cluster_id=cluster_id, last_symptom_at__gte=since)
    newest = recent.filter(_may_join(symptom)).order_by("-last_symptom_at").prefetch_related("nodes")[:200]
    jobs: dict[int, set[str]] = {}
    diagnoses = Diagnosis.objects.filter(incident__in=[row.pk for row in newest])
    for pk, job, array in diagnoses.values_list("incident_id", "attempt__job__public_id", "attempt__job__array_id"):
        jobs.setdefault(pk, set()).add(array or job)
    return [
        OpenIncident(
            id=row.pk,
            root_cause=row.root_cause,
            scope=IncidentScope(row.scope),
            first_at=row.first_symptom_at,
            last_at=row.last_symptom_at,
            nodes=frozenset(node.name for node in row.nodes.all()),
            jobs=frozenset(jobs.get(row.pk, ())),
            words=row.words,
        )
        for row in newest
    ]


def _may_join(symptom: FailureSymptom) -> Q:
    """A filter for the incidents that `grouping` may accept. It only preselects rows; `grouping` decides."""
    matches_job = Q(attempt__job__public_id=symptom.job) | Q(attempt__job__array_id=symptom.job)
    same_job = Diagnosis.objects.filter(matches_job, incident=OuterRef("pk"))
    same_node = Incident.nodes.through.objects.filter(incident=OuterRef("pk"), node__name__in=symptom.nodes)
    same_cause = Q(root_cause=symptom.root_cause)
    at_same_node = Q(scope=IncidentScope.NODE) & Exists(same_node)
    return at_same_node | same_cause & (Q(scope=IncidentScope.SERVICE) | Q(scope=IncidentScope.JOB) & Exists(same_job))
