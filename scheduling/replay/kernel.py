"""Time, for the engine: from one event to the next, with the state kept between them. Pure and reproducible.

Events at equal times: ends first, in the order in which they were planned, then what else was planned (outages, changes
of rank), then submissions in the order of the trace; after all of them the engine decides once. Planned events carry a
sequence number, so that no two compare equal and a run repeats to the last digit.

Nodes break as the `Weather` says, one outage of a node after the other, for as long as there is work left.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, Final, Protocol

from scheduling.engine.engine import Engine, EngineJob, RequestGroup
from scheduling.engine.rules import PolicyRules

JOB_END: Final = 0
NODE_DOWN: Final = 1
NODE_UP: Final = 2
RANK_CHANGE: Final = 3
NODE_REOPENING: Final = 4
PlannedEvent = tuple[float, int, int, Any, int]  # when, what, sequence, whom, which run of it


@dataclass(frozen=True, kw_only=True)
class Outage:
    """A node takes no work from `at` on, and again from `until` on; what runs on it starts anew later."""

    at: float
    until: float
    node: int


class OutageModel(Protocol):
    """What the replay cannot decide: when nodes break, and what that costs."""

    def outage(self, node: int, since: float) -> Outage: ...

    def failure_cost_s(self, job: EngineJob, now: float) -> float:
        """By how much more than it has done is left of a job that runs on a node that breaks now."""
        ...


# Called with the moment it asked to be called at, the present one, and how many jobs are there, waiting or running;
# nothing has changed between the two. Returns when it wants to be called again.
UsageCallback = Callable[[float, float, int], float]


@dataclass(kw_only=True)
class ReplayOutcome:
    """One entry per job, in the order of the trace."""

    started: list[float] = field(default_factory=list)  # the first time
    ended: list[float] = field(default_factory=list)
    held_s: list[float] = field(default_factory=list)  # time on GPUs over all its runs
    stops: list[int] = field(default_factory=list)  # how often it had to give way
    faults: list[int] = field(default_factory=list)  # how often a node broke under it
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
    """Who comes when: columns of equal length, by time of submission."""

    submit_s: list[float]
    runtime_s: list[float]
    expected_s: list[float]
    asks: list[RequestGroup]
    users: list[int]
    names: list[int]
    bands: list[int] | None = None  # lower goes first whatever the policy says


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
    """Run until everybody has ended or nothing can happen any more. `running` are jobs that the engine has adopted,
    with numbers behind those who come. `watch` hears now and then how many have come, and may raise to end it all;
    `look` is called after each decision, for tests of what must always hold."""
    submits, runtimes, expected = coming.submit_s, coming.runtime_s, coming.expected_s
    asks, users, names, bands = coming.asks, coming.users, coming.names, coming.bands
    running = list(running)
    count, arrived, done, turns = len(submits), 0, 0, 0
    never = math.inf
    next_submit = submits[0] if count else never
    outcome = ReplayOutcome.of(count + len(running))
    began, ended, held_s = outcome.started, outcome.ended, outcome.held_s
    started, stopped = engine.started, engine.stopped
    moves = type(engine.rules).next_rank_change is not PolicyRules.next_rank_change
    agenda: list[PlannedEvent] = []
    plan = _EventPlanner(agenda)
    breaking = _NodeFailures(engine, outcome, plan, weather)
    for outage in outages:
        breaking.plan_outage(outage)
    if weather:
        for node in range(len(engine.room.nodes)):
            breaking.plan_outage(weather.outage(node, submits[0] if count else 0.0))
    due = -never if sample else never
    for job in running:
        plan(job.began + job.remaining_s, JOB_END, job, job.runs)
    for bar in engine.bars:  # the engine minds them itself, but somebody must ask it then
        plan(bar.end, NODE_REOPENING, None, 0)
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
                arrived, asks[arrived], now, runtimes[arrived], expected[arrived], users[arrived], names[arrived]
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
        # Nobody comes, runs or can be freed any more: outages would go on for ever
        if weather and arrived == count and not engine.running and breaking.all_nodes_up:
            break
        if look:
            look(now)
        if watch and not turns & 0x3FFF:
            watch(arrived)
    outcome.events = plan.sequence + count
    return outcome


class _EventPlanner:
    """Puts something on the agenda, with the next sequence number."""

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
    """Nodes that go and come. Outages that are told may overlap: a node is up when the last of them is over."""

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
        for job in engine.stopped:
            self._outcome.faults[job.number] += 1
        # At once: the next decision may start them again in this very moment
        _record_stops(engine.stopped, self._outcome)

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
