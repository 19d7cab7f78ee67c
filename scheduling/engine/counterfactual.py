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

from jobs.core.lifecycle import OUTCOME_UNKNOWN
from scheduling.engine.blockers import BlockerKind, CanSeeTeam, gate_blockers
from scheduling.engine.changes import ChangeActor, SuggestedChange, find_waiting_job, make_change, with_job_fields
from scheduling.engine.cluster import ClusterSnapshot, WaitingJob
from scheduling.engine.guesses import ChangeGuesses
from scheduling.engine.live import engine_after_turn
from scheduling.engine.rules import PolicyRules

MAX_TRIES = 16
FIRST_STEP_KINDS = ("preemptible", "quota", "priority")  # where one change is not enough, these may get a second one
MAX_SECOND_STEPS = 4

RulesFactory = Callable[[], PolicyRules]


def smallest_changes(
    picture: ClusterSnapshot, rules: RulesFactory, job_id: int, *, sees: CanSeeTeam = lambda team: True, most: int = 3
) -> tuple[SuggestedChange, ...]:
    """The cheapest first; empty if nothing that is tried would do, or if it starts anyway."""
    search = _ChangeSearch(rules, job_id, sees)
    if not gate_kinds(picture, job_id) and search.starts(picture):
        return ()
    first = _lift_gates(picture, job_id)
    if first and search.starts(first.apply(picture)):
        return (first,)
    base = first.apply(picture) if first else picture
    found = list(islice(search.one(base), most)) or list(islice(search.two(base), most))
    return tuple(first.then(one) if first else one for one in found)


def job_starts(picture: ClusterSnapshot, rules: PolicyRules, job_id: int) -> bool:
    opened = engine_after_turn(picture, rules)
    stays = {job.number for job in opened.engine.started if job.places is not None}
    return any(job.number in stays for job, asked in opened.jobs if asked.id == job_id)


def gate_kinds(picture: ClusterSnapshot, job_id: int) -> list[BlockerKind]:
    return [gate.kind for gate in gate_blockers(find_waiting_job(picture, job_id), picture.now)]


def _lift_gates(picture: ClusterSnapshot, job_id: int) -> SuggestedChange | None:
    """Nothing else matters while a hold, a dependency or its own begin time keep it out."""
    job = find_waiting_job(picture, job_id)
    lifts = [_lift_gate(job, kind) for kind in gate_kinds(picture, job_id)]
    return reduce(SuggestedChange.then, lifts) if lifts else None


def _lift_gate(job: WaitingJob, kind: BlockerKind) -> SuggestedChange:
    if kind == BlockerKind.HOLD:
        by = ChangeActor.OPERATOR if job.hold == "admin" else ChangeActor.OWNER
        if job.reason == OUTCOME_UNKNOWN:
            return make_change("run-again", by, 0.0, "somebody let it run again", with_job_fields(job.id, hold=""))
        return make_change("release", by, 0.0, "it were released", with_job_fields(job.id, hold=""))
    if kind == BlockerKind.BEGIN:
        return make_change(
            "begin", ChangeActor.OWNER, 0.0, "it might begin at once", with_job_fields(job.id, begin_at=None)
        )
    names = job.waits_for[0] if len(job.waits_for) == 1 else f"the {len(job.waits_for)} jobs it waits for"
    return make_change("dependency", ChangeActor.TIME, 0.0, f"{names} had ended", with_job_fields(job.id, waits_for=()))


class _ChangeSearch:
    def __init__(self, rules: RulesFactory, job_id: int, sees: CanSeeTeam) -> None:
        self._rules = rules
        self._job_id = job_id
        self._sees = sees
        self._left = MAX_TRIES

    def starts(self, picture: ClusterSnapshot) -> bool:
        self._left -= 1
        return self._left >= 0 and job_starts(picture, self._rules(), self._job_id)

    def sorted_guesses(self, picture: ClusterSnapshot) -> list[SuggestedChange]:
        guesses = ChangeGuesses(picture, self._rules(), self._job_id, self._sees)
        return sorted(guesses.all(), key=lambda guess: (guess.cost, guess.phrase))

    def one(self, picture: ClusterSnapshot) -> Iterator[SuggestedChange]:
        return (guess for guess in self.sorted_guesses(picture) if self.starts(guess.apply(picture)))

    def two(self, picture: ClusterSnapshot) -> Iterator[SuggestedChange]:
        steps = [guess for guess in self.sorted_guesses(picture) if guess.kind in FIRST_STEP_KINDS]
        for step in steps:
            after = step.apply(picture)
            second = (guess for guess in self.sorted_guesses(after)[:MAX_SECOND_STEPS] if guess.kind != step.kind)
            if found := next((guess for guess in second if self.starts(guess.apply(after))), None):
                yield step.then(found)
