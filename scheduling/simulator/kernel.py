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

from scheduling.engine.engine import Ask, Engine, Job
from scheduling.engine.rules import Rules

END: Final = 0
DOWN: Final = 1
UP: Final = 2
CHANGE: Final = 3
REOPENING: Final = 4
Planned = tuple[float, int, int, Any, int]  # when, what, sequence, whom, which run of it


@dataclass(frozen=True, kw_only=True)
class Outage:
    """A node takes no work from `at` on, and again from `until` on; what runs on it starts anew later."""

    at: float
    until: float
    node: int


class Weather(Protocol):
    """What the replay cannot decide: when nodes break, and what that costs."""

    def outage(self, node: int, since: float) -> Outage: ...

    def cost_s(self, job: Job, now: float) -> float:
        """By how much more than it has done is left of a job that runs on a node that breaks now."""
        ...


# Called with the moment it asked to be called at, the present one, and how many jobs are there, waiting or running;
# nothing has changed between the two. Returns when it wants to be called again.
Sample = Callable[[float, float, int], float]


@dataclass(kw_only=True)
class Outcome:
    """One entry per job, in the order of the trace."""

    started: list[float] = field(default_factory=list)  # the first time
    ended: list[float] = field(default_factory=list)
    held_s: list[float] = field(default_factory=list)  # time on GPUs over all its runs
    stops: list[int] = field(default_factory=list)  # how often it had to give way
    faults: list[int] = field(default_factory=list)  # how often a node broke under it
    outages: list[Outage] = field(default_factory=list)
    events: int = 0

    @staticmethod
    def of(count: int) -> Outcome:
        nan = float("nan")
        return Outcome(
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
    asks: list[Ask]
    users: list[int]
    names: list[int]
    bands: list[int] | None = None  # lower goes first whatever the policy says


def replay(
    engine: Engine,
    coming: Arrivals,
    *,
    running: Iterable[Job] = (),
    outages: Iterable[Outage] = (),
    weather: Weather | None = None,
    sample: Sample | None = None,
    watch: Callable[[int], None] | None = None,
    look: Callable[[float], None] | None = None,
) -> Outcome:
    """Run until everybody has ended or nothing can happen any more. `running` are jobs that the engine has adopted,
    with numbers behind those who come. `watch` hears now and then how many have come, and may raise to end it all;
    `look` is called after each decision, for tests of what must always hold."""
    submits, runtimes, expected = coming.submit_s, coming.runtime_s, coming.expected_s
    asks, users, names, bands = coming.asks, coming.users, coming.names, coming.bands
    running = list(running)
    count, arrived, done, turns = len(submits), 0, 0, 0
    never = math.inf
    next_submit = submits[0] if count else never
    outcome = Outcome.of(count + len(running))
    began, ended, held_s = outcome.started, outcome.ended, outcome.held_s
    started, stopped = engine.started, engine.stopped
    moves = type(engine.rules).next_change is not Rules.next_change
    agenda: list[Planned] = []
    plan = _Planner(agenda)
    breaking = _Breaking(engine, outcome, plan, weather)
    for outage in outages:
        breaking.expect(outage)
    if weather:
        for node in range(len(engine.room.nodes)):
            breaking.expect(weather.outage(node, submits[0] if count else 0.0))
    due = -never if sample else never
    for job in running:
        plan(job.began + job.remaining_s, END, job, job.runs)
    for bar in engine.bars:  # the engine minds them itself, but somebody must ask it then
        plan(bar.end, REOPENING, None, 0)
    while agenda or arrived < count:
        planned = agenda[0][0] if agenda else never
        now = min(planned, next_submit)
        if now > due and sample:
            due = sample(due, now, len(running) + arrived - done)
        while planned == now and agenda:
            _, what, _, whom, run = heappop(agenda)
            if what == END:
                job = whom
                if job.runs == run and job.places is not None:
                    number = job.number
                    ended[number] = now
                    held_s[number] = job.ran_s + now - job.began
                    done += 1
                    engine.end(job, now)
            elif what == CHANGE:
                if whom.runs == run and whom.places is not None:
                    engine.level_changed(whom, now)
                    _plan_change(engine, whom, now, plan)
            elif what == DOWN:
                breaking.down(whom, now)
            elif what == UP:
                breaking.up(whom, now)
            planned = agenda[0][0] if agenda else never
        while next_submit == now and arrived < count:
            job = Job(arrived, asks[arrived], now, runtimes[arrived], expected[arrived], users[arrived], names[arrived])
            if bands:
                job.band = bands[arrived]
            engine.submit(job, now)
            arrived += 1
            next_submit = submits[arrived] if arrived < count else never
        engine.decide(now)
        if stopped:
            _stop(stopped, outcome)
        if started:
            for job in started:
                if job.runs == 1:
                    began[job.number] = now
                plan.sequence += 1
                heappush(agenda, (now + job.remaining_s, END, plan.sequence, job, job.runs))
                if moves:
                    _plan_change(engine, job, now, plan)
            started.clear()
        turns += 1
        # Nobody comes, runs or can be freed any more: outages would go on for ever
        if weather and arrived == count and not engine.running and breaking.all_up:
            break
        if look:
            look(now)
        if watch and not turns & 0x3FFF:
            watch(arrived)
    outcome.events = plan.sequence + count
    return outcome


class _Planner:
    """Puts something on the agenda, with the next sequence number."""

    __slots__ = ("_agenda", "sequence")

    def __init__(self, agenda: list[Planned]) -> None:
        self._agenda = agenda
        self.sequence = 0

    def __call__(self, at: float, what: int, whom: Any, run: int) -> None:
        self.sequence += 1
        heappush(self._agenda, (at, what, self.sequence, whom, run))


def _stop(stopped: list[Job], outcome: Outcome) -> None:
    for job in stopped:
        outcome.stops[job.number] += 1
        outcome.held_s[job.number] = job.ran_s
    stopped.clear()


class _Breaking:
    """Nodes that go and come. Outages that are told may overlap: a node is up when the last of them is over."""

    def __init__(self, engine: Engine, outcome: Outcome, plan: _Planner, weather: Weather | None) -> None:
        self._engine, self._outcome, self._plan, self._weather = engine, outcome, plan, weather
        self._down: Counter[int] = Counter()

    def expect(self, outage: Outage) -> None:
        self._outcome.outages.append(outage)
        self._plan(outage.at, DOWN, outage.node, 0)
        self._plan(outage.until, UP, outage.node, 0)

    def down(self, node: int, now: float) -> None:
        engine, weather = self._engine, self._weather
        self._down[node] += 1
        engine.node_down(node, now, (lambda job: weather.cost_s(job, now)) if weather else None)
        for job in engine.stopped:
            self._outcome.faults[job.number] += 1
        # At once: the next decision may start them again in this very moment
        _stop(engine.stopped, self._outcome)

    @property
    def all_up(self) -> bool:
        return not self._down

    def up(self, node: int, now: float) -> None:
        self._down[node] -= 1
        if not self._down[node]:
            del self._down[node]
            self._engine.node_up(node, now)
        if self._weather:
            self.expect(self._weather.outage(node, now))


def _plan_change(engine: Engine, job: Job, now: float, plan: _Planner) -> None:
    at = engine.rules.next_change(job, now)
    if at is not None and at < now + job.remaining_s:
        plan(at, CHANGE, job, job.runs)
