"""One verb on many jobs: each for itself, so that what cannot be done to one of them stops no other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from django.db import transaction
from django.db.models import Q, QuerySet

from jobs import actions
from jobs.lifecycle import Forbidden
from jobs.models import Job
from jobs.rights import Caller
from jobs.verbs import NotAllowed, Verb, Wish, carry_out

MOST_VERBS = 1000


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """`error` is empty where it was done, or would be."""

    job: Job
    error: str = ""


class _Rehearsed(Exception):
    """The end of a dry run: what it did is rolled back."""


def called(rows: QuerySet[Job], ids: Iterable[str]) -> QuerySet[Job]:
    """By id, or all tasks of an array by the array's."""
    return rows.filter(Q(public_id__in=ids) | (Q(array_id__in=ids) & ~Q(array_id="")))


def in_turn(rows: QuerySet[Job]) -> Sequence[Job]:
    """The oldest first, and always in the same order, so that two who do this do not wait for each other; one more
    than `MOST_VERBS`, which says that there are more."""
    return list(rows.order_by("id")[: MOST_VERBS + 1])


def tried(verb: Verb, job: Job, wish: Wish, caller: Caller, *, dry: bool) -> Outcome:
    try:
        with transaction.atomic():
            carry_out(verb, job, wish, caller)
            if dry:
                raise _Rehearsed
    except _Rehearsed:
        return Outcome(job=job)
    except (actions.Moved, Forbidden, NotAllowed) as error:
        return Outcome(job=job, error=str(error))
    return Outcome(job=job)
