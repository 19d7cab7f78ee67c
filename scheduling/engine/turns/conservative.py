"""Backfilling with reservations for all jobs: each has a start time and nodes, and no job may delay another.

The plan is kept as long as it holds. New jobs are planned behind the others. If one goes before a job that has a
reservation, if a job ended early or late, or if a node was closed or opened, all reservations are recomputed in order.
An early end never makes one later, because the old plan still fits.

The plan is computed only as far as it decides what starts now. Once no remaining job fits into the first step, the rest
is postponed until the next event (`ReservationPlan.later`); usually there is a new plan by then.

The number of reservations is limited (`PolicyRules.depth`, like Slurm's bf_max_job_test), because the cost of the plan
is steps times jobs. Jobs further back cannot start before they have a reservation. Borrowers get none: they start on
free GPUs and can be preempted. Owners are planned as if there were no borrowers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from heapq import merge

from scheduling.engine.engine import Engine
from scheduling.engine.job import EngineJob, QueueEntry, RequestGroup
from scheduling.engine.job_queue import enqueue_entries
from scheduling.engine.resources import GpuPlacement
from scheduling.engine.turns.claiming import claim_placement
from scheduling.engine.turns.plan import ReservationPlan


def conservative_turn(engine: Engine, now: float) -> None:
    """Start all jobs whose reservations are due; repeat after preemptions, because victims may fit elsewhere."""
    while True:
        arrived, engine.arrivals = sorted(engine.arrivals), []
        went_to_plan = True
        before = len(engine.started_jobs), len(engine.stopped_jobs)
        if engine.waiting_groups or (arrived := _start_at_once(engine, arrived, now)):
            went_to_plan = _plan_turn(engine, arrived, now)
        else:
            engine.reservation.drop()
        if went_to_plan and not engine.arrivals:
            return
        if (len(engine.started_jobs), len(engine.stopped_jobs)) == before:
            return  # the next plan would be the same
        engine.changes.only_arrivals = False  # a job was stopped and may fit elsewhere


def _start_at_once(engine: Engine, arrived: list[QueueEntry], now: float) -> list[QueueEntry]:
    """Start arrived jobs while no job waits. Return the arrivals from the first one that does not fit."""
    for at, (*_, job) in enumerate(arrived):
        if engine.quota_usage and engine.is_over_quota(job.group):
            return arrived[at:]
        if (places := claim_placement(engine, job, job.group.eligible_nodes, now)) is None:
            return arrived[at:]
        engine.begin(job, places, now)
        if engine.arrivals:  # its victims, which go before jobs behind them
            engine.arrivals += arrived[at + 1 :]
            return []
    return []


def _plan_turn(engine: Engine, arrived: list[QueueEntry], now: float) -> bool:
    """Start the jobs that are due. False if one could not start, so that all must be planned again."""
    enqueue_entries(arrived, engine.waiting_groups)
    plan: ReservationPlan | None = engine.reservation.current
    if plan is None or engine.quota_usage or not _plan_still_holds(engine, plan, arrived, now):
        plan = engine.reservation.current = _new_plan(engine, now)
    else:
        for entry in arrived:
            if len(plan.starts) < engine.rules.depth:
                _reserve_entry(engine, plan, entry)
    went_to_plan = True
    for job, places in plan.start(now):
        went_to_plan &= _start_planned(engine, job, places, now)
    if engine.rules.claims and not engine.arrivals:  # victims get their place among the borrowers first
        _start_borrowers(engine, now)
    if not plan.starts or not went_to_plan:
        engine.reservation.drop()
    return went_to_plan


def _start_borrowers(engine: Engine, now: float) -> None:
    """Start borrowers that fit now, in order, until one preempts another."""
    for _, _, _, job in _entries_in_order([group for group in engine.waiting_groups if group.borrows]):
        group = job.group
        if not engine.is_over_quota(group):
            places = claim_placement(engine, job, group.eligible_nodes, now)
            if places is not None:
                _start_and_dequeue(engine, job, places, now)
                if engine.arrivals:
                    return


def _plan_still_holds(engine: Engine, plan: ReservationPlan, arrived: list[QueueEntry], now: float) -> bool:
    """Whether the plan can be kept. Adds the postponed jobs to it."""
    if not _plan_on_time(plan, arrived, now) or not plan.matches(engine.owner_resources, now):
        return False
    for entry in plan.later:
        if plan.reservation_count >= engine.rules.depth:
            break
        plan.reservation_count += _reserve_entry(engine, plan, entry)
    plan.later = iter(())
    if not _plan_on_time(plan, arrived, now):
        return False
    if arrived:  # otherwise past steps are never read
        plan.advance_to(now)
    return True


def _plan_on_time(plan: ReservationPlan, arrived: list[QueueEntry], now: float) -> bool:
    """False if a job arrived that goes before one with a reservation, or a reserved start has passed."""
    if plan.last is not None and arrived and arrived[0] < plan.last:
        return False
    return plan.next_start_time >= now


def _new_plan(engine: Engine, now: float) -> ReservationPlan:
    """Plan until it is known which jobs start now and which reservation is the first one later."""
    plan = ReservationPlan(engine, now)
    plan.later = _entries_in_order(engine.waiting_groups)
    candidates = _StartCandidates(engine, plan)
    has_later_start = False
    while plan.reservation_count < engine.rules.depth and (candidates.fitting or not has_later_start):
        if (entry := next(plan.later, None)) is None:
            break
        job = entry[3]
        if _reserve_entry(engine, plan, entry):
            plan.reservation_count += 1
            if plan.starts[job][0] <= now:
                candidates.drop_unfitting()
            else:
                has_later_start = True
        if _may_reserve(engine, job.group):
            candidates.without(job.group)
    return plan


class _StartCandidates:
    """Requests of jobs still to be planned that fit into the first step."""

    def __init__(self, engine: Engine, plan: ReservationPlan) -> None:
        self._plan = plan
        self._unplanned: Counter[int] = Counter()
        groups = [group for group in engine.waiting_groups if _may_reserve(engine, group)]
        for group in groups:
            self._unplanned[group.shape] += len(group.queue)
        self.fitting = {group.shape: group for group in groups}
        self.drop_unfitting()

    def drop_unfitting(self) -> None:
        """Drop requests that no longer fit, after a share was taken from the first step."""
        self.fitting = {shape: group for shape, group in self.fitting.items() if self._plan.fits_now(group)}

    def without(self, group: RequestGroup) -> None:
        """Count one job of this group as planned."""
        self._unplanned[group.shape] -= 1
        if not self._unplanned[group.shape]:
            self.fitting.pop(group.shape, None)


def _may_reserve(engine: Engine, group: RequestGroup) -> bool:
    """Whether jobs of this group may get a reservation."""
    return not (group.borrows and engine.rules.claims) and not engine.is_over_quota(group)


def _reserve_entry(engine: Engine, plan: ReservationPlan, entry: QueueEntry) -> bool:
    """Whether the job has a reservation now."""
    job = entry[3]
    if not _may_reserve(engine, job.group):
        return False
    plan.last = max(plan.last, entry) if plan.last else entry
    return plan.reserve(job) is not None


def _start_planned(engine: Engine, job: EngineJob, planned: GpuPlacement, now: float) -> bool:
    """Start a job whose reservation is due. False if its GPUs are not available on the planned nodes."""
    if engine.quota_usage and (engine.is_over_quota(job.group) or _is_barred(job.group, planned)):
        engine.reservation.drop()  # jobs before it used up the quota, so its place is free for others
    elif engine.rules.claims:
        places = claim_placement(engine, job, sum(1 << node for node, _ in planned), now)
        if places is None:
            return False  # an earlier job claimed GPUs on these nodes, other than planned
        _start_and_dequeue(engine, job, places, now)
    else:
        _start_and_dequeue(engine, job, planned, now)
    return True


def _is_barred(group: RequestGroup, planned: GpuPlacement) -> bool:
    """Whether a quota for a GPU model keeps the group from these nodes by now."""
    return any(group.barred_nodes >> node & 1 for node, _ in planned)


def _start_and_dequeue(engine: Engine, job: EngineJob, places: GpuPlacement, now: float) -> None:
    """Start the job and remove it from its queue."""
    engine.begin(job, places, now)
    job.group.queue.remove(job)
    job.group.queue.tidy()
    engine.tidy(job.group)


def _entries_in_order(groups: Iterable[RequestGroup]) -> Iterator[QueueEntry]:
    """All waiting jobs of these groups in order, as of now."""
    return merge(*(list(group.queue) for group in groups))
