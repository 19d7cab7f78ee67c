"""Simulated time for the engine: from one event to the next, with the state kept in between. Pure and reproducible.

Events at equal times are processed in this order: ends, in the order in which they were planned; other planned events
(outages, changes of rank); submissions, in the order of the trace. Then the engine decides once.

Nodes fail as the `OutageModel` says, one outage per node after the other, as long as there is work left.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol

from scheduling.engine.engine import ChangedSpeeds, Engine, PolicyRules, whole_second
from scheduling.engine.job import EngineJob, RequestGroup
from scheduling.engine.turns.settling import settle_replayed_turn
from scheduling.event_queue import EventQueue

# Priorities of events
JOB_END: Final = 0
NODE_DOWN: Final = 1
NODE_UP: Final = 2
RANK_CHANGE: Final = 3
NODE_REOPENING: Final = 4
JobRun = tuple[EngineJob, int]  # a job, and which of its runs


@dataclass(frozen=True, kw_only=True)
class Outage:
    """The node accepts no jobs from `at` until `until`. Jobs running on it are restarted later."""

    at: float
    until: float
    node: int


class OutageModel(Protocol):
    """When nodes fail, and how much a failure costs."""

    def outage(self, node: int, since: float) -> Outage: ...

    def failure_cost_s(self, job: EngineJob, now: float) -> float:
        """The time by which the remaining work of a job grows, beyond what it has run, when its node fails now."""
        ...


@dataclass(frozen=True, kw_only=True)
class ReplayCallbacks:
    """Who is called while a replay runs.

    sample       with the time for which it requested the call, the current time, and the number of jobs waiting or
                 running. Nothing has changed between the two times. Returns the time of the next call
    on_progress  periodically, with the number of submitted jobs; raising an exception in it aborts the replay
    on_decision  with the time after each decision
    on_start     with each job that starts, and the time
    """

    sample: Callable[[float, float, int], float] | None = None
    on_progress: Callable[[int], None] | None = None
    on_decision: Callable[[float], None] | None = None
    on_start: Callable[[EngineJob, float], None] | None = None


NO_CALLBACKS = ReplayCallbacks()


@dataclass(kw_only=True)
class ReplayOutcome:
    """One entry per job, in the order of the trace."""

    started: list[float] = field(default_factory=list)  # first start
    ended: list[float] = field(default_factory=list)
    held_s: list[float] = field(default_factory=list)  # time on GPUs over all its runs
    stops: list[int] = field(default_factory=list)  # how often it was stopped before its end
    faults: list[int] = field(default_factory=list)  # how often a node failure stopped it
    outages: list[Outage] = field(default_factory=list)
    events: int = 0

    @staticmethod
    def of(count: int) -> ReplayOutcome:
        nan = float("nan")
        return ReplayOutcome(
            started=[nan] * count,
            ended=[nan] * count,
            held_s=[0.0] * count,
            stops=[0] * count,
            faults=[0] * count,
        )


@dataclass(frozen=True, kw_only=True)
class Arrivals:
    """Submitted jobs as columns of equal length, in order of submission. A job's number is its row."""

    submit_s: list[float]
    runtime_s: list[float]
    expected_s: list[float]
    groups: list[RequestGroup]
    users: list[int]
    names: list[int]
    similar: list[int]  # names that differ only in their numbers are equal
    kinds: list[int]
    bands: list[int] | None = None  # lower goes first, regardless of the policy
    predicted_s: list[float] | None = None
    attained: list[float] | None = None  # GPU-seconds before they were submitted here
    worked_s: list[float] | None = None  # run time before that, as on the first GPU model of the request
    deadlines: list[float] | None = None

    def job(self, number: int) -> EngineJob:
        """The job in this row."""
        job = EngineJob(
            number,
            self.groups[number],
            self.submit_s[number],
            self.runtime_s[number],
            self.expected_s[number],
        )
        job.user = self.users[number]
        job.name = self.names[number]
        job.similar = self.similar[number]
        job.kind = self.kinds[number]
        if self.bands:
            job.band = self.bands[number]
        if self.predicted_s:
            job.predicted_s = self.predicted_s[number]
        if self.attained:
            job.attained = self.attained[number]
        if self.worked_s:
            job.worked_s = self.worked_s[number]
        if self.deadlines:
            job.deadline = self.deadlines[number]
        return job


