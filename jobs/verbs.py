"""What people do to a job: one table for the pages, the API and the admin console.

A verb says in which states it fits and what comes of it; who may use it is asked in `carry_out`. The console of last
resort does not ask: there Django's permissions have decided, and every act is an operator's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jobs import actions, foreign_actions, outcome_actions, readers
from jobs.journal import Author
from jobs.lifecycle import Flag, State
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
    of_outcome: bool = False  # has a button of its own where a page asks how the job ended
    in_lists: bool = True  # offered for many jobs at once on pages; the API offers every verb
    reaches_installations: bool = False  # operators of the cluster may use it on jobs of another Acme installation


def carry_out(verb: Verb, job: Job, wish: Wish, caller: Caller) -> None:
    """Raises NotAllowed, Moved or Forbidden, and has then changed nothing."""
    if verb.reaches_installations and job.installation:
        if not caller.operates:
            raise NotAllowed("It belongs to another Acme installation; this needs the right to operate clusters.")
    elif not caller.may_change(job):
        raise NotAllowed(caller.why_not(job, "It"))
    operates = caller.may_operate(job)
    if verb.takes_priority and wish.priority > max(0, job.priority) and not operates:
        raise NotAllowed("Only operators of the team raise a priority above 0.")
    # Who holds another's job does it as an operator: its owner cannot lift that hold
    as_operator = operates and (verb.name != "hold" or job.user_id != caller.user.pk)
    verb.act(job, wish, as_operator)


def verbs_for(job: Job, caller: Caller) -> list[Verb]:
    """What the caller may do to the job as it is now."""
    if job.is_foreign:
        reaches = bool(job.installation) and caller.operates
        return [verb for verb in VERBS.values() if reaches and verb.reaches_installations and verb.fits(job)]
    return [verb for verb in VERBS.values() if verb.fits(job)] if caller.may_change(job) else []


def _hold(job: Job, wish: Wish, operator: bool) -> None:
    actions.hold(job, author=wish.author, why=wish.why, operator=operator)


def _release(job: Job, wish: Wish, operator: bool) -> None:
    actions.release(job, author=wish.author, why=wish.why, operator=operator)


def _priority(job: Job, wish: Wish, operator: bool) -> None:
    actions.reprioritise(job, wish.priority, author=wish.author, why=wish.why)


def _requeue(job: Job, wish: Wish, operator: bool) -> None:
    actions.requeue(job, author=wish.author, why=wish.why)


def _cancel(job: Job, wish: Wish, operator: bool) -> None:
    if job.installation:
        foreign_actions.cancel_there(job, author=wish.author, why=wish.why)
    else:
        actions.cancel(job, author=wish.author, why=wish.why)


def _adopt(job: Job, wish: Wish, operator: bool) -> None:
    foreign_actions.take_over(job, author=wish.author, why=wish.why)


def _mark_succeeded(job: Job, wish: Wish, operator: bool) -> None:
    outcome_actions.mark_succeeded(job, author=wish.author, why=wish.why)


def _mark_failed(job: Job, wish: Wish, operator: bool) -> None:
    outcome_actions.mark_failed(job, author=wish.author, why=wish.why)


def _run_again(job: Job, wish: Wish, operator: bool) -> None:
    outcome_actions.run_again(job, author=wish.author, why=wish.why)


def _waits(job: Job) -> bool:
    return job.state == State.PENDING


def lacks_outcome(job: Job) -> bool:
    return _waits(job) and Flag.OUTCOME_UNKNOWN in job.flags


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
            fits=lambda job: _waits(job) and bool(job.hold) and not lacks_outcome(job),
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
            in_lists=False,
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
            reaches_installations=True,
        ),
        Verb(
            name="mark-succeeded",
            label="It succeeded",
            says="Record that a job whose outcome is unknown succeeded",
            effect="It becomes COMPLETED and does not run again.",
            tone="good",
            fits=lacks_outcome,
            act=_mark_succeeded,
            of_outcome=True,
            in_lists=False,
        ),
        Verb(
            name="mark-failed",
            label="It failed",
            says="Record that a job whose outcome is unknown failed",
            effect="It becomes FAILED and does not run again.",
            tone="bad",
            fits=lacks_outcome,
            act=_mark_failed,
            of_outcome=True,
            in_lists=False,
        ),
        Verb(
            name="run-again",
            label="Run again",
            says="Run a job again although its outcome is unknown",
            effect="It goes back to its place in the queue. If it did succeed, its command runs twice.",
            tone="warn",
            fits=lacks_outcome,
            act=_run_again,
            of_outcome=True,
            in_lists=False,
        ),
        Verb(
            name="adopt",
            label="Adopt",
            says="Take over a running job of another Acme installation",
            effect="This installation follows it from now on and can stop it. It is never started again.",
            tone="quiet",
            fits=lambda job: bool(job.installation) and job.is_live,
            act=_adopt,
            in_lists=False,
            reaches_installations=True,
        ),
    )
}
