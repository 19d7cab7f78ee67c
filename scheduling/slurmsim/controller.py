"""The controller of a small cluster: nodes, jobs, and what may happen to them, as slurmctld would have it.

It knows no clock, no network and no file: time comes in as an argument (unix seconds, the cluster's own wall clock),
and what it changed goes out through `take_changes`, as whole values that a store can keep. What a job *does* is the
business of its `Hands`: they play it or they run it. Intent goes before deed: a job is CONFIGURING, on its nodes and
in the store, for a second before the hands are told to start it.

A waiting job starts when its nodes have room. Where an older job waits for the same node, a younger one does not pass
it; a job that waits for a broken or drained node holds back nobody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from heapq import heapify, heappop, heappush

from jobs.core.lifecycle import FINAL_STATES, Flag, NodeFlag, NodeState, State, node_state_for_usage

from .fault_registry import FaultRegistry
from .faults import ClusterFault, FaultKind, FaultModel
from .free_resources import FreeClusterResources, could_ever_fit
from .values import (
    BAD_CONFIGURATION,
    BAD_FAULT,
    JOB_ALREADY_ENDED,
    KILL,
    TERM,
    UNKNOWN_JOB,
    UNKNOWN_NODE,
    ControllerState,
    ControllerTiming,
    JobEnd,
    JobExecutor,
    ProcessExit,
    SignalTarget,
    SimulatorSnapshot,
    SlurmError,
    SlurmJob,
    SlurmJobRequest,
    SlurmNode,
    StateChanges,
)


class TimedEvent(StrEnum):
    CONFIGURED = "configured"
    LIMIT = "limit"
    KILL = "kill"
    RELEASED = "released"
    FORGET = "forget"
    DEATH = "death"
    REPAIR = "repair"


class ClusterController:
    """The cluster. One method per command, and `advance` for everything that time does."""

    def __init__(
        self,
        picture: SimulatorSnapshot,
        hands: JobExecutor,
        now: float,
        *,
        faults: FaultModel | None = None,
        timing: ControllerTiming | None = None,
    ) -> None:
        self._hands = hands
        self._timing = timing or ControllerTiming()
        self._faults = faults or FaultModel()
        self._nodes = {node.name: node for node in picture.nodes}
        self._jobs = {job.id: job for job in picture.jobs}
        self._clock = picture.clock
        self._rooms = FreeClusterResources(self._nodes)
        self._sickbay = FaultRegistry(picture.troubles, faults or FaultModel())
        self._waiting: dict[int, None] = {}
        self._agenda: list[tuple[float, int, TimedEvent, int | str]] = []
        self._drawn = 0  # breaks ties on the agenda: first planned, first done
        self._now = now  # nothing starts in a time when nobody was here; what ended then ended then
        self._unsettled = True
        self._closing = False
        self.counts: Counter[str] = Counter()
        self.last_job_change = self.last_node_change = now
        self._changed_jobs: dict[int, None] = {}
        self._changed_nodes: dict[str, None] = {}
        self._forgotten: list[SlurmJob] = []
        self._clock_changed = False
        self._restore_all(now)

    # Questions

    @property
    def jobs(self) -> Mapping[int, SlurmJob]:
        return self._jobs

    @property
    def nodes(self) -> Mapping[str, SlurmNode]:
        return self._nodes

    def take_snapshot(self) -> SimulatorSnapshot:
        return SimulatorSnapshot(
            nodes=tuple(self._nodes.values()),
            jobs=tuple(self._jobs.values()),
            troubles=self.troubles,
            clock=self._clock,
        )

    @property
    def clock_offset_s(self) -> float:
        """How far the cluster's wall clock is ahead of the true time."""
        return self._clock.offset_s

    @property
    def troubles(self) -> tuple[ClusterFault, ...]:
        return self._sickbay.troubles

    def job(self, job_id: int) -> SlurmJob:
        if job_id not in self._jobs:
            raise SlurmError(UNKNOWN_JOB, "Invalid job id specified")
        return self._jobs[job_id]

    def node(self, name: str) -> SlurmNode:
        if name not in self._nodes:
            raise SlurmError(UNKNOWN_NODE, "Invalid node name specified")
        return self._nodes[name]

    def jobs_on(self, name: str) -> list[SlurmJob]:
        return [self._jobs[job_id] for job_id in sorted(self._rooms[name].jobs)]

    @property
    def empty(self) -> bool:
        """Whether no job has anything left on a node."""
        return self._rooms.empty

    def used_gpus(self, name: str) -> tuple[int, ...]:
        return tuple(sorted(set(range(self._nodes[name].gpus)) - self._rooms[name].gpus))

    def free_cpus(self, name: str) -> int:
        return self._rooms[name].cpus

    def free_memory_mb(self, name: str) -> int:
        return self._rooms[name].memory_mb

    def node_state(self, name: str) -> tuple[NodeState, frozenset[NodeFlag]]:
        node = self.node(name)
        flags = {NodeFlag.DRAIN} if node.drained else set()
        jobs = self.jobs_on(name)
        if any(job.is_completing for job in jobs):
            flags.add(NodeFlag.COMPLETING)
        if node.down:
            return NodeState.DOWN, frozenset(flags | {NodeFlag.NOT_RESPONDING})
        return node_state_for_usage(node.gpus, len(self.used_gpus(name)), bool(jobs)), frozenset(flags)

    # Commands

    def submit(self, request: SlurmJobRequest, now: float) -> SlurmJob:
        """Take it in, or say why it can never run. It starts with the next `advance`."""
        self._check_satisfiable(request)
        job = SlurmJob(
            id=self._clock.next_id,
            request=request,
            submitted_at=now,
            submit_offset_s=self.clock_offset_s,
            reason=_initial_reason(request),
        )
        self._set_state(replace(self._clock, next_id=job.id + 1))
        self._set_job(job, now)
        self._waiting[job.id] = None
        self._unsettled = True
        self.counts["submitted"] += 1
        return job

    def cancel(self, job_id: int, now: float) -> None:
        job = self.job(job_id)
        if job.state in FINAL_STATES:
            raise SlurmError(JOB_ALREADY_ENDED, "Job/step already completing or completed")
        self.counts["cancelled"] += 1
        if job.state == State.PENDING:
            self._cancel_pending_job(job, now)
        else:
            self._stop_job(job, State.CANCELLED, TERM, now)

    def signal(self, job_id: int, number: int, now: float, aim: SignalTarget = SignalTarget.ALL) -> None:
        """Any signal but KILL goes to the processes and changes nothing here; KILL is Slurm's way to say cancel."""
        job = self.job(job_id)
        if number == KILL:
            self.cancel(job_id, now)
        elif job.state != State.RUNNING or job.is_configuring:
            raise SlurmError(JOB_ALREADY_ENDED, "Job/step already completing or completed")
        else:
            self._hands.signal(job, number, now, aim)

    def update(self, job_id: int, changed: Mapping[str, object], now: float) -> None:
        """Fields of the request that may change after submission: `limit_s`, `comment`, `held`."""
        job = self.job(job_id)
        if job.state in FINAL_STATES:
            raise SlurmError(JOB_ALREADY_ENDED, "Job/step already completing or completed")
        request = replace(job.request, **changed)  # type: ignore[arg-type]
        job = replace(job, request=request)
        if job.state == State.PENDING:
            job = replace(job, reason=_initial_reason(request))
            self._unsettled = True
        self._set_job(job, now)
        self._schedule_time_limit(job)

    def set_clock_offset(self, offset_s: float) -> None:
        """Set the wall clock that the cluster reports by. What is planned happens at the same true moments."""
        self._set_state(replace(self._clock, offset_s=offset_s))

    def drain(self, name: str, reason: str, by: str, now: float) -> None:
        """No new work; what runs there ends in its own time."""
        node = self.node(name)
        reason_at = now + self.clock_offset_s
        self._set_node(replace(node, drained=True, reason=reason, reason_by=by, reason_at=reason_at), now)
        self._unsettled = True

    def resume(self, name: str, now: float) -> None:
        node = self.node(name)
        booted = now if node.down else node.boot_at
        self._sickbay.heal_node(name, now)
        clean = replace(node, drained=False, down=False, reason="", reason_by="", reason_at=0.0, repair_at=0.0)
        self._set_node(replace(clean, boot_at=booted), now)
        self._unsettled = True

    def set_down(self, name: str, reason: str, by: str, now: float, *, repair_at: float = 0.0) -> None:
        """The node is gone, and every job that touches it with it."""
        node = replace(self.node(name), down=True, reason=reason, reason_by=by, repair_at=repair_at)
        self._set_node(replace(node, reason_at=now + self.clock_offset_s), now)
        if repair_at:
            self._schedule_event(repair_at, TimedEvent.REPAIR, name)
        for job in self.jobs_on(name):
            if job.state == State.RUNNING:
                self._stop_job(job, State.NODE_FAIL, KILL, now, reason="NodeDown")
        self._unsettled = True

    def inject_fault(self, kind: FaultKind, now: float, *, node: str = "", gpu: int = -1) -> ClusterFault:
        """Something breaks, by the dice or because somebody wants to see what happens then."""
        if kind != FaultKind.STORAGE:
            self._check_fault_target(node, gpu)
        running = [job for job in self._jobs.values() if job.state == State.RUNNING and not job.is_configuring]
        trouble = self._sickbay.begin(kind, running, now, node=self._nodes.get(node), gpu=gpu)
        if kind == FaultKind.DEATH:
            self._mark_node_lost(node, now)
        for job_id in trouble.jobs:
            self._apply_fault_to_job(self._jobs[job_id], trouble, now)
        return trouble

    def _check_fault_target(self, name: str, gpu: int) -> None:
        node = self._nodes.get(name)
        if node is None:
            raise SlurmError(BAD_FAULT, f"node: there is no {name!r:.80}")
        if gpu >= node.gpus:
            raise SlurmError(BAD_FAULT, f"gpu: {name} has no GPU {gpu}")
        if node.down:
            raise SlurmError(BAD_FAULT, f"node: {name} is down; nothing more can break there")

    def _apply_fault_to_job(self, job: SlurmJob, trouble: ClusterFault, now: float) -> None:
        if job.state == State.RUNNING:
            struck = replace(job, blows=(*job.blows, self._faults.impact_on_job(trouble, job.id, now)))
            self._set_job(struck, now)
            self._hands.apply_fault(struck, now)

    def shut_down(self, reason: str, now: float) -> None:
        """The machine goes down in good order: what runs is asked to end, and nothing begins any more."""
        self._closing = True
        for job in list(self._jobs.values()):
            if job.state == State.RUNNING:
                self._stop_job(job, State.NODE_FAIL, TERM, now, reason=reason)

    # Time

    def advance_to(self, now: float) -> None:
        """Let happen what is due up to now, each thing at its own moment: one leap does what many steps would."""
        if self._unsettled:
            self._process_events_at(self._now)
        while (at := self._next_event_at()) is not None and at <= now:
            self._process_events_at(max(at, self._now))
        self._process_events_at(max(now, self._now))

    def take_changes(self) -> StateChanges:
        """Everything that changed since the last call, for the store."""
        changes = StateChanges(
            jobs=tuple(self._jobs[job_id] for job_id in self._changed_jobs if job_id in self._jobs),
            nodes=tuple(self._nodes[name] for name in self._changed_nodes),
            forgotten=tuple(self._forgotten),
            troubles=self._sickbay.take_changes(),
            clock=self._clock if self._clock_changed else None,
        )
        self._changed_jobs, self._changed_nodes, self._forgotten, self._clock_changed = {}, {}, [], False
        return changes

    def _next_event_at(self) -> float | None:
        times = [
            at for at in (self._agenda[0][0] if self._agenda else None, self._hands.next_end_at()) if at is not None
        ]
        return min(times, default=None)

    def _process_events_at(self, at: float) -> None:
        self._now = at
        for ended in self._hands.poll_ends(at):
            self._handle_job_end(ended, at)
        while self._agenda and self._agenda[0][0] <= at:
            _, _, what, whom = heappop(self._agenda)
            self._handle_event(what, whom, at)
        if self._unsettled and not self._closing:
            self._unsettled = False
            self._start_pending_jobs(at)

    def _schedule_event(self, at: float, what: TimedEvent, whom: int | str) -> None:
        self._drawn += 1
        heappush(self._agenda, (at, self._drawn, what, whom))

    def _schedule_time_limit(self, job: SlurmJob) -> None:
        if job.state == State.RUNNING and job.time_limit_at is not None:
            self._schedule_event(job.time_limit_at, TimedEvent.LIMIT, job.id)

    def _handle_event(self, what: TimedEvent, whom: int | str, now: float) -> None:
        """Nothing is ever taken off the agenda: each entry looks whether it still means anything."""
        if isinstance(whom, str):
            self._handle_node_event(what, whom, now)
        elif whom in self._jobs:
            self._handle_job_event(what, self._jobs[whom], now)

    def _handle_job_event(self, what: TimedEvent, job: SlurmJob, now: float) -> None:
        if what == TimedEvent.CONFIGURED and job.is_configuring and job.state == State.RUNNING:
            began_at = job.started_at + self._timing.configure_s
            blows = self._sickbay.impacts_at_start(job, began_at)
            begun = replace(job, flags=frozenset(), began_at=began_at, blows=blows)
            self._set_job(begun, now)
            self._hands.start(begun, now)
        elif (
            what == TimedEvent.LIMIT
            and job.state == State.RUNNING
            and job.time_limit_at is not None
            and job.time_limit_at <= now
        ):
            self._stop_job(job, State.TIMEOUT, TERM, now, reason="TimeLimit")
        elif what == TimedEvent.KILL and job.is_completing:
            self._hands.signal(job, KILL, now)
        elif what == TimedEvent.RELEASED and job.is_completing:
            self._release_resources(job, now)
        elif what == TimedEvent.FORGET and job.state in FINAL_STATES and not job.is_completing:
            self._purge_job(job)

    def _handle_node_event(self, what: TimedEvent, name: str, now: float) -> None:
        if what == TimedEvent.DEATH:
            self._inject_next_fault(now)
        elif (node := self._nodes.get(name)) and node.down and 0 < node.repair_at <= now:
            self.resume(name, now)

    # A job's way

    def _check_satisfiable(self, asked: SlurmJobRequest) -> None:
        unknown = [name for name in asked.required_nodes if name not in self._nodes]
        if unknown:
            raise SlurmError(UNKNOWN_NODE, "Invalid node name specified")
        eligible = [self._nodes[n] for n in asked.required_nodes] or list(self._nodes.values())
        enough = sum(could_ever_fit(node, asked) for node in eligible) >= asked.node_count
        exact = not asked.required_nodes or asked.node_count == len(asked.required_nodes)
        if not exact or asked.node_count < 1 or not enough:
            raise SlurmError(BAD_CONFIGURATION, "Requested node configuration is not available")

    def _start_pending_jobs(self, now: float) -> None:
        claimed: set[str] = set()
        for job in [self._jobs[job_id] for job_id in self._waiting]:
            nodes, reason = self._rooms.find_placement(job.request, claimed)
            if nodes:
                self._start_job(job, nodes, now)
                continue
            if reason == "Resources":
                claimed.update(job.request.required_nodes)
            if reason != job.reason:
                self._set_job(replace(job, reason=reason), now)

    def _start_job(self, job: SlurmJob, nodes: tuple[str, ...], now: float) -> None:
        gpus = self._rooms.lowest_free_gpus(nodes, job.request.gpus_per_node)
        flags = frozenset({Flag.CONFIGURING})
        started = replace(job, state=State.RUNNING, flags=flags, reason="None", nodes=nodes, gpus=gpus)
        started = replace(started, started_at=now, start_offset_s=self.clock_offset_s)
        del self._waiting[job.id]
        self._rooms.take(started)
        self._set_job(started, now)
        self._schedule_event(now + self._timing.configure_s, TimedEvent.CONFIGURED, job.id)
        self._schedule_time_limit(started)
        self.counts["started"] += 1

    def _handle_job_end(self, ended: JobEnd, now: float) -> None:
        """The processes are gone. A job that was being stopped keeps the state it was stopped with.

        Its exit is that of its processes: one that was asked to end may have come to a good end by itself.
        """
        job = self._jobs.get(ended.job_id)
        if job is None or not job.holds_resources:
            return
        if job.state != State.RUNNING and ended.state in (State.COMPLETED, State.FAILED) and ended.exit != job.exit:
            self._set_job(replace(job, exit=ended.exit), now)
        if job.state == State.RUNNING:
            job = replace(
                job,
                state=ended.state,
                flags=frozenset({Flag.COMPLETING}),
                exit=ended.exit,
                reason=ended.reason,
                ended_at=max(ended.at, job.started_at),
                end_offset_s=self.clock_offset_s,
            )
            self.counts[str(ended.state).lower()] += 1
            self._set_job(job, now)
        self._schedule_event(max(ended.at, now) + self._timing.complete_s, TimedEvent.RELEASED, job.id)
        if ended.broke:
            self._sickbay.note(ended.broke, job.id)
        if ended.lost_node in self._nodes:
            self._mark_node_lost(ended.lost_node, now)

    def _stop_job(self, job: SlurmJob, state: State, number: int, now: float, *, reason: str = "None") -> None:
        """End it from outside: it is called by its end at once, and holds its GPUs until its processes are gone."""
        flags, ended = frozenset({Flag.COMPLETING}), ProcessExit(signal=number)
        stopped = replace(job, state=state, flags=flags, reason=reason, exit=ended)
        stopped = replace(stopped, ended_at=now, end_offset_s=self.clock_offset_s)
        self._set_job(stopped, now)
        if job.is_configuring:
            self._schedule_event(now + self._timing.complete_s, TimedEvent.RELEASED, job.id)
            return
        self._hands.signal(stopped, number, now)
        self._schedule_event(now + self._timing.kill_wait_s, TimedEvent.KILL, job.id)

    def _cancel_pending_job(self, job: SlurmJob, now: float) -> None:
        del self._waiting[job.id]
        cancelled = replace(job, state=State.CANCELLED, reason="None")
        self._set_job(replace(cancelled, ended_at=now, end_offset_s=self.clock_offset_s), now)
        self._schedule_event(now + self._timing.min_job_age_s, TimedEvent.FORGET, job.id)
        self._unsettled = True

    def _release_resources(self, job: SlurmJob, now: float) -> None:
        self._set_job(replace(job, flags=frozenset()), now)
        self._rooms.give(job)
        self._schedule_event(job.ended_at + self._timing.min_job_age_s, TimedEvent.FORGET, job.id)
        self._unsettled = True

    def _purge_job(self, job: SlurmJob) -> None:
        del self._jobs[job.id]
        self._forgotten.append(job)

    # Faults

    def _inject_next_fault(self, now: float) -> None:
        """One thing breaks, and the next is drawn. A node that is down already cannot break again."""
        number = self._clock.faults
        standing = [node.name for node in self._nodes.values() if not node.down]
        if standing:
            self.inject_fault(self._faults.kind(number), now, node=self._faults.victim(number, standing))
        self._schedule_next_fault(number + 1, now)

    def _mark_node_lost(self, name: str, now: float) -> None:
        repaired = now + self._faults.repair_s(self._clock.faults)
        self.set_down(name, "Not responding", "slurm", now, repair_at=repaired)

    def _schedule_next_fault(self, number: int, now: float) -> None:
        at = now + self._faults.gap(number, len(self._nodes))
        self._set_state(replace(self._clock, faults=number, next_fault_at=at))
        self._schedule_event(at, TimedEvent.DEATH, "")

    # Coming back

    def _restore_all(self, now: float) -> None:
        for job in self._jobs.values():
            self._restore_job(job, now)
        for node in self._nodes.values():
            if node.repair_at:
                self._schedule_event(node.repair_at, TimedEvent.REPAIR, node.name)
        if self._faults.per_node_day and self._nodes:
            if self._clock.next_fault_at:
                self._schedule_event(self._clock.next_fault_at, TimedEvent.DEATH, "")
            else:
                self._schedule_next_fault(self._clock.faults, now)
        heapify(self._agenda)

    def _restore_job(self, job: SlurmJob, now: float) -> None:
        if job.state == State.PENDING:
            self._waiting[job.id] = None
        elif not job.holds_resources:
            self._schedule_event(job.ended_at + self._timing.min_job_age_s, TimedEvent.FORGET, job.id)
        else:
            self._rooms.take(job)
            self._restore_running_job(job, now)

    def _restore_running_job(self, job: SlurmJob, now: float) -> None:
        self._schedule_time_limit(job)
        if job.is_configuring:
            self._schedule_event(job.started_at + self._timing.configure_s, TimedEvent.CONFIGURED, job.id)
            return
        self._hands.adopt(job, now)
        if job.is_completing:
            self._schedule_event(job.ended_at + self._timing.kill_wait_s, TimedEvent.KILL, job.id)

    # Writing down

    def _set_job(self, job: SlurmJob, now: float) -> None:
        self._jobs[job.id] = job
        self._changed_jobs[job.id] = None
        self.last_job_change = now
        self._now = max(self._now, now)  # what follows from a command does not happen before it

    def _set_node(self, node: SlurmNode, now: float) -> None:
        self._nodes[node.name] = node
        self._changed_nodes[node.name] = None
        self.last_node_change = now
        self._now = max(self._now, now)

    def _set_state(self, clock: ControllerState) -> None:
        self._clock = clock
        self._clock_changed = True


def _initial_reason(request: SlurmJobRequest) -> str:
    return "JobHeldUser" if request.held else "None"
