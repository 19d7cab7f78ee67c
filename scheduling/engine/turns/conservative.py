"""Backfilling with a promise to everybody: whoever waits has a start time and nodes, and nobody is let pass who would
delay one of them.

The `plan` stands while it comes true. Who comes later is planned behind; if he goes before somebody who has a promise
already, or somebody ended early, late, or a node came or went, all promises are worked out anew in order. An early end
never makes one later: what was planned still fits.

It is worked out as far as it decides who starts now. Once nobody who is still to be planned fits into the first room,
the rest is put off until the plan has come true up to the next event (`Plan.later`); mostly there is another one by
then.

Only so many are promised (`Rules.depth`, as Slurm's bf_max_job_test): the plan costs rooms times jobs. Who stands
further back must wait for a promise before he may start. Borrowers get none, they start on what is free and give way;
owners are planned as if no borrower were there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from heapq import merge

from scheduling.engine.engine import Engine, EngineJob, QueueEntry, RequestGroup
from scheduling.engine.line import enqueue_entries
from scheduling.engine.room import GpuPlacement
from scheduling.engine.turns.claiming import claim_placement
from scheduling.engine.turns.plan import ReservationPlan


def conservative_turn(engine: Engine, now: float) -> None:
    while True:
        arrived, engine.arrived = sorted(engine.arrived), []
        went_to_plan = True
        before = len(engine.started), len(engine.stopped)
        if engine.hungry or (arrived := _start_at_once(engine, arrived, now)):
            went_to_plan = _plan_turn(engine, arrived, now)
        else:
            engine.promise = None
        if went_to_plan and not engine.arrived:
            return
        if (len(engine.started), len(engine.stopped)) == before:
            return  # all would be planned the same again
        engine.freed = True  # somebody had to stop, and may fit elsewhere


def _start_at_once(engine: Engine, arrived: list[QueueEntry], now: float) -> list[QueueEntry]:
    for at, (*_, job) in enumerate(arrived):
        if engine.books and engine.is_over_quota(job.ask):
            return arrived[at:]
        if (places := claim_placement(engine, job, job.ask.able, now)) is None:
            return arrived[at:]
        engine.begin(job, places, now)
    return []


def _plan_turn(engine: Engine, arrived: list[QueueEntry], now: float) -> bool:
    """False if somebody could not start although his time has come: then all is to be planned anew."""
    enqueue_entries(arrived, engine.hungry)
    plan: ReservationPlan | None = engine.promise
    if plan is None or engine.books or not _plan_still_holds(engine, plan, arrived, now):
        plan = engine.promise = _new_plan(engine, now)
    else:
        for entry in arrived:
            if len(plan.starts) < engine.rules.depth:
                _reserve_entry(engine, plan, entry)
    went_to_plan = True
    for job, places in plan.start(now):
        went_to_plan &= _start_planned(engine, job, places, now)
    if engine.rules.claims:
        _start_borrowers(engine, now)
    if not plan.starts or not went_to_plan:
        engine.promise = None
    return went_to_plan


def _start_borrowers(engine: Engine, now: float) -> None:
    for _, _, _, job in _entries_in_order([ask for ask in engine.hungry if ask.borrows]):
        ask = job.ask
        if not engine.is_over_quota(ask):
            places = claim_placement(engine, job, ask.able, now)
            if places is not None:
                _start_and_dequeue(engine, job, places, now)


def _plan_still_holds(engine: Engine, plan: ReservationPlan, arrived: list[QueueEntry], now: float) -> bool:
    if not _plan_on_time(plan, arrived, now) or not plan.matches(engine.firm, now):
        return False
    for entry in plan.later:
        if plan.made >= engine.rules.depth:
            break
        plan.made += _reserve_entry(engine, plan, entry)
    plan.later = iter(())
    if not _plan_on_time(plan, arrived, now):
        return False
    if arrived:  # else nobody looks at what is past
        plan.advance_to(now)
    return True


def _plan_on_time(plan: ReservationPlan, arrived: list[QueueEntry], now: float) -> bool:
    """Not if somebody has come who goes before one with a promise, or was expected to end by then and did not."""
    if plan.last is not None and arrived and arrived[0] < plan.last:
        return False
    return plan.next_start_time >= now


def _new_plan(engine: Engine, now: float) -> ReservationPlan:
    """As far as it decides who starts now, and whose promise is the first that is kept later."""
    plan = ReservationPlan(engine, now)
    plan.later = _entries_in_order(engine.hungry)
    hopes = _StartCandidates(engine, plan)
    somebody_waits = False
    while plan.made < engine.rules.depth and (hopes.fitting or not somebody_waits):
        if (entry := next(plan.later, None)) is None:
            break
        job = entry[3]
        if _reserve_entry(engine, plan, entry):
            plan.made += 1
            if plan.starts[job][0] <= now:
                hopes.drop_unfitting()
            else:
                somebody_waits = True
        if _may_reserve(engine, job.ask):
            hopes.without(job.ask)
    return plan


class _StartCandidates:
    """Of those who are still to be planned: the wishes that fit into the first room."""

    def __init__(self, engine: Engine, plan: ReservationPlan) -> None:
        self._plan = plan
        self._left: Counter[int] = Counter()
        asks = [ask for ask in engine.hungry if _may_reserve(engine, ask)]
        for ask in asks:
            self._left[ask.shape] += len(ask.line)
        self.fitting = {ask.shape: ask for ask in asks}
        self.drop_unfitting()

    def drop_unfitting(self) -> None:
        """Somebody takes from the first room."""
        self.fitting = {shape: ask for shape, ask in self.fitting.items() if self._plan.fits_now(ask)}

    def without(self, ask: RequestGroup) -> None:
        """One less is to be planned."""
        self._left[ask.shape] -= 1
        if not self._left[ask.shape]:
            self.fitting.pop(ask.shape, None)


def _may_reserve(engine: Engine, ask: RequestGroup) -> bool:
    return not (ask.borrows and engine.rules.claims) and not engine.is_over_quota(ask)


def _reserve_entry(engine: Engine, plan: ReservationPlan, entry: QueueEntry) -> bool:
    """Whether he has a promise now."""
    job = entry[3]
    if not _may_reserve(engine, job.ask):
        return False
    plan.last = max(plan.last, entry) if plan.last else entry
    return plan.promise(job) is not None


def _start_planned(engine: Engine, job: EngineJob, planned: GpuPlacement, now: float) -> bool:
    if engine.books and engine.is_over_quota(job.ask):
        engine.promise = None  # those before him have used the quota up: others may have his place
    elif engine.rules.claims:
        places = claim_placement(engine, job, sum(1 << node for node, _ in planned), now)
        if places is None:
            return False  # one before him, who claimed, has his GPUs otherwise on those nodes than was planned
        _start_and_dequeue(engine, job, places, now)
    else:
        _start_and_dequeue(engine, job, planned, now)
    return True


def _start_and_dequeue(engine: Engine, job: EngineJob, places: GpuPlacement, now: float) -> None:
    engine.begin(job, places, now)
    job.ask.line.remove(job)
    job.ask.line.tidy()
    engine.tidy(job.ask)


def _entries_in_order(asks: Iterable[RequestGroup]) -> Iterator[QueueEntry]:
    """Whoever waits in these lines, as they are now."""
    return merge(*(list(ask.line) for ask in asks))
