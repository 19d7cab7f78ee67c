"""Find the smallest change that would start a waiting job now, by trying changes on the engine that decides.

`proposals` has changes that might help. Each is tried, the cheapest first: it is applied to the snapshot, and the
job must start in the following turn. The result is therefore always true for the configured policy. If no single change
is enough, pairs are tried. `MAX_TRIES` bounds the number of turns, because each costs as much as a live decision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from itertools import islice

from jobs.core.lifecycle import OUTCOME_UNKNOWN
from scheduling.engine.blockers import BlockerKind, CanSeeTeam
from scheduling.engine.changes import ChangeActor, SuggestedChange, find_waiting_job, make_change, with_job_fields
from scheduling.engine.cluster import ClusterSnapshot, WaitingJob
from scheduling.engine.engine import PolicyRules
from scheduling.engine.live import engine_after_turn
from scheduling.engine.proposals import ChangeProposals

MAX_TRIES = 16
FIRST_STEP_KINDS = (
    "preemptible",
    "quota",
    "priority",
)  # if no single change is enough, these may be combined with a second
MAX_SECOND_STEPS = 4

RulesFactory = Callable[[], PolicyRules]


def smallest_changes(
    snapshot: ClusterSnapshot, rules: RulesFactory, job_id: int, *, sees: CanSeeTeam = lambda team: True, most: int = 3
) -> tuple[SuggestedChange, ...]:
    """Up to `most` changes, the cheapest first. Empty if no tried change helps or the job starts anyway."""
    search = _ChangeSearch(rules, job_id, sees)
    if not gate_kinds(snapshot, job_id) and search.starts(snapshot):
        return ()
    gates = _lift_gates(snapshot, job_id)
    if gates and search.starts(gates.apply(snapshot)):
        return (gates,)
    ungated = gates.apply(snapshot) if gates else snapshot
    changes = list(islice(search.one(ungated), most)) or list(islice(search.two(ungated), most))
    return tuple(gates.then(change) if gates else change for change in changes)


def job_starts(snapshot: ClusterSnapshot, rules: PolicyRules, job_id: int) -> bool:
    """Whether the job starts in a turn on this snapshot and is not preempted in the same turn."""
    state = engine_after_turn(snapshot, rules)
    stays = {job.number for job in state.engine.started_jobs if job.places is not None}
    return any(job.number in stays for job, waiting in state.jobs if waiting.id == job_id)


def gate_kinds(snapshot: ClusterSnapshot, job_id: int) -> list[BlockerKind]:
    """The gates that keep the job from starting regardless of free resources."""
    return [gate.kind for gate in find_waiting_job(snapshot, job_id).gate_blockers(snapshot.now)]


def _lift_gates(snapshot: ClusterSnapshot, job_id: int) -> SuggestedChange | None:
    """The change that lifts all gates, or None. Nothing else matters while a gate keeps the job out."""
    job = find_waiting_job(snapshot, job_id)
    lifts = [_lift_gate(job, kind) for kind in gate_kinds(snapshot, job_id)]
    return reduce(SuggestedChange.then, lifts) if lifts else None


def _lift_gate(job: WaitingJob, kind: BlockerKind) -> SuggestedChange:
    if kind == BlockerKind.HOLD:
        by = ChangeActor.OPERATOR if job.hold == "admin" else ChangeActor.OWNER
        if job.reason == OUTCOME_UNKNOWN:
            return make_change("run-again", by, 0.0, "it were allowed to run again", with_job_fields(job.id, hold=""))
        return make_change("release", by, 0.0, "it were released", with_job_fields(job.id, hold=""))
    if kind == BlockerKind.BEGIN:
        return make_change(
            "begin", ChangeActor.OWNER, 0.0, "it had no begin time", with_job_fields(job.id, begin_at=None)
        )
    names = job.waits_for[0] if len(job.waits_for) == 1 else f"the {len(job.waits_for)} jobs it waits for"
    return make_change("dependency", ChangeActor.TIME, 0.0, f"{names} had ended", with_job_fields(job.id, waits_for=()))


class _ChangeSearch:
    """Tries changes until `MAX_TRIES` turns are used up."""

    def __init__(self, rules: RulesFactory, job_id: int, sees: CanSeeTeam) -> None:
        self._rules = rules
        self._job_id = job_id
        self._sees = sees
        self._tries_left = MAX_TRIES

    def starts(self, snapshot: ClusterSnapshot) -> bool:
        """Whether the job starts in a turn on this snapshot; False when no tries are left."""
        self._tries_left -= 1
        return self._tries_left >= 0 and job_starts(snapshot, self._rules(), self._job_id)

    def sorted_guesses(self, snapshot: ClusterSnapshot) -> list[SuggestedChange]:
        proposals = ChangeProposals(snapshot, self._rules(), self._job_id, self._sees)
        return sorted(proposals.all(), key=lambda change: (change.cost, change.phrase))

    def one(self, snapshot: ClusterSnapshot) -> Iterator[SuggestedChange]:
        """Single changes that start the job."""
        return (guess for guess in self.sorted_guesses(snapshot) if self.starts(guess.apply(snapshot)))

    def two(self, snapshot: ClusterSnapshot) -> Iterator[SuggestedChange]:
        """Pairs of changes of different kinds that start the job."""
        steps = [guess for guess in self.sorted_guesses(snapshot) if guess.kind in FIRST_STEP_KINDS]
        for step in steps:
            after = step.apply(snapshot)
            second = (guess for guess in self.sorted_guesses(after)[:MAX_SECOND_STEPS] if guess.kind != step.kind)
            if pair := next((guess for guess in second if self.starts(guess.apply(after))), None):
                yield step.then(pair)
