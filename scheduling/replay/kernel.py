"""Simulated time for the engine: from one event to the next, with the state kept in between. Pure and reproducible.

Events at equal times are processed in this order: ends, in the order in which they were planned; other planned events
(outages, changes of rank); submissions, in the order of the trace. Then the engine decides once. Planned events have a
sequence number, so no two compare equal and a run repeats exactly.

Nodes fail as the `OutageModel` says, one outage per node after the other, as long as there is work left.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, Final, Protocol

from scheduling.engine.engine import Engine
from scheduling.engine.job import EngineJob, RequestGroup
from scheduling.engine.rules import PolicyRules

JOB_END: Final = 0
NODE_DOWN: Final = 1
NODE_UP: Final = 2
RANK_CHANGE: Final = 3
NODE_REOPENING: Final = 4
PlannedEvent = tuple[float, int, int, Any, int]  # time, type, sequence, job or node, run of the job


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


# Called with the time for which it requested the call, the current time, and the number of jobs waiting or running.
# Nothing has changed between the two times. Returns the time of the next call.
UsageCallback = Callable[[float, float, int], float]


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
    """Submitted jobs as columns of equal length, in order of submission."""

    submit_s: list[float]
    runtime_s: list[float]
    expected_s: list[float]
    groups: list[RequestGroup]
    users: list[int]
    names: list[int]
    bands: list[int] | None = None  # lower goes first, regardless of the policy


def replay(
    engine: Engine,
    coming: Arrivals,
    *,
    running: Iterable[EngineJob] = (),
    outages: Iterable[Outage] = (),
    weather: OutageModel | None = None,
    sample: UsageCallback | None = None,
    watch: Callable[[int], None] | None = None,
    look: Callable[[float], None] | None = None,
) -> ReplayOutcome:
    """Run until all jobs have ended or no event can occur any more.

    `running` are jobs that the engine has adopted, numbered after those in `coming`. `watch` is called periodically
    with the number of submitted jobs; raising an exception in it aborts the replay. `look` is called after each
    decision, for tests that check invariants.
    """
    submits, runtimes, expected = coming.submit_s, coming.runtime_s, coming.expected_s
    groups, users, names, bands = coming.groups, coming.users, coming.names, coming.bands
    running = list(running)
    count, arrived, done, turns = len(submits), 0, 0, 0
    never = math.inf
    next_submit = submits[0] if count else never
    outcome = ReplayOutcome.of(count + len(running))
    began, ended, held_s = outcome.started, outcome.ended, outcome.held_s
    started, stopped = engine.started_jobs, engine.stopped_jobs
    moves = type(engine.rules).next_rank_change is not PolicyRules.next_rank_change
    agenda: list[PlannedEvent] = []
    plan = _EventPlanner(agenda)
    breaking = _NodeFailures(engine, outcome, plan, weather)
    for outage in outages:
        breaking.plan_outage(outage)
    if weather:
        for node in range(len(engine.resources.nodes)):
            breaking.plan_outage(weather.outage(node, submits[0] if count else 0.0))
    due = -never if sample else never
    for job in running:
        plan(job.began + job.remaining_s, JOB_END, job, job.runs)
    for (
        maintenance
    ) in engine.maintenance.periods:  # the engine ends the maintenance itself, but needs an event at that time
        plan(maintenance.end, NODE_REOPENING, None, 0)
    while agenda or arrived < count:
        planned = agenda[0][0] if agenda else never
        now = min(planned, next_submit)
        if now > due and sample:
            due = sample(due, now, len(running) + arrived - done)
        while planned == now and agenda:
            _, what, _, whom, run = heappop(agenda)
            if what == JOB_END:
                job = whom
                if job.runs == run and job.places is not None:
                    number = job.number
                    ended[number] = now
                    held_s[number] = job.ran_s + now - job.began
                    done += 1
                    engine.end(job, now)
            elif what == RANK_CHANGE:
                if whom.runs == run and whom.places is not None:
                    engine.level_changed(whom, now)
                    _plan_rank_change(engine, whom, now, plan)
            elif what == NODE_DOWN:
                breaking.down(whom, now)
            elif what == NODE_UP:
                breaking.up(whom, now)
            planned = agenda[0][0] if agenda else never
        while next_submit == now and arrived < count:
            job = EngineJob(
                arrived, groups[arrived], now, runtimes[arrived], expected[arrived], users[arrived], names[arrived]
            )
            if bands:
                job.band = bands[arrived]
            engine.submit(job, now)
            arrived += 1
            next_submit = submits[arrived] if arrived < count else never
        engine.decide(now)
        if stopped:
            _record_stops(stopped, outcome)
        if started:
            for job in started:
                if job.runs == 1:
                    began[job.number] = now
                plan.sequence += 1
                heappush(agenda, (now + job.remaining_s, JOB_END, plan.sequence, job, job.runs))
                if moves:
                    _plan_rank_change(engine, job, now, plan)
            started.clear()
        turns += 1
        # No job arrives, runs or can start any more, but outages would continue forever
        if weather and arrived == count and not engine.running and breaking.all_nodes_up:
            break
        if look:
            look(now)
        if watch and not turns & 0x3FFF:
            watch(arrived)
    outcome.events = plan.sequence + count
    return outcome


class _EventPlanner:
    """Puts events on the agenda, each with the next sequence number."""

    __slots__ = ("_agenda", "sequence")

    def __init__(self, agenda: list[PlannedEvent]) -> None:
        self._agenda = agenda
        self.sequence = 0

    def __call__(self, at: float, what: int, whom: Any, run: int) -> None:
        self.sequence += 1
        heappush(self._agenda, (at, what, self.sequence, whom, run))


def _record_stops(stopped: list[EngineJob], outcome: ReplayOutcome) -> None:
    for job in stopped:
        outcome.stops[job.number] += 1
        outcome.held_s[job.number] = job.ran_s
    stopped.clear()


class _NodeFailures:
    """Closes and opens nodes. Given outages may overlap: a node opens when the last of them ends."""

    def __init__(
        self, engine: Engine, outcome: ReplayOutcome, plan: _EventPlanner, weather: OutageModel | None
    ) -> None:
        self._engine, self._outcome, self._plan, self._weather = engine, outcome, plan, weather
        self._down: Counter[int] = Counter()

    def plan_outage(self, outage: Outage) -> None:
        self._outcome.outages.append(outage)
        self._plan(outage.at, NODE_DOWN, outage.node, 0)
        self._plan(outage.until, NODE_UP, outage.node, 0)

    def down(self, node: int, now: float) -> None:
        engine, weather = self._engine, self._weather
        self._down[node] += 1
        engine.node_down(node, now, (lambda job: weather.failure_cost_s(job, now)) if weather else None)
        for job in engine.stopped_jobs:
            self._outcome.faults[job.number] += 1
        # Record now, because the next decision may restart them at the same moment
        _record_stops(engine.stopped_jobs, self._outcome)

    @property
    def all_nodes_up(self) -> bool:
        return not self._down

    def up(self, node: int, now: float) -> None:
        self._down[node] -= 1
        if not self._down[node]:
            del self._down[node]
            self._engine.node_up(node, now)
        if self._weather:
            self.plan_outage(self._weather.outage(node, now))


def _plan_rank_change(engine: Engine, job: EngineJob, now: float, plan: _EventPlanner) -> None:
    at = engine.rules.next_rank_change(job, now)
    if at is not None and at < now + job.remaining_s:
        plan(at, RANK_CHANGE, job, job.runs)