def replay(
    engine: Engine,
    arrivals: Arrivals,
    *,
    running: Iterable[EngineJob] = (),
    outages: Iterable[Outage] = (),
    outage_model: OutageModel | None = None,
    callbacks: ReplayCallbacks = NO_CALLBACKS,
    victims_stop_first: bool = False,
) -> ReplayOutcome:
    """Run until all jobs have ended or no event can occur any more.

    `running` are jobs that the engine has adopted, numbered after those in `arrivals`. With `victims_stop_first` a job
    gets the GPUs of victims in a second turn at the same time, as on a live cluster. The engine must then not requeue
    stopped jobs.
    """
    sample, on_progress, on_decision = callbacks.sample, callbacks.on_progress, callbacks.on_decision
    run = _Replay(engine, arrivals, list(running), outage_model, callbacks.on_start)
    run.plan_known_events(outages)
    next_sample = -math.inf if sample else math.inf
    decisions = 0
    while run.has_events:
        now = run.next_event_time()
        if now > next_sample and sample:
            next_sample = sample(next_sample, now, run.jobs_present)
        run.events.run_until(now)
        run.submit_arrivals(now)
        while run.decide(now, victims_stop_first=victims_stop_first):
            pass
        decisions += 1
        if run.only_outages_remain:
            break
        if on_decision:
            on_decision(now)
        if on_progress and not decisions & 0x3FFF:
            on_progress(run.submitted)
    return run.finished_outcome()


class _Replay:
    """A replay in progress: the jobs still to be submitted, the events planned so far, and what has happened."""

    def __init__(
        self,
        engine: Engine,
        arrivals: Arrivals,
        running: list[EngineJob],
        outage_model: OutageModel | None,
        on_start: Callable[[EngineJob, float], None] | None,
    ) -> None:
        self._engine = engine
        self._on_start = on_start
        self._arrivals = arrivals
        self._submit_s = arrivals.submit_s
        self._count = len(arrivals.submit_s)
        self.submitted = 0
        self._next_submit_s = self._submit_s[0] if self._count else math.inf
        self._running_at_start = running
        self.jobs_present = len(running)  # waiting or running
        self._outcome = ReplayOutcome.of(self._count + len(running))
        self.events = EventQueue()
        self._outage_model = outage_model
        self._node_failures = _NodeFailures(engine, self._outcome, self.events, outage_model)
        self._ranks_change = type(engine.rules).next_rank_change is not PolicyRules.next_rank_change
        self._speeds = engine.changed_speeds

    def plan_known_events(self, outages: Iterable[Outage]) -> None:
        """Plan the events that are known before the first decision. Equal times keep the order of planning."""
        for outage in outages:
            self._node_failures.plan_outage(outage)
        if self._outage_model:
            begin = self._submit_s[0] if self._count else 0.0
            for node in range(len(self._engine.resources.nodes)):
                self._node_failures.plan_outage(self._outage_model.outage(node, begin))
        for job in self._running_at_start:
            self.events.at(job.began + job.remaining_s * job.slowdown, self._end_job, (job, job.runs), JOB_END)
        # The engine ends maintenances and protections itself, but needs an event then
        for end in (*self._engine.maintenance.end_times(), *self._engine.borrowers.protection_ends()):
            self.events.at(end, _decide_only, None, NODE_REOPENING)

    @property
    def has_events(self) -> bool:
        """Whether an event is planned or a job is still to be submitted."""
        if self._ranks_change and self._engine.claims_by_rank:
            self._drop_rank_changes_of_stopped_jobs()
        return bool(self.events) or self.submitted < self._count

    def _drop_rank_changes_of_stopped_jobs(self) -> None:
        """A live cluster does not know them, and a turn more may start a job that waits for a GPU model."""
        while planned := self.events.next_subject(RANK_CHANGE):
            job, run = planned
            if job.runs == run and job.places is not None:
                break
            self.events.drop_next()

    def next_event_time(self) -> float:
        """The time of the next event; there must be one."""
        return min(self.events.next_time, self._next_submit_s)

    def _end_job(self, planned: JobRun, now: float) -> None:
        """End the job, unless it was stopped since this was planned, or its end was moved."""
        job, run = planned
        if job.runs == run and job.places is not None:
            if self._speeds and self._speeds.ends.get(job.number, now) > now:
                return
            self._outcome.ended[job.number] = now
            self._outcome.held_s[job.number] = job.ran_s + now - job.began
            self.jobs_present -= 1
            self._engine.end(job, now)

    def _change_rank(self, planned: JobRun, now: float) -> None:
        job, run = planned
        if job.runs == run and job.places is not None:
            self._engine.level_changed(job, now)
            self._plan_rank_change(job, now)

    def _plan_rank_change(self, job: EngineJob, now: float) -> None:
        at = self._engine.rules.next_rank_change(job, now)
        if at is not None and self._engine.claims_by_rank:
            at = whole_second(at)
        if at is not None and at < now + job.remaining_s * job.slowdown:
            self.events.at(at, self._change_rank, (job, job.runs), RANK_CHANGE)

    def submit_arrivals(self, now: float) -> None:
        """Submit all jobs that arrive at this time."""
        while self._next_submit_s == now and self.submitted < self._count:
            self._engine.submit(self._arrivals.job(self.submitted), now)
            self.submitted += 1
            self.jobs_present += 1
            self._next_submit_s = self._submit_s[self.submitted] if self.submitted < self._count else math.inf

    def decide(self, now: float, *, victims_stop_first: bool) -> bool:
        """Run one turn and record its decisions. Whether another turn must follow at this time."""
        engine = self._engine
        if not victims_stop_first:
            engine.decide(now)
            self._record_decisions(now)
            return False
        free = engine.resources.copy()
        engine.decide(now)
        goes_on = bool(engine.stopped_jobs) and settle_replayed_turn(engine, free, now)
        self._record_decisions(now)
        return goes_on

    def _record_decisions(self, now: float) -> None:
        """Record which jobs the engine has stopped and started, and plan the ends of those that started."""
        engine = self._engine
        if engine.stopped_jobs:
            _record_stops(engine.stopped_jobs, self._outcome)
        if engine.started_jobs:
            for job in engine.started_jobs:
                if self._on_start:
                    self._on_start(job, now)
                if job.runs == 1:
                    self._outcome.started[job.number] = now
                self.events.at(self._planned_end(job, now), self._end_job, (job, job.runs), JOB_END)
                if self._ranks_change:
                    self._plan_rank_change(job, now)
            engine.started_jobs.clear()
        if self._speeds and self._speeds.moved:
            self._plan_moved_ends(self._speeds)

    def _planned_end(self, job: EngineJob, now: float) -> float:
        """When a job ends that starts now, on its GPU model. In whole seconds if every turn starts anew, as for the
        rows of a live cluster."""
        end = now + job.remaining_s * job.slowdown
        return end if self._engine.keeps_memory else whole_second(end)

    def _plan_moved_ends(self, speeds: ChangedSpeeds) -> None:
        """Plan the ends of jobs whose speed has changed. An end that was planned before and comes earlier is ignored,
        and one that comes later finds that the job has ended.
        """
        for job in speeds.moved:
            if job.places is not None and (end := speeds.ends[job.number]) < math.inf:
                self.events.at(end, self._end_job, (job, job.runs), JOB_END)
        speeds.moved.clear()

    @property
    def only_outages_remain(self) -> bool:
        """Whether no job arrives, runs or can start any more. The outages of a model would continue forever."""
        return (
            self._outage_model is not None
            and self.submitted == self._count
            and not self._engine.running
            and self._node_failures.all_nodes_up
        )

    def finished_outcome(self) -> ReplayOutcome:
        """The outcome with the number of events; the replay must have ended."""
        self._outcome.events = self.events.planned + self._count
        return self._outcome


