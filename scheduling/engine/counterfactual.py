"""The smallest change that would start a waiting job now, found by asking the engine that decides.

What might help is guessed (`guesses`). Each guess is tried, the cheapest first: the change is made to the Picture, and
the job must start in the turn that follows. So what is said is never wrong about the policy, however that thinks. Where
one change is not enough, two are tried together. The number of turns is bounded (`TRIES`), because each costs as much
as a live decision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from itertools import islice

from jobs.lifecycle import OUTCOME_UNKNOWN
from scheduling.engine.blockers import BlockerKind, Sees, gates
from scheduling.engine.changes import Change, Who, change, job_of, with_job
from scheduling.engine.cluster import Picture, WaitingJob
from scheduling.engine.guesses import Guesses
from scheduling.engine.live import decided
from scheduling.engine.rules import Rules

TRIES = 16
FIRST_STEPS = ("preemptible", "quota", "priority")  # where one change is not enough, these may get a second one
SECOND_STEPS = 4

NewRules = Callable[[], Rules]


def smallest_changes(
    picture: Picture, rules: NewRules, job_id: int, *, sees: Sees = lambda team: True, most: int = 3
) -> tuple[Change, ...]:
    """The cheapest first; empty if nothing that is tried would do, or if it starts anyway."""
    search = _Search(rules, job_id, sees)
    if not gates_of(picture, job_id) and search.starts(picture):
        return ()
    first = _lifted(picture, job_id)
    if first and search.starts(first.apply(picture)):
        return (first,)
    base = first.apply(picture) if first else picture
    found = list(islice(search.one(base), most)) or list(islice(search.two(base), most))
    return tuple(first.then(one) if first else one for one in found)


def starts(picture: Picture, rules: Rules, job_id: int) -> bool:
    opened = decided(picture, rules)
    stays = {job.number for job in opened.engine.started if job.places is not None}
    return any(job.number in stays for job, asked in opened.jobs if asked.id == job_id)


def gates_of(picture: Picture, job_id: int) -> list[BlockerKind]:
    return [gate.kind for gate in gates(job_of(picture, job_id), picture.now)]


def _lifted(picture: Picture, job_id: int) -> Change | None:
    """Nothing else matters while a hold, a dependency or its own begin time keep it out."""
    job = job_of(picture, job_id)
    lifts = [_lift(job, kind) for kind in gates_of(picture, job_id)]
    return reduce(Change.then, lifts) if lifts else None


def _lift(job: WaitingJob, kind: BlockerKind) -> Change:
    if kind == BlockerKind.HOLD:
        by = Who.OPERATOR if job.hold == "admin" else Who.OWNER
        if job.reason == OUTCOME_UNKNOWN:
            return change("run-again", by, 0.0, "somebody let it run again", with_job(job.id, hold=""))
        return change("release", by, 0.0, "it were released", with_job(job.id, hold=""))
    if kind == BlockerKind.BEGIN:
        return change("begin", Who.OWNER, 0.0, "it might begin at once", with_job(job.id, begin_at=None))
    names = job.waits_for[0] if len(job.waits_for) == 1 else f"the {len(job.waits_for)} jobs it waits for"
    return change("dependency", Who.TIME, 0.0, f"{names} had ended", with_job(job.id, waits_for=()))


class _Search:
    def __init__(self, rules: NewRules, job_id: int, sees: Sees) -> None:
        self._rules = rules
        self._job_id = job_id
        self._sees = sees
        self._left = TRIES

    def starts(self, picture: Picture) -> bool:
        self._left -= 1
        return self._left >= 0 and starts(picture, self._rules(), self._job_id)

    def guesses(self, picture: Picture) -> list[Change]:
        guesses = Guesses(picture, self._rules(), self._job_id, self._sees)
        return sorted(guesses.all(), key=lambda guess: (guess.cost, guess.phrase))

    def one(self, picture: Picture) -> Iterator[Change]:
        return (guess for guess in self.guesses(picture) if self.starts(guess.apply(picture)))

    def two(self, picture: Picture) -> Iterator[Change]:
        steps = [guess for guess in self.guesses(picture) if guess.kind in FIRST_STEPS]
        for step in steps:
            after = step.apply(picture)
            second = (guess for guess in self.guesses(after)[:SECOND_STEPS] if guess.kind != step.kind)
            if found := next((guess for guess in second if self.starts(guess.apply(after))), None):
                yield step.then(found)
