"""Similar failures: confirmed failures with nearly the same log, restricted to those that the caller may see."""

from __future__ import annotations

from failures.models import Diagnosis, PastFailure
from failures.models import permissions as failure_permissions
from jobs.rest.permissions import Caller

MAX_SIMILAR = 5
MIN_LIKENESS = 0.5


def similar_confirmed_cases(row: Diagnosis, caller: Caller) -> list[PastFailure]:
    """The similar cases, nearest first; empty until the bundle of this diagnosis is stored."""
    case = PastFailure.objects.filter(diagnosis=row).first()
    if case is None or not case.vector.any():
        return []
    visible = (
        PastFailure.objects.confirmed()
        .filter(diagnosis__in=failure_permissions.visible_diagnoses(caller).values("pk"))
        .exclude(pk=case.pk)
    )
    near = visible.nearest(case.vector).select_related("diagnosis__attempt__job", "diagnosis__incident")
    return [similar for similar in near.defer("diagnosis__bundle")[:MAX_SIMILAR] if similar.similarity >= MIN_LIKENESS]