def _decide_only(_: None, now: float) -> None:
    """The engine opens nodes and ends protections when it decides."""


def _record_stops(stopped: list[EngineJob], outcome: ReplayOutcome) -> None:
    for job in stopped:
        outcome.stops[job.number] += 1
        outcome.held_s[job.number] = job.ran_s
    stopped.clear()


class _NodeFailures:
    """Closes and opens nodes. Given outages may overlap: a node opens when the last of them ends."""

    def __init__(
        self, engine: Engine, outcome: ReplayOutcome, events: EventQueue, outage_model: OutageModel | None
    ) -> None:
        self._engine, self._outcome, self._events, self._outage_model = engine, outcome, events, outage_model
        self._down: Counter[int] = Counter()

    def plan_outage(self, outage: Outage) -> None:
        self._outcome.outages.append(outage)
        self._events.at(outage.at, self._down_now, outage.node, NODE_DOWN)
        self._events.at(outage.until, self._up_now, outage.node, NODE_UP)

    def _down_now(self, node: int, now: float) -> None:
        engine, outage_model = self._engine, self._outage_model
        self._down[node] += 1
        engine.node_down(node, now, (lambda job: outage_model.failure_cost_s(job, now)) if outage_model else None)
        for job in engine.stopped_jobs:
            self._outcome.faults[job.number] += 1
        # Record now, because the next decision may restart them at the same moment
        _record_stops(engine.stopped_jobs, self._outcome)

    @property
    def all_nodes_up(self) -> bool:
        return not self._down

    def _up_now(self, node: int, now: float) -> None:
        self._down[node] -= 1
        if not self._down[node]:
            del self._down[node]
            self._engine.node_up(node, now)
        if self._outage_model:
            self.plan_outage(self._outage_model.outage(node, now))
