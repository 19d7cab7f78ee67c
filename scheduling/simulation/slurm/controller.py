"""The controller of a small simulated cluster: nodes, jobs and their state changes, as in slurmctld.

It uses no clock, no network and no files: time is an argument (unix seconds of the true time), and its changes leave
through `take_changes`, as complete values that a store can keep. A `JobExecutor` simulates or runs the jobs. Intent is
stored before the action: a job is CONFIGURING, with its nodes in the store, for a second before the executor starts it.

A pending job starts when its nodes have enough free resources. A younger job does not overtake an older one that waits
for the same node; a job that waits for a down or drained node blocks no other job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from jobs.core.lifecycle import FINAL_STATES, Flag, NodeFlag, NodeState, State, node_state_for_usage
from scheduling.event_queue import EventQueue
from scheduling.simulation.machines.clocks import with_current_speed
from scheduling.simulation.machines.fault_registry import FaultRegistry
from scheduling.simulation.machines.faults import ClusterFault, FaultKind, FaultModel
from scheduling.simulation.machines.values import (
    KILL,
    TERM,
    JobEnd,
    JobExecutor,
    ProcessExit,
    SignalTarget,
    SimulatedJob,
    SimulatedJobRequest,
    SimulatedNode,
)

from .free_resources import FreeClusterResources, could_ever_fit
from .values import (
    BAD_CONFIGURATION,
    BAD_FAULT,
    BAD_NODE_STATE,
    JOB_ALREADY_ENDED,
    UNKNOWN_JOB,
    UNKNOWN_NODE,
    ControllerState,
    ControllerTiming,
    SimulatorSnapshot,
    SlurmError,
    StateChanges,
)


class ClusterController:
    """The cluster. One method per command, and `advance_to` for everything that happens over time."""

    def __init__(
        self,
        snapshot: SimulatorSnapshot,
        executor: JobExecutor,
        now: float,
        *,
        faults: FaultModel | None = None,
        timing: ControllerTiming | None = None,
    ) -> None:
        self._executor = executor
        self._timing = timing or ControllerTiming()
        self._faults = faults or FaultModel()
        self._nodes = {node.name: node for node in snapshot.nodes}
        self._jobs = {job.id: job for job in snapshot.jobs}
        self._clock = snapshot.clock
        self._free = FreeClusterResources(self._nodes)
        self._fault_registry = FaultRegistry(snapshot.faults, faults or FaultModel())
        self._waiting: dict[int, None] = {}
        self._agenda = EventQueue()
        self._now = now  # no job starts in the past; ends keep their times
        self._has_pending_changes = True
        self._closing = False
        self.counts: Counter[str] = Counter()
        self.last_job_change = self.last_node_change = now
        self._changed_jobs: dict[int, None] = {}
        self._changed_nodes: dict[str, None] = {}
        self._forgotten: list[SimulatedJob] = []
        self._clock_changed = False
        self._restore_all(now)

    # Queries

    @property
    def jobs(self) -> Mapping[int, SimulatedJob]:
        return self._jobs

    @property
    def nodes(self) -> Mapping[str, SimulatedNode]:
        return self._nodes

    def take_snapshot(self) -> SimulatorSnapshot:
        return SimulatorSnapshot(
            nodes=tuple(self._nodes.values()),
            jobs=tuple(self._jobs.values()),
            faults=self.faults,
            clock=self._clock,
        )

    @property
    def clock_offset_s(self) -> float:
        """By how many seconds the cluster's wall clock is ahead of the true time."""
        return self._clock.offset_s

    @property
    def faults(self) -> tuple[ClusterFault, ...]:
        return self._fault_registry.faults

    def job(self, job_id: int) -> SimulatedJob:
        if job_id not in self._jobs:
            raise SlurmError(UNKNOWN_JOB, "Invalid job id specified")
        return self._jobs[job_id]

    def node(self, name: str) -> SimulatedNode:
        if name not in self._nodes:
            raise SlurmError(UNKNOWN_NODE, "Invalid node name specified")
        return self._nodes[name]

    def jobs_on(self, name: str) -> list[SimulatedJob]:
        return [self._jobs[job_id] for job_id in sorted(self._free[name].jobs)]

    @property
    def empty(self) -> bool:
        """Whether no job holds resources on any node."""
        return self._free.empty

    def used_gpus(self, name: str) -> tuple[int, ...]:
        return tuple(sorted(set(range(self._nodes[name].gpus)) - self._free[name].gpus))

    def free_cpus(self, name: str) -> int:
        return self._free[name].cpus

    def free_memory_mb(self, name: str) -> int:
        return self._free[name].memory_mb

    def node_state(self, name: str) -> tuple[NodeState, frozenset[NodeFlag]]:
        node = self.node(name)
        flags = {NodeFlag.DRAIN} if node.drained else set()
        if node.power:
            flags.add(node.power)
        jobs = self.jobs_on(name)
        if any(job.is_completing for job in jobs):
            flags.add(NodeFlag.COMPLETING)
        if node.down:
            return NodeState.DOWN, frozenset(flags | {NodeFlag.NOT_RESPONDING})
        if node.power == NodeFlag.POWERING_UP:
            flags.add(NodeFlag.NOT_RESPONDING)  # as Slurm reports it
        return node_state_for_usage(node.gpus, len(self.used_gpus(name)), bool(jobs)), frozenset(flags)

    # Commands

    def submit(self, request: SimulatedJobRequest, now: float) -> SimulatedJob:
        """Accept a job, or raise SlurmError if it can never run. It starts with the next `advance_to`."""
        self._check_satisfiable(request)
        job = SimulatedJob(
            id=self._clock.next_id, request=request, submitted_at=now,
            submit_offset_s=self.clock_offset_s, reason=_initial_reason(request),
        )  # fmt: skip
        self._set_state(replace(self._clock, next_id=job.id + 1))
        self._set_job(job, now)
        self._waiting[job.id] = None
        self._has_pending_changes = True
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
        """Send a signal to the job's processes; KILL cancels the job, as in Slurm."""
        job = self.job(job_id)
        if number == KILL:
            self.cancel(job_id, now)
        elif job.state != State.RUNNING or job.is_configuring:
            raise SlurmError(JOB_ALREADY_ENDED, "Job/step already completing or completed")
        else:
            self._executor.signal(job, number, now, aim)

    def update(self, job_id: int, changed: Mapping[str, object], now: float) -> None:
        """Change fields of the request after submission: `limit_s`, `comment`, `held`."""
        job = self.job(job_id)
        if job.state in FINAL_STATES:
            raise SlurmError(JOB_ALREADY_ENDED, "Job/step already completing or completed")
        request = replace(job.request, **changed)  # type: ignore[arg-type]
        job = replace(job, request=request)
        if job.state == State.PENDING:
            job = replace(job, reason=_initial_reason(request))
            self._has_pending_changes = True
        self._set_job(job, now)
        self._schedule_time_limit(job)

    def set_clock_offset(self, offset_s: float) -> None:
        """Set the offset of the wall clock that the cluster reports. Scheduled events keep their true times."""
        self._set_state(replace(self._clock, offset_s=offset_s))

    def drain(self, name: str, reason: str, by: str, now: float) -> None:
        """Start no new jobs on the node; running jobs continue."""
        node = self.node(name)
        reason_at = now + self.clock_offset_s
        self._set_node(replace(node, drained=True, reason=reason, reason_by=by, reason_at=reason_at), now)
        self._has_pending_changes = True

    def resume(self, name: str, now: float) -> None:
        node = self.node(name)
        booted, clock_mhz = (now, None) if node.down else (node.boot_at, node.clock_mhz)
        self._fault_registry.heal_node(name, now)
        clean = replace(node, drained=False, down=False, reason="", reason_by="", reason_at=0.0, repair_at=0.0)
        self._set_node(replace(clean, boot_at=booted, clock_mhz=clock_mhz), now)
        self._has_pending_changes = True

    def power_down(self, name: str, now: float) -> None:
        """Let the node sleep when its jobs have ended. No job starts there until it has fallen asleep."""
        node = self.node(name)
        if node.down:
            raise SlurmError(BAD_NODE_STATE, "Invalid node state specified")
        if node.power is None:
            self._set_node(replace(node, power=NodeFlag.POWER_DOWN), now)
            self._fall_asleep_if_empty(name, now)

    def power_up(self, name: str, now: float) -> None:
        """Boot the node if it sleeps or once it has fallen asleep; keep it awake if it has not begun to. As in Slurm,
        a node that boots already is expected to boot once more, which a machine that is on does not.
        """
        node = self.node(name)
        if node.power == NodeFlag.POWERED_DOWN:
            self._boot(node, now)
        elif node.power == NodeFlag.POWERING_DOWN:
            self._set_node(replace(node, wakes_again=True), now)
        elif node.power == NodeFlag.POWERING_UP:
            self._change_power(replace(node, boot_ordered_twice=True), node.power, now, self._timing.resume_timeout_s)
        elif node.power == NodeFlag.POWER_DOWN:
            self._set_node(replace(node, power=None), now)
            self._has_pending_changes = True

    def _fall_asleep_if_empty(self, name: str, now: float) -> None:
        node = self._nodes[name]
        if node.power == NodeFlag.POWER_DOWN and not self._free[name].jobs:
            self._change_power(node, NodeFlag.POWERING_DOWN, now, self._timing.suspend_s)

    def _boot(self, node: SimulatedNode, now: float) -> None:
        stuck = self._fault_registry.keeps_asleep(node.name, now)
        lasts_s = self._timing.resume_timeout_s if stuck else self._timing.boot_s
        self._change_power(
            replace(node, wakes_again=False, boot_ordered_twice=False), NodeFlag.POWERING_UP, now, lasts_s
        )

    def _change_power(self, node: SimulatedNode, power: NodeFlag | None, now: float, lasts_s: float = 0.0) -> None:
        at = now + lasts_s if lasts_s else 0.0
        self._set_node(replace(node, power=power, power_at=at), now)
        if at:
            self._agenda.at(at, self._handle_power_event, node.name)
        self._has_pending_changes = True

    def _handle_power_event(self, name: str, now: float) -> None:
        node = self._nodes[name]
        if not 0 < node.power_at <= now:
            return
        if node.power == NodeFlag.POWERING_DOWN:
            self._change_power(node, NodeFlag.POWERED_DOWN, now)
            if node.wakes_again:
                self._boot(self._nodes[node.name], now)
        elif node.power == NodeFlag.POWERING_UP and (
            node.boot_ordered_twice or self._fault_registry.keeps_asleep(node.name, now)
        ):
            self.set_down(node.name, "ResumeTimeout reached", "slurm", now)
        elif node.power == NodeFlag.POWERING_UP:
            self._change_power(replace(node, boot_at=now, clock_mhz=None), None, now)
            for job in self.jobs_on(node.name):
                if job.is_configuring and job.state == State.RUNNING:
                    self._configure_after_boot(job, now)

    def _configure_after_boot(self, job: SimulatedJob, now: float) -> None:
        """A job that waited for a boot: its time counts from here, as in Slurm."""
        if self._is_up(job):
            job = replace(job, started_at=now, start_offset_s=self.clock_offset_s)
            self._set_job(job, now)
            self._agenda.at(now + self._timing.configure_s, self._begin_job, job.id)
            self._schedule_time_limit(job)

    def set_down(self, name: str, reason: str, by: str, now: float, *, repair_at: float = 0.0) -> None:
        """Mark the node as down and fail all jobs on it."""
        node = replace(self.node(name), down=True, reason=reason, reason_by=by, repair_at=repair_at, power=None)
        self._set_node(replace(node, reason_at=now + self.clock_offset_s), now)
        if repair_at:
            self._agenda.at(repair_at, self._repair_node, name)
        for job in self.jobs_on(name):
            if job.state == State.RUNNING:
                self._stop_job(job, State.NODE_FAIL, KILL, now, reason="NodeDown")
        self._has_pending_changes = True

    def set_clocks(self, clocks: Mapping[str, int | None], now: float) -> None:
        """Set the clocks of the GPUs of these nodes; None is the highest. Either all are set or none."""
        nodes = [self.node(name) for name in clocks]
        for node in nodes:
            if not node.runs:
                raise SlurmError(BAD_NODE_STATE, f"clocks: {node.name} does not respond")
        for node in nodes:
            self._set_node(replace(node, clock_mhz=clocks[node.name]), now)
        for job in {job.id: job for name in clocks for job in self.jobs_on(name)}.values():
            self._update_speed(job, now)

    def _update_speed(self, job: SimulatedJob, now: float) -> None:
        changed = with_current_speed(job, self._nodes, now)
        if job.state == State.RUNNING and not job.is_configuring and changed is not job:
            self._set_job(changed, now)
            self._executor.apply_fault(changed, now)

    def inject_fault(self, kind: FaultKind, now: float, *, node: str = "", gpu: int = -1) -> ClusterFault:
        """Start a fault of a node or of the storage, drawn at random or requested through the API."""
        if kind != FaultKind.STORAGE:
            self._check_fault_target(node, gpu)
        running = [job for job in self._jobs.values() if job.state == State.RUNNING and not job.is_configuring]
        fault = self._fault_registry.begin(kind, running, now, node=self._nodes.get(node), gpu=gpu)
        if kind == FaultKind.DEATH:
            self._mark_node_lost(node, now)
        for job_id in fault.jobs:
            self._apply_fault_to_job(self._jobs[job_id], fault, now)
        return fault

    def inject_job_fault(self, kind: FaultKind, job_id: int, now: float) -> ClusterFault:
        """Start a fault that hits this running job only."""
        job = self._jobs.get(job_id)
        if job is None or job.state != State.RUNNING or job.is_configuring:
            raise SlurmError(BAD_FAULT, f"job: {job_id} is not running")
        fault = self._fault_registry.begin_in_job(kind, job, now, node=self._nodes.get(job.nodes[0]))
        self._apply_fault_to_job(job, fault, now)
        return fault

    def _check_fault_target(self, name: str, gpu: int) -> None:
        node = self._nodes.get(name)
        if node is None:
            raise SlurmError(BAD_FAULT, f"node: {name!r:.80} does not exist")
        if gpu >= node.gpus:
            raise SlurmError(BAD_FAULT, f"gpu: {name} has no GPU {gpu}")
        if node.down:
            raise SlurmError(BAD_FAULT, f"node: {name} is down, so no fault can be injected there")

    def _apply_fault_to_job(self, job: SimulatedJob, fault: ClusterFault, now: float) -> None:
        if job.state == State.RUNNING:
            struck = replace(job, blows=(*job.blows, self._faults.impact_on_job(fault, job.id, now)))
            self._set_job(struck, now)
            self._executor.apply_fault(struck, now)

    def shut_down(self, reason: str, now: float) -> None:
        """Shut down in good order: running jobs get TERM, and no job starts any more."""
        self._closing = True
        for job in list(self._jobs.values()):
            if job.state == State.RUNNING:
                self._stop_job(job, State.NODE_FAIL, TERM, now, reason=reason)

    # Time

    def advance_to(self, now: float) -> None:
        """Process all events due up to now, each at its own time: one long step has the effect of many short ones."""
        if self._has_pending_changes:
            self._process_events_at(self._now)
        while (at := self._next_event_at()) <= now:
            self._process_events_at(max(at, self._now))
        self._process_events_at(max(now, self._now))

    def take_changes(self) -> StateChanges:
        """Everything that changed since the last call, for the store."""
        changes = StateChanges(
            jobs=tuple(self._jobs[job_id] for job_id in self._changed_jobs if job_id in self._jobs),
            nodes=tuple(self._nodes[name] for name in self._changed_nodes),
            forgotten=tuple(self._forgotten),
            faults=self._fault_registry.take_changes(),
            clock=self._clock if self._clock_changed else None,
        )
        self._changed_jobs, self._changed_nodes, self._forgotten, self._clock_changed = {}, {}, [], False
        return changes

    def _next_event_at(self) -> float:
        return min(self._agenda.next_time, self._executor.next_end_at())

    def _process_events_at(self, at: float) -> None:
        self._now = at
        for ended in self._executor.poll_ends(at):
            self._handle_job_end(ended, at)
        for event, subject in self._agenda.take_due(at):
            event(subject, at)
        if self._has_pending_changes and not self._closing:
            self._has_pending_changes = False
            self._start_pending_jobs(at)

    def _schedule_time_limit(self, job: SimulatedJob) -> None:
        if job.state == State.RUNNING and job.time_limit_at is not None:
            self._agenda.at(job.time_limit_at, self._enforce_limit, job.id)

    # Events are never removed from the agenda, so each one checks whether it still applies

    def _begin_job(self, job_id: int, now: float) -> None:
        """The nodes of the job are ready: its processes start."""
        job = self._jobs.get(job_id)
        if job is None or not job.is_configuring or job.state != State.RUNNING or not self._is_up(job):
            return
        began_at = job.started_at + self._timing.configure_s
        blows = self._fault_registry.impacts_at_start(job, began_at)
        started_job = replace(job, flags=frozenset(), began_at=began_at, blows=blows)
        started_job = with_current_speed(started_job, self._nodes, began_at)
        self._set_job(started_job, now)
        self._executor.start(started_job, now)

    def _enforce_limit(self, job_id: int, now: float) -> None:
        job = self._jobs.get(job_id)
        if job is None or job.state != State.RUNNING or job.time_limit_at is None:
            return
        if job.time_limit_at <= now and self._is_up(job):
            self._stop_job(job, State.TIMEOUT, TERM, now, reason="TimeLimit")

    def _kill_job(self, job_id: int, now: float) -> None:
        job = self._jobs.get(job_id)
        if job is not None and job.is_completing:
            self._executor.signal(job, KILL, now)

    def _release_resources(self, job_id: int, now: float) -> None:
        job = self._jobs.get(job_id)
        if job is None or not job.is_completing:
            return
        self._set_job(replace(job, flags=frozenset()), now)
        self._free.give(job)
        for name in job.nodes:
            self._fall_asleep_if_empty(name, now)
        self._agenda.at(job.ended_at + self._timing.min_job_age_s, self._purge_job, job.id)
        self._has_pending_changes = True

    def _purge_job(self, job_id: int, now: float) -> None:
        job = self._jobs.get(job_id)
        if job is not None and job.state in FINAL_STATES and not job.is_completing:
            self._forgotten.append(self._jobs.pop(job_id))

    def _repair_node(self, name: str, now: float) -> None:
        node = self._nodes[name]
        if node.down and 0 < node.repair_at <= now:
            self.resume(name, now)

    def _is_up(self, job: SimulatedJob) -> bool:
        return all(self._nodes[name].runs for name in job.nodes)

    # Job lifecycle

    def _check_satisfiable(self, request: SimulatedJobRequest) -> None:
        unknown = [name for name in request.required_nodes if name not in self._nodes]
        if unknown:
            raise SlurmError(UNKNOWN_NODE, "Invalid node name specified")
        eligible = [self._nodes[n] for n in request.required_nodes] or list(self._nodes.values())
        enough = sum(could_ever_fit(node, request) for node in eligible) >= request.node_count
        exact = not request.required_nodes or request.node_count == len(request.required_nodes)
        if not exact or request.node_count < 1 or not enough:
            raise SlurmError(BAD_CONFIGURATION, "Requested node configuration is not available")

    def _start_pending_jobs(self, now: float) -> None:
        claimed: set[str] = set()
        for job in [self._jobs[job_id] for job_id in self._waiting]:
            nodes, reason = self._free.find_placement(job.request, claimed)
            if nodes:
                self._start_job(job, nodes, now)
                continue
            if reason == "Resources":
                claimed.update(job.request.required_nodes)
            if reason != job.reason:
                self._set_job(replace(job, reason=reason), now)

    def _start_job(self, job: SimulatedJob, nodes: tuple[str, ...], now: float) -> None:
        gpus = self._free.select_gpus(nodes, job.request)
        flags = frozenset({Flag.CONFIGURING})
        started = replace(job, state=State.RUNNING, flags=flags, reason="None", nodes=nodes, gpus=gpus)
        started = replace(started, started_at=now, start_offset_s=self.clock_offset_s)
        del self._waiting[job.id]
        self._free.take(started)
        self._set_job(started, now)
        for name in nodes:
            if (node := self._nodes[name]).power == NodeFlag.POWERED_DOWN:
                self._boot(node, now)
        self._agenda.at(now + self._timing.configure_s, self._begin_job, job.id)
        self._schedule_time_limit(started)
        self.counts["started"] += 1

    def _handle_job_end(self, ended: JobEnd, now: float) -> None:
        """Record that the processes have ended. A job that was being stopped keeps the state that it was stopped with.

        Its exit status is that of its processes: a job that got TERM may still have ended successfully.
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
        self._agenda.at(max(ended.at, now) + self._timing.complete_s, self._release_resources, job.id)
        if ended.broke:
            self._fault_registry.note(ended.broke, job.id)
        if ended.lost_node in self._nodes:
            self._mark_node_lost(ended.lost_node, now)

    def _stop_job(self, job: SimulatedJob, state: State, number: int, now: float, *, reason: str = "None") -> None:
        """Stop a job from outside: its state changes at once, and it holds its GPUs until its processes are gone."""
        flags, ended = frozenset({Flag.COMPLETING}), ProcessExit(signal=number)
        stopped = replace(job, state=state, flags=flags, reason=reason, exit=ended)
        stopped = replace(stopped, ended_at=now, end_offset_s=self.clock_offset_s)
        self._set_job(stopped, now)
        if job.is_configuring:
            self._agenda.at(now + self._timing.complete_s, self._release_resources, job.id)
            return
        self._executor.signal(stopped, number, now)
        self._agenda.at(now + self._timing.kill_wait_s, self._kill_job, job.id)

    def _cancel_pending_job(self, job: SimulatedJob, now: float) -> None:
        del self._waiting[job.id]
        cancelled = replace(job, state=State.CANCELLED, reason="None")
        self._set_job(replace(cancelled, ended_at=now, end_offset_s=self.clock_offset_s), now)
        self._agenda.at(now + self._timing.min_job_age_s, self._purge_job, job.id)
        self._has_pending_changes = True

    # Faults

    def _inject_next_fault(self, _: None, now: float) -> None:
        """Inject one fault and schedule the next. Only nodes that are up are chosen."""
        number = self._clock.faults
        nodes_up = [node.name for node in self._nodes.values() if node.runs]
        if nodes_up:
            self.inject_fault(self._faults.kind(number), now, node=self._faults.victim(number, nodes_up))
        self._schedule_next_fault(number + 1, now)

    def _mark_node_lost(self, name: str, now: float) -> None:
        repaired = now + self._faults.repair_s(self._clock.faults)
        self.set_down(name, "Not responding", "slurm", now, repair_at=repaired)

    def _schedule_next_fault(self, number: int, now: float) -> None:
        at = now + self._faults.gap(number, len(self._nodes))
        self._set_state(replace(self._clock, faults=number, next_fault_at=at))
        self._agenda.at(at, self._inject_next_fault)

    # Restart

    def _restore_all(self, now: float) -> None:
        for job in self._jobs.values():
            self._restore_job(job, now)
        for node in self._nodes.values():
            if node.repair_at:
                self._agenda.at(node.repair_at, self._repair_node, node.name)
            if node.power_at:
                self._agenda.at(node.power_at, self._handle_power_event, node.name)
        if self._faults.per_node_day and self._nodes:
            if self._clock.next_fault_at:
                self._agenda.at(self._clock.next_fault_at, self._inject_next_fault)
            else:
                self._schedule_next_fault(self._clock.faults, now)

    def _restore_job(self, job: SimulatedJob, now: float) -> None:
        if job.state == State.PENDING:
            self._waiting[job.id] = None
        elif not job.holds_resources:
            self._agenda.at(job.ended_at + self._timing.min_job_age_s, self._purge_job, job.id)
        else:
            self._free.take(job)
            self._restore_running_job(job, now)

    def _restore_running_job(self, job: SimulatedJob, now: float) -> None:
        self._schedule_time_limit(job)
        if job.is_configuring:
            self._agenda.at(job.started_at + self._timing.configure_s, self._begin_job, job.id)
            return
        self._executor.adopt(job, now)
        if job.is_completing:
            self._agenda.at(job.ended_at + self._timing.kill_wait_s, self._kill_job, job.id)

    # Recording changes

    def _set_job(self, job: SimulatedJob, now: float) -> None:
        self._jobs[job.id] = job
        self._changed_jobs[job.id] = None
        self.last_job_change = now
        self._now = max(self._now, now)  # effects of a command must not precede it

    def _set_node(self, node: SimulatedNode, now: float) -> None:
        self._nodes[node.name] = node
        self._changed_nodes[node.name] = None
        self.last_node_change = now
        self._now = max(self._now, now)

    def _set_state(self, clock: ControllerState) -> None:
        self._clock = clock
        self._clock_changed = True


def _initial_reason(request: SimulatedJobRequest) -> str:
    return "JobHeldUser" if request.held else "None"
