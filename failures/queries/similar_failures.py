"""Seen before: confirmed failures whose logs said nearly the same, as far as the one who asks may see them."""

from __future__ import annotations

from failures.models import Case, Diagnosis
from failures.models import permissions as failure_permissions
from jobs.rest.permissions import Caller

MAX_SIMILAR = 5
MIN_LIKENESS = 0.5


def similar_confirmed_cases(row: Diagnosis, caller: Caller) -> list[Case]:
    """The nearest first; none while the bundle of this one is not stored yet."""
    case = Case.objects.filter(diagnosis=row).first()
    if case is None or not case.vector.any():
        return []
    mine = (
        Case.objects.confirmed()
        .filter(diagnosis__in=failure_permissions.visible_diagnoses(caller).values("pk"))
        .exclude(pk=case.pk)
    )
    near = mine.nearest(case.vector).select_related("diagnosis__attempt__job", "diagnosis__incident")
    return [one for one in near.defer("diagnosis__bundle")[:MAX_SIMILAR] if one.likeness >= MIN_LIKENESS]
