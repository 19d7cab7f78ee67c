"""Pages of jobs in which an array is one row: its newest task that matches the filters represents all of them.

An array that is already on the page is excluded from the next query, so a page costs one statement per array and none
per task. An array that was on an earlier page is not repeated.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Count, QuerySet

from jobs.core import lifecycle
from jobs.core.lifecycle import State
from jobs.models import Job
from jobs.queries.job_order import JobOrder


@dataclass(frozen=True, kw_only=True)
class ArrayTasks:
    """The tasks of an array that match the filters."""

    count: int
    states: Sequence[tuple[lifecycle.StateBadge, int]]


def folded_job_page(jobs: QuerySet[Job], order: JobOrder, place: Sequence[Any] | None, size: int) -> list[Job]:
    """Return up to `size` + 1 rows after the position; the extra row shows that there is another page."""
    rows: list[Job] = []
    shown_arrays: set[str] = set()
    at = place
    while len(rows) <= size:
        missing = size + 1 - len(rows)
        remaining = jobs.exclude(array_id__in=shown_arrays) if shown_arrays else jobs
        chunk = order.rows_after(remaining, at, missing)
        # An array whose first task was on an earlier page must not appear again
        older = _arrays_on_earlier_pages(jobs, order, chunk, place)
        for job in chunk:
            if job.array_id not in shown_arrays | older:
                rows.append(job)
            shown_arrays |= {job.array_id} - {""}
        if len(chunk) < missing:
            break
        at = order.position(chunk[-1])
    return rows


def _arrays_on_earlier_pages(
    jobs: QuerySet[Job], order: JobOrder, chunk: Sequence[Job], place: Sequence[Any] | None
) -> set[str]:
    arrays = {job.array_id for job in chunk if job.array_id}
    if place is None or not arrays:
        return set()
    earlier = order.up_to(jobs.order_by().filter(array_id__in=arrays), place)
    return set(earlier.values_list("array_id", flat=True).distinct())


def array_tasks(jobs: QuerySet[Job], rows: Sequence[Job]) -> Mapping[str, ArrayTasks]:
    """Return the matching tasks of each array among these rows that has more than one."""
    arrays = {job.array_id for job in rows if job.array_id}
    if not arrays:
        return {}
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    grouped = jobs.order_by().filter(array_id__in=arrays).values_list("array_id", "state").annotate(Count("pk"))
    for array, state, count in grouped:
        counts[array][state] += count
    return {array: _count_task_states(states) for array, states in counts.items() if states.total() > 1}


def _count_task_states(states: Counter[str]) -> ArrayTasks:
    badges = [(lifecycle.badge(State(state), []), count) for state, count in states.most_common()]
    return ArrayTasks(count=states.total(), states=badges)
