"""Pages of jobs in which an array is one row: its newest task that fits the filters stands for all of them.

An array that is told is left out of the next question, so a page costs one statement for each array that fills it and
none for its tasks. An array that began on an earlier page is not told again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from django.db.models import Count, QuerySet

from jobs.core import lifecycle
from jobs.core.lifecycle import State
from jobs.models import Job


@dataclass(frozen=True, kw_only=True)
class ArrayTasks:
    """The tasks of an array that fit the filters."""

    count: int
    states: Sequence[tuple[lifecycle.StateBadge, int]]


def folded_job_page(found: QuerySet[Job], before: int | None, size: int) -> list[Job]:
    """Up to one row more than `size`, which says that there is another page."""
    rows: list[Job] = []
    told: set[str] = set()
    at = before
    while len(rows) <= size:
        wanted = size + 1 - len(rows)
        rest = found.exclude(array_id__in=told) if told else found
        chunk = list((rest if at is None else rest.filter(pk__lt=at)).order_by("-pk")[:wanted])
        older = _arrays_on_earlier_pages(found, chunk, before)
        for job in chunk:
            if job.array_id not in told | older:
                rows.append(job)
            told |= {job.array_id} - {""}
        if len(chunk) < wanted:
            break
        at = chunk[-1].pk
    return rows


def _arrays_on_earlier_pages(found: QuerySet[Job], chunk: Sequence[Job], before: int | None) -> set[str]:
    arrays = {job.array_id for job in chunk if job.array_id}
    if before is None or not arrays:
        return set()
    newer = found.order_by().filter(array_id__in=arrays, pk__gte=before)
    return set(newer.values_list("array_id", flat=True).distinct())


def array_tasks(found: QuerySet[Job], rows: Sequence[Job]) -> Mapping[str, ArrayTasks]:
    """By array, of the arrays among these rows that have more than one task that fits."""
    arrays = {job.array_id for job in rows if job.array_id}
    if not arrays:
        return {}
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    grouped = found.order_by().filter(array_id__in=arrays).values_list("array_id", "state").annotate(Count("pk"))
    for array, state, count in grouped:
        counts[array][state] += count
    return {array: _count_task_states(states) for array, states in counts.items() if states.total() > 1}


def _count_task_states(states: Counter[str]) -> ArrayTasks:
    shown = [(lifecycle.badge(State(state), []), count) for state, count in states.most_common()]
    return ArrayTasks(count=states.total(), states=shown)
