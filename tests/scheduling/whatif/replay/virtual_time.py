"""Drive a trace through the rows, the snapshot and the scheduling turn of a live cluster, in virtual time.

Each event of the trace is followed by one turn, as in a replay: ends first, then submissions. So is each change of
rank. Run times are learned and trees are trained before the turn. A preempted job stops at once, and another turn
follows. All rows are in temporary tables or, within a transaction of the caller, rolled back, so nothing remains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from acmeweb.common.errors import InvalidField
from jobs.models import clock
from jobs.traces.trace import Trace
from scheduling.engine.engine import whole_second
from scheduling.engine.live import next_rank_change
from scheduling.engine.policies import POLICY_RULES, configured_policy, rules_factory
from scheduling.event_queue import EventQueue
from scheduling.loops.history import remember_ended_once
from scheduling.loops.run_time_trees import train_trees_once
from scheduling.loops.schedule import schedule_once
from scheduling.queries import snapshot
from scheduling.whatif.replay.as_live import StartRecord
from scheduling.whatif.replay.run import ReplaySetting
from tests.scheduling.whatif.replay.temporary_tables import temporary_tables
from tests.scheduling.whatif.replay.virtual_cluster import StartedAttempt, VirtualCluster, virtual_datetime


def starts_on_virtual_cluster(trace: Trace, policy: str, setting: ReplaySetting) -> list[StartRecord]:
    """Return the starts in order. The trace is one of `as_live.trace_as_live`, and fits the nodes. Writes nothing."""
    rules = rules_factory(policy, setting.policy_settings)()
    with temporary_tables() as commit:
        virtual = VirtualCluster(trace, policy, setting, borrows=rules.claims, all_agree=rules.preempts)
        return list(_Drive(trace, virtual, policy, setting).run(commit))


class _Drive:
    """A run in progress: the planned ends, and how long each job still runs."""

    def __init__(self, trace: Trace, virtual: VirtualCluster, policy: str, setting: ReplaySetting) -> None:
        self._virtual = virtual
        self._policy = configured_policy(policy, setting.policy_settings)
        self._trains = POLICY_RULES[policy].uses_trees
        self._min_training_jobs = setting.min_training_jobs
        self._rules = rules_factory(policy, setting.policy_settings)
        self._rank_change_s = math.inf
        self._submit_s: list[float] = trace.submit_s.tolist()
        self._left_s: list[float] = trace.runtime_s.tolist()
        self._next_row = 0
        self._ends = EventQueue()
        # attempt -> row of the trace, start, slowdown of its GPU model
        self._running: dict[int, tuple[int, float, float]] = {}
        self._real_now_s = clock.now().timestamp()

    def run(self, commit: Callable[[], None]) -> Iterator[StartRecord]:
        while self._ends or self._next_row < len(self._submit_s):
            now = self._next_time()
            if now >= self._real_now_s:
                raise InvalidField("door", "the trace takes too many years for a virtual cluster")
            if self._end_jobs(now):
                remember_ended_once(self._virtual.cluster, virtual_datetime(now))
            if self._submit_jobs(now) and self._trains:
                train_trees_once(self._virtual.cluster, virtual_datetime(now), self._min_training_jobs)
            yield from self._turns(now)
            self._rank_change_s = self._next_rank_change(now)
            commit()

    def _next_time(self) -> float:
        next_submit_s = self._submit_s[self._next_row : self._next_row + 1]
        return min([self._rank_change_s, self._ends.next_time, *next_submit_s])

    def _next_rank_change(self, now: float) -> float:
        """When the rank of a running job changes by itself. A live cluster notices it because turns never pause."""
        rules = self._rules()
        if not rules.preempts:
            return math.inf
        at = next_rank_change(snapshot.take_snapshot(self._virtual.cluster, virtual_datetime(now)), rules)
        return math.inf if at is None else at

    def _end_jobs(self, now: float) -> bool:
        before = len(self._running)
        self._ends.run_until(now)
        return len(self._running) < before

    def _end_attempt(self, attempt: int, now: float) -> None:
        if self._running.pop(attempt, None):
            self._virtual.end(attempt, now)

    def _submit_jobs(self, now: float) -> bool:
        first = self._next_row
        while self._next_row < len(self._submit_s) and self._submit_s[self._next_row] == now:
            self._next_row += 1
        self._virtual.submit(range(first, self._next_row), now)
        return first < self._next_row

    def _turns(self, now: float) -> Iterator[StartRecord]:
        """One turn, and another one after each preemption."""
        while True:
            schedule_once(self._virtual.cluster, self._policy, virtual_datetime(now), _no_fence)
            for started in self._virtual.confirm_starts(now):
                self._plan_end(started, now)
                yield StartRecord(started.row, now, started.nodes)
            stopped = self._virtual.stop_preempted(now)
            for attempt in stopped:
                row, began, slowdown = self._running.pop(attempt)
                self._left_s[row] -= (now - began) / slowdown
            if not stopped:
                return

    def _plan_end(self, started: StartedAttempt, now: float) -> None:
        self._running[started.pk] = started.row, now, started.slowdown
        end = whole_second(now + self._left_s[started.row] * started.slowdown)
        self._ends.at(end, self._end_attempt, started.pk)


def _no_fence() -> None:
    """A virtual cluster has one scheduler and no lease."""
