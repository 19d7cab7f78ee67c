"""Seen before: confirmed failures whose logs said nearly the same, as far as the one who asks may see them."""

from __future__ import annotations

from failures import rights
from failures.models import Case, Diagnosis
from jobs.door.rights import Caller

MOST = 5
ENOUGH = 0.5


def seen_before(row: Diagnosis, caller: Caller) -> list[Case]:
    """The nearest first; none while the bundle of this one is not stored yet."""
    case = Case.objects.filter(diagnosis=row).first()
    if case is None or not case.vector.any():
        return []
    mine = Case.objects.confirmed().filter(diagnosis__in=rights.diagnoses(caller).values("pk")).exclude(pk=case.pk)
    near = mine.nearest(case.vector).select_related("diagnosis__attempt__job", "diagnosis__incident")
    return [one for one in near.defer("diagnosis__bundle")[:MOST] if one.likeness >= ENOUGH]
