"""What people do to a job: one table for the pages, the API and the admin console.

A verb says in which states it fits and what comes of it; who may use it is asked in `carry_out`. The console of last
resort does not ask: there Django's permissions have decided, and every act is an operator's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jobs import actions, readers
from jobs.journal import Author
from jobs.lifecycle import State
from jobs.models import Job
from jobs.rights import Caller
from jobs.spec import HIGHEST_PRIORITY

PRIORITY = readers.whole(-HIGHEST_PRIORITY, HIGHEST_PRIORITY)


class NotAllowed(Exception):
    """They may see the job and may not change it so; the message is a sentence."""


@dataclass(frozen=True, kw_only=True)
class Wish:
    """Who wants it, and what the verb needs besides."""

    author: Author
    why: str = ""
    priority: int = 0


@dataclass(frozen=True, kw_only=True)
class Verb:
    name: str
    label: str
    says: str  # what it is, for a list of verbs
    effect: str  # what comes of it, next to the button
    tone: str
    fits: Callable[[Job], bool]
    act: Callable[[Job, Wish, bool], None]  # the bool: as an operator
    takes_priority: bool = False


def carry_out(verb: Verb, job: Job, wish: Wish, caller: Caller) -> None:
    """Raises NotAllowed, Moved or Forbidden, and has then changed nothing."""
    if not caller.may_change(job):
        raise NotAllowed(caller.why_not(job, "It"))
    operates = caller.may_operate(job)
    if verb.takes_priority and wish.priority > max(0, job.priority) and not operates:
        raise NotAllowed("Only operators of the team raise a priority above 0.")
    # Who holds another's job does it as an operator: its owner cannot lift that hold
    as_operator = operates and (verb.name != "hold" or job.user_id != caller.user.pk)
    verb.act(job, wish, as_operator)


def _hold(job: Job, wish: Wish, operator: bool) -> None:
    actions.hold(job, author=wish.author, why=wish.why, operator=operator)


def _release(job: Job, wish: Wish, operator: bool) -> None:
    actions.release(job, author=wish.author, why=wish.why, operator=operator)


def _priority(job: Job, wish: Wish, operator: bool) -> None:
    actions.reprioritise(job, wish.priority, author=wish.author, why=wish.why)


def _requeue(job: Job, wish: Wish, operator: bool) -> None:
    actions.requeue(job, author=wish.author, why=wish.why)


def _cancel(job: Job, wish: Wish, operator: bool) -> None:
    actions.cancel(job, author=wish.author, why=wish.why)


def _waits(job: Job) -> bool:
    return job.state == State.PENDING


VERBS = {
    verb.name: verb
    for verb in (
        Verb(
            name="hold",
            label="Hold",
            says="Keep a waiting job from starting",
            effect="It keeps its place in the queue and does not start before somebody releases it.",
            tone="quiet",
            fits=lambda job: _waits(job) and not job.hold,
            act=_hold,
        ),
        Verb(
            name="release",
            label="Release",
            says="Let a held job start again",
            effect="It may start again as soon as there is room.",
            tone="good",
            fits=lambda job: _waits(job) and bool(job.hold),
            act=_release,
        ),
        Verb(
            name="priority",
            label="Change priority",
            says="Change the priority of a waiting job",
            effect="It moves in the queue; higher goes first.",
            tone="quiet",
            fits=_waits,
            act=_priority,
            takes_priority=True,
        ),
        Verb(
            name="requeue",
            label="Requeue",
            says="Stop a running job and put it back at its place in the queue",
            effect="It is stopped, and goes back to its old place in the queue.",
            tone="warn",
            fits=lambda job: job.is_live,
            act=_requeue,
        ),
        Verb(
            name="cancel",
            label="Cancel",
            says="End a job: at once if it waits, otherwise by its cluster",
            effect="It ends for good. A job that runs is stopped by its cluster first.",
            tone="bad",
            fits=lambda job: not job.is_final,
            act=_cancel,
        ),
    )
}
