"""What each job is told after a turn: what it was given, or what keeps it back, the weightiest first.

It is worked out once for all who ask for the same on one account; a job of its own costs the looking up. The sentences
are for the team of the job: who is ahead is named only if he belongs to it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from jobs.core.slurm_notation import format_count, format_duration
from scheduling.engine.blockers import Blocker, BlockerKind, capitalize_first, job_label
from scheduling.engine.cluster import ResourceRequest, StartDecision, WaitDecision, WaitingJob
from scheduling.engine.engine import Engine, EngineJob, RequestGroup
from scheduling.engine.gpu_accounts import QuotaRefusal
from scheduling.engine.room import NodeResources, assign_gpu_indices
from scheduling.engine.windows import UNKNOWN_RUN_S, NodeWindow

BlockerTuple = tuple[Blocker, ...]
WaitText = tuple[str, str, BlockerTuple]  # as in a `Wait`, of the first of them
QUOTA_KINDS = {"JobArrayTaskLimit": BlockerKind.ARRAY, "ReqNodeNotAvail": BlockerKind.RESERVATION}


class WaitExplainer:
    def __init__(
        self, engine: Engine, jobs: list[tuple[EngineJob, WaitingJob]], order: Sequence[EngineJob], now: datetime
    ) -> None:
        """`order`: of all who were submitted."""
        self._engine = engine
        self._now = now.timestamp()
        self._unbarred: NodeResources | None = None
        self._jobs = jobs
        self._behind: dict[RequestGroup, WaitText] = {}
        self._refusals: dict[RequestGroup, QuotaRefusal | None] = {}
        self._lacking: dict[int, Blocker | None] = {}  # by shape
        started = set(engine.started)
        self.waiting = [job for job in order if job not in started]
        self.head = next((job for job in self.waiting if not self._quota_refusal(job.ask)), None)

    def starts(self) -> Iterator[StartDecision]:
        taken = {number for job in self._engine.started for number, _ in job.places or ()}
        free = {number: sorted(self._engine.room.nodes[number].free_gpus) for number in taken}
        for job in self._engine.started:
            asked = self._jobs[job.number][1]
            need = asked.need
            number, word = (need.total_gpus, "GPU") if need.gpus else (need.nodes, "node")
            behind = self.head and _queue_position(self.head) < _queue_position(job)
            note = f"; {self._head_label(job.ask)} is ahead but does not fit." if behind else "."
            places = assign_gpu_indices(self._engine.room, job.places or (), free)
            yield StartDecision(
                job_id=asked.id, places=places, why=f"{format_count(number, word)} {_was_or_were(number)} free{note}"
            )

    def waits(self) -> list[WaitDecision]:
        jobs, new = self._jobs, tuple.__new__  # the way around Wait's own takes half as long
        waits = []
        for job in self.waiting:
            reason, why, told = self._wait_text(job)
            waits.append(new(WaitDecision, (jobs[job.number][1].id, reason, why, told)))
        return waits

    def told(self, job: EngineJob) -> BlockerTuple:
        """Its blockers, ranked; the same object for all who are told the same."""
        return self._wait_text(job)[2]

    def _wait_text(self, job: EngineJob) -> WaitText:
        ask = job.ask
        if job is self.head:
            return _text_of_blockers(self._find_blockers(ask, is_head=True))
        if (said := self._behind.get(ask)) is None:
            said = self._behind[ask] = _text_of_blockers(self._find_blockers(ask, is_head=False))
        return said

    def _find_blockers(self, ask: RequestGroup, *, is_head: bool) -> Iterator[Blocker]:
        ahead = self._priority_blocker(ask) if self.head and not is_head else None
        lacks = self._resource_blocker(ask)
        awaits = self._maintenance_blocker(ask) if lacks and self._engine.bars else None
        lacks = awaits or lacks
        if refused := self._quota_refusal(ask):
            yield Blocker(
                kind=QUOTA_KINDS.get(refused.reason, BlockerKind.QUOTA), reason=refused.reason, why=refused.why
            )
            if lacks:
                yield lacks
            return
        if ahead and self._engine.rules.one_line:
            yield ahead
            if lacks:
                yield lacks
            return
        lacks = lacks or self._policy_blocker(ask)
        if not ahead or awaits:
            yield lacks
            if ahead:
                yield ahead
            return
        first = f"{lacks.why} {capitalize_first(self._head_label(ask))} is ahead of it."
        yield Blocker(kind=lacks.kind, reason=lacks.reason, why=first, gpus=lacks.gpus, nodes=lacks.nodes)
        yield ahead

    def _priority_blocker(self, ask: RequestGroup) -> Blocker:
        why = f"{capitalize_first(self._head_label(ask))} is ahead of it in the queue."
        return Blocker(kind=BlockerKind.PRIORITY, reason="Priority", why=why)

    def _head_label(self, ask: RequestGroup) -> str:
        """As the team of this job may read it."""
        assert self.head is not None
        head = self._jobs[self.head.number][1]
        return job_label(head.name, head.team, lambda team: team == ask.owner.team)

    def _quota_refusal(self, ask: RequestGroup) -> QuotaRefusal | None:
        if ask not in self._refusals:
            self._refusals[ask] = self._engine.quota_refusal(ask)
        return self._refusals[ask]

    def _resource_blocker(self, ask: RequestGroup) -> Blocker | None:
        """What of the room is missing; None if it would fit. The same on every account."""
        if ask.shape not in self._lacking:
            engine = self._engine
            fits = engine.place(engine.room, ask.need, ask.able) is not None
            self._lacking[ask.shape] = None if fits else missing_resources(engine.room, ask)
        return self._lacking[ask.shape]

    def _maintenance_blocker(self, ask: RequestGroup) -> Blocker | None:
        """If nothing but a maintenance keeps it from starting."""
        engine = self._engine
        if self._unbarred is None:
            self._unbarred = engine.room.copy()
            engine.reopen_nodes(self._unbarred, math.inf)
        runs_s = ask.need.runs_s
        bars = [bar for bar in engine.bars if bar.stops(runs_s, self._now)]
        if not bars:
            return None
        left = (ask.able & engine.room.usable).bit_count()
        too_few = left < ask.need.nodes + bool(ask.need.rest)  # whoever holds the others, they are not to be had
        if not too_few and engine.place(self._unbarred, ask.need, ask.made) is None:
            return None
        why = maintenance_text([bar.window for bar in bars], self._now, runs_s)
        return Blocker(kind=BlockerKind.MAINTENANCE, reason="ReqNodeNotAvail", why=why, nodes=ask.need.nodes)

    def _policy_blocker(self, ask: RequestGroup) -> Blocker:
        """It fits, and the policy keeps the place free for somebody."""
        promise = self._engine.promise
        if promise is None:
            why = "It fits now, but the policy lets others go first."
            return Blocker(kind=BlockerKind.PRIORITY, reason="Priority", why=why)
        at = "its turn" if promise.at == math.inf else f"{datetime.fromtimestamp(promise.at, UTC):%d %b %H:%M} UTC"
        why = f"It fits now, but could still run at {at}, when the first in the queue is to start."
        return Blocker(kind=BlockerKind.RESERVATION, reason="Priority", why=why, gpus=promise.job.ask.gpus)


def maintenance_text(windows: Sequence[NodeWindow], now: float, runs_s: float) -> str:
    """For a job that would fit, and be there when they begin."""
    each = [f"{one.name} from {one.start:%d %b %H:%M} until {one.end:%d %b %H:%M} UTC" for one in windows[:2]]
    more = f" and {len(windows) - 2} more" if len(windows) > 2 else ""
    why = f"The nodes it would fit on are reserved for maintenance {' and '.join(each)}{more}"
    if all(one.start.timestamp() <= now for one in windows):
        return f"{why}."
    if runs_s != UNKNOWN_RUN_S:
        return f"{why}, and might still run then."
    lead = max(one.lead for one in windows)
    return f"{why}; as it has no time limit, it does not start there in the {format_duration(lead)} before."


def _queue_position(job: EngineJob) -> tuple[int, float, int]:
    return job.band, job.key, job.number


def _text_of_blockers(told: Iterator[Blocker]) -> WaitText:
    blockers = tuple(told)
    return blockers[0].reason, blockers[0].why, blockers


def missing_resources(room: NodeResources, ask: RequestGroup) -> Blocker:
    """Too few GPUs at all, or enough of them but not in this shape."""
    need = ask.need
    with_gpus = room.fitting_nodes(ResourceRequest(gpus=need.gpus), ask.able).bit_count()
    fitting = room.fitting_nodes(need, ask.able).bit_count()
    if not need.gpus:
        asked = f"{need.node or format_count(need.nodes, 'node')} with {format_count(need.cpus, 'CPU')}"
        why = f"It needs {asked}; {_nodes_have_text(fitting)} that free."
        return Blocker(
            kind=BlockerKind.CAPACITY, reason="Resources", why=why, nodes=max(0, need.nodes + bool(need.rest) - fitting)
        )
    free = room.free_gpus_among(ask.able)
    model = f"{need.gpu_model} GPU".strip()
    asked = format_count(need.gpus, model) if need.nodes == 1 else f"{need.nodes} × {format_count(need.gpus, model)}"
    asked += f" on {need.node}" if need.node else ""
    beside = _cpu_memory_text(room, need) if with_gpus > fitting else ""
    in_all = format_count(free, "GPU")
    why = f"It needs {asked}; {_nodes_have_text(fitting)} {need.gpus} free{beside} ({in_all} free in all)."
    scattered = free >= need.total_gpus
    return Blocker(
        kind=BlockerKind.TOPOLOGY if scattered else BlockerKind.CAPACITY,
        reason="Resources",
        why=why,
        gpus=max(0, need.total_gpus - free),
        nodes=max(0, need.nodes - fitting),
    )


def _cpu_memory_text(room: NodeResources, need: ResourceRequest) -> str:
    """Where CPUs or memory are what is short."""
    wanted = [format_count(need.cpus, "CPU")] if need.cpus else []
    if need.memory_mb:
        wanted.append(f"{need.memory_mb} MiB")
    return f" with {' and '.join(wanted)} beside them"


def _was_or_were(number: int) -> str:
    return "was" if number == 1 else "were"


def _nodes_have_text(nodes: int) -> str:
    return "no node has" if nodes == 0 else f"{format_count(nodes, 'node')} {'has' if nodes == 1 else 'have'}"
