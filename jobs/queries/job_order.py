"""The orders of the job list, each read from an index, and the positions in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Q, QuerySet

from jobs.models import Job
from jobs.models.job import TOTAL_GPUS
from jobs.queries import keyset
from jobs.queries.keyset import SORT_BY_ID, SortColumn, SortKey

DEFAULT_JOB_SORT = "-id"
# A column belongs here only if an index has its order: a page of a million jobs must not sort them
JOB_SORTS: Mapping[str, SortColumn] = {
    "id": SORT_BY_ID,
    "name": SortColumn(column="name"),
    "gpus": SortColumn(column="total_gpus", kind=int),
    "priority": SortColumn(column="priority", kind=int),
    "submitted": SortColumn(column="submitted_at", kind=datetime),
    "started": SortColumn(column="started_at", kind=datetime, nullable=True),
    "ended": SortColumn(column="ended_at", kind=datetime, nullable=True),
}
JOB_SORT_CHOICES = [sign + name for name in JOB_SORTS for sign in ("", "-")]


@dataclass(frozen=True)
class JobOrder:
    """One of the orders. A position is the sort values of a job."""

    sort: str = DEFAULT_JOB_SORT

    @property
    def keys(self) -> list[SortKey]:
        return keyset.sort_keys(JOB_SORTS, [self.sort])

    def rows_after(self, jobs: QuerySet[Job], place: Sequence[Any] | None, most: int) -> list[Job]:
        """Up to `most` jobs after the position; the first ones without a position."""
        return keyset.rows_after(jobs.annotate(total_gpus=TOTAL_GPUS), self.keys, place, most)

    def up_to(self, jobs: QuerySet[Job], place: Sequence[Any]) -> QuerySet[Job]:
        """The jobs before the position and the one at it."""
        before = keyset.condition_after(self.keys, place, backwards=True)
        return jobs.alias(total_gpus=TOTAL_GPUS).filter(before | Q(pk=place[-1]))

    def position(self, job: Job) -> list[Any]:
        return keyset.position(self.keys, job)

    def cursor(self, job: Job) -> str:
        """The position of a job as text. The order of ids is the default, and its cursor is the id."""
        place = self.position(job)
        return str(place[0]) if self.sort == DEFAULT_JOB_SORT else keyset.encode_cursor(self.sort, False, place)

    def place(self, field: str, cursor: str) -> list[Any]:
        """The position that a cursor of this order names."""
        return keyset.decode_cursor(field, cursor, self.sort, self.keys)[1]
