"""The simulated datacenter of a drill: the engine places jobs; jobs start, run and end; nodes close and open. Pure.

The simulation knows the truth. A strategy (`RecoveryStrategy`) sees what a control plane would see, and acts through
the public methods below `actions of a strategy`. Times are virtual seconds; each random draw is seeded by its purpose.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Protocol

from failures.detection.hang import TimedLine
from failures.detection.node_health import NodeTelemetryWindow
from failures.detection.slow_ranks import RankTimings
from failures.incidents.circumstances import NodeStateChange
from failures.recovery.rules.pair_tests import GroupResult, NodeGroup
from scheduling.engine.cluster import NodeView, QuotaView
from scheduling.engine.engine import Engine
from scheduling.engine.gpu_accounts import QuotaUsage
from scheduling.engine.job import EngineJob
from scheduling.engine.policies.acme import AcmeRules
from scheduling.engine.resources import NodeResources
from scheduling.event_queue import EventQueue
from scheduling.simulation.drill import symptoms
from scheduling.simulation.drill.counts import DrillCounts
from scheduling.simulation.drill.jobs import MIX_STEP_S, AttemptLife, DrillCheckpoint, DrillJob
from scheduling.simulation.drill.values import (
    DrillFault,
    DrillPlan,
    FailedAttempt,
    NodeClosure,
    StepReport,
    virtual_time,
)
from scheduling.simulation.machines.faults import REPAIR_RANGE_S, SYMPTOM_DELAY_S, FaultKind

# A poll of the cluster, a diagnosis, a turn of the scheduler
SYNC_DELAY_S, DIAGNOSIS_DELAY_S, TURN_DELAY_S = 1.0, 2.0, 1.0
TEARDOWN_S = (2.0, 15.0)  # from the end of the first rank to the end of the last
NODE_LOST_S = (5.0, 15.0)  # until a cluster marks a silent node as down
FAILED_START_S = (20.0, 60.0)  # until a starting job fails on a broken node
LINE_EVERY_S = 20.0
FALSE_FAILURE_RATE, MISSED_FAILURE_RATE = 0.002, 0.03  # of an all-gather test between two nodes
RECENT_FAULT_S = 3600.0
SILENT_FAULTS = frozenset({FaultKind.HANG, "nccl_timeout_error"})
MACHINE_FAULTS = frozenset(
    {FaultKind.OFF_BUS, FaultKind.ECC, FaultKind.NVLINK, FaultKind.FABRIC, FaultKind.DEATH, FaultKind.SLOW}
)


class RecoveryStrategy(Protocol):
    """Reacts to events of the simulation: Acme's recovery, or a strategy that it is compared with."""

    name: str

    def on_step(self, job: str, report: StepReport) -> None: ...

    def on_section(self, job: str, name: str, begin: float, end: float) -> None: ...

    def on_start(self, job: str, now: float) -> None: ...

    def on_end(self, attempt: FailedAttempt, now: float) -> None: ...

    def run_checks(self, now: float) -> None: ...


FailureLog = Callable[["DrillSimulation", DrillJob, float, str, int], str]  # of a failure of this kind at this rank


def _short_failure_log(stage: DrillSimulation, work: DrillJob, now: float, kind: str, rank: int) -> str:
    return symptoms.failure_log(
        kind, job=work.number, nodes=[stage.names[number] for number in work.nodes], rank=rank,
        gpus=stage.gpus_per_used_node(work), step=work.step, dice=f"{stage.plan.seed}:{work.name}:{work.run}",
    )  # fmt: skip


class DrillSimulation:
    def __init__(self, plan: DrillPlan, quotas: Sequence[QuotaView]) -> None:
        self.plan, self.engine, self.agenda, self.tally = plan, _new_engine(plan, quotas), EventQueue(), DrillCounts()
        self.names = plan.node_names
        self.number_of = {name: number for number, name in enumerate(self.names)}
        self.works: dict[str, DrillJob] = {}
        self.by_job: dict[int, DrillJob] = {}
        self.running: dict[str, DrillJob] = {}
        self.broken: dict[int, list[DrillFault]] = defaultdict(list)
        self.mended: set[int] = set()
        self.slowed: list[DrillFault] = []
        self.shut: dict[int, set[str]] = defaultdict(set)
        self.closures: list[NodeClosure] = []
        self.outages: list[tuple[float, float]] = []
        self.on_first_step: Callable[[DrillJob, float], None] = lambda work, now: None
        self.log_of_failure: FailureLog = _short_failure_log
        self.answer: RecoveryStrategy
        self._woken = False
        self._jobs = self._attempts = 0
        self._noises: tuple[int, dict[str, str]] = -1, {}

    # --- jobs: submission, start and end

    def submit(self, work: DrillJob, now: float) -> None:
        self.works[work.name] = work
        self.queue(work, now)

    def queue(self, work: DrillJob, now: float) -> None:
        if work.waiting or work.running or work.over:
            return
        self._jobs += 1
        remaining_s = max(1.0, work.need_s - work.step * MIX_STEP_S)
        work.job = EngineJob(self._jobs, work.group, work.submitted, remaining_s, remaining_s)
        self.by_job[self._jobs] = work
        work.waiting = True
        self.engine.submit(work.job, now)
        self.schedule_turn(now)

    def schedule_turn(self, now: float) -> None:
        if not self._woken:
            self._woken = True
            self.agenda.at(now + TURN_DELAY_S, self._run_turn)

    def _run_turn(self, _: None, now: float) -> None:
        self._woken = False
        self.engine.decide(now)
        stopped, started = list(self.engine.stopped_jobs), list(self.engine.started_jobs)
        self.engine.stopped_jobs.clear()
        self.engine.started_jobs.clear()
        for job in stopped:
            self._preempt_job(self.by_job[job.number], now)
        for job in started:
            work = self.by_job[job.number]
            # The same turn may have started the job, and stopped it for the owner of the quota
            if job.places is not None and not work.running:
                self._start_attempt(work, job, now)

    def _preempt_job(self, work: DrillJob, now: float) -> None:
        """Preempt a job for a quota owner: it saves a checkpoint and waits again."""
        if not work.running:
            return
        self.leave(work, now, keeps_work=True)
        work.saved.append(DrillCheckpoint(step=work.step, at=now, whole=True))
        work.waiting = True

    def _start_attempt(self, work: DrillJob, job: EngineJob, now: float) -> None:
        work.job, work.waiting, work.running, work.dying = job, False, True, False
        self.running[work.name] = work
        work.run += 1
        work.silent_since = None
        places = tuple(sorted(job.places or ()))
        work.nodes = tuple(node for node, _ in places)
        after = work.lives[-1].cause if work.lives else ""
        self._attempts += 1
        life = AttemptLife(
            promised=now, base=work.step, number=self._attempts, nodes=work.nodes, places=places, after=after
        )
        work.lives.append(life)
        work.base = work.step
        self.answer.on_start(work.name, now)
        if kind := self._start_obstacle(work, now):
            self._fail_to_start(work, kind, now)
            return
        start_up = self.plan.restart_s if work.is_gang else self.plan.start_s
        self.plan_in_attempt(now + start_up, work, self._record_first_step)

    def _fail_to_start(self, work: DrillJob, kind: str, now: float) -> None:
        """Schedule the failure of an attempt on broken nodes.

        With a node that hangs, the other ranks wait until NCCL's watchdog ends the job, as in a running job. Other
        faults fail the start immediately.
        """
        after = self.dice("stumble", work.name, work.run).uniform(*FAILED_START_S)
        if kind in SILENT_FAULTS:
            after, kind = after + self.plan.watchdog_s, "nccl_timeout_error"
        self.plan_in_attempt(now + after, work, lambda attempt, later: self.fail_attempt(attempt, later, kind))

    def plan_in_attempt(self, at: float, work: DrillJob, action: Callable[[DrillJob, float], None]) -> None:
        """Plan an action, which is skipped if the present attempt is over when it is due."""
        run = work.run

        def run_if_current(_: None, now: float) -> None:
            if work.run == run and work.running:
                action(work, now)

        self.agenda.at(at, run_if_current)

    def check_regularly(self, interval_s: float, now: float) -> None:
        """Let the strategy check its nodes and jobs now, and again and again."""
        self.answer.run_checks(now)
        self.agenda.at(now + interval_s, self.check_regularly, interval_s)

    def _record_first_step(self, work: DrillJob, now: float) -> None:
        work.current_attempt.first_step = now
        self.on_first_step(work, now)

    def _start_obstacle(self, work: DrillJob, now: float) -> str:
        """The kind of fault that prevents the attempt from starting; empty if nothing does."""
        for number in work.nodes:
            for fault in self._sick(number, now):
                if fault.kind != FaultKind.SLOW and (fault.kind != FaultKind.NVLINK or work.gpus > 1):
                    return fault.kind
        if work.saves and any(low <= now < high for low, high in self.outages):
            return FaultKind.STORAGE
        return ""

    def _sick(self, number: int, now: float) -> list[DrillFault]:
        """Persistent faults that the node has now."""
        return [
            fault
            for fault in self.broken[number]
            if fault.number not in self.mended
            and (fault.sticks or (fault.kind == FaultKind.DEATH and now < fault.at + fault.lasts_s))
        ]

    def fail_attempt(
        self, work: DrillJob, now: float, kind: str, where: int | None = None, state: str = "FAILED"
    ) -> None:
        """End the attempt now; the strategy sees it after the delays of polling and diagnosis."""
        if not work.running:
            return
        work.current_attempt.cause = kind
        attempt = self.failed_attempt(work.name, now, kind, where, state)
        self.leave(work, now, keeps_work=False)
        self.agenda.at(now + SYNC_DELAY_S + DIAGNOSIS_DELAY_S, self.answer.on_end, attempt)

    def failed_attempt(
        self, job: str, now: float, kind: str = "", where: int | None = None, state: str = "RUNNING"
    ) -> FailedAttempt:
        """An attempt as a control plane would record it at this moment."""
        work = self.works[job]
        self.progress(work, now)
        nodes = tuple(self.names[number] for number in work.nodes)
        log = self.log_of_failure(self, work, now, kind, self._rank_at_fault(work, now, kind, where))
        return FailedAttempt(
            job=work.name, team=work.team, kind=work.kind, at=virtual_time(now), state=state,
            log=log, exit_code=1, nodes=frozenset(nodes), step=self._reported_step(work),
            started_from=work.base or None, ran=work.total_run_time(now),
            shelf=symptoms.checkpoint_listing((saved.step, saved.at, saved.whole) for saved in work.saved),
            news=self._node_news(work, now) if state == "NODE_FAIL" else (),
        )  # fmt: skip

    def _reported_step(self, work: DrillJob) -> int | None:
        """The last step that the job reports; None for evaluation and debugging jobs, which report none."""
        return work.step if work.saves else None

    def gpus_per_used_node(self, work: DrillJob) -> int:
        return min(work.gpus, self.plan.gpus_per_node)

    def _rank_at_fault(self, work: DrillJob, now: float, kind: str, where: int | None) -> int:
        dice = self.dice("rank", work.name, work.run)
        if where is None:
            sick = [number for number in work.nodes if any(fault.kind == kind for fault in self._sick(number, now))]
            where = sick[0] if sick else None
        if where is not None and where in work.nodes:
            return work.nodes.index(where) * self.gpus_per_used_node(work) + dice.randrange(
                self.gpus_per_used_node(work)
            )
        return dice.randrange(max(1, len(work.nodes) * self.gpus_per_used_node(work)))

    def _node_news(self, work: DrillJob, now: float) -> tuple[NodeStateChange, ...]:
        down = [number for number in work.nodes if "down" in self.shut[number]]
        return tuple(
            NodeStateChange(node=self.names[number], at=virtual_time(now), condition="DOWN") for number in down
        )

    def leave(self, work: DrillJob, now: float, *, keeps_work: bool) -> None:
        """End the attempt and free its GPUs. Work since the last checkpoint is lost unless it is kept."""
        if not work.running:
            return
        self.progress(work, now)
        work.current_attempt.ended, work.current_attempt.keeps_work = now, keeps_work
        work.running = False
        del self.running[work.name]
        work.run += 1
        if work.job is not None and work.job.places is not None:
            self.engine.end(work.job, now)
        if not keeps_work and not work.is_gang:
            newest = work.newest(None)
            work.base, work.step = work.step, newest.step if newest else 0
        self.schedule_turn(now)

    def progress(self, work: DrillJob, now: float) -> None:
        """Update the step of a job of the mix; the gang counts its own steps."""
        if work.is_gang or work.current_attempt.first_step is None:
            return
        work_s = min(now, work.silent_since or now) - work.current_attempt.first_step
        work.step = work.current_attempt.base + int(max(0.0, work_s) / MIX_STEP_S)
        if work.saves:
            saved_steps = {checkpoint.step for checkpoint in work.saved}
            every = int(self.plan.checkpoint_s / MIX_STEP_S)
            for step in range((work.current_attempt.base // every + 1) * every, work.step + 1, every):
                if step in saved_steps:
                    continue
                at = work.current_attempt.first_step + (step - work.current_attempt.base) * MIX_STEP_S
                work.saved.append(DrillCheckpoint(step=step, at=at, whole=True))

    def finish(self, work: DrillJob, now: float) -> None:
        if not work.dying and work.silent_since is None:
            self.leave(work, now, keeps_work=True)
            work.over = True

    # --- nodes

    def close(self, number: int, why: str, now: float) -> None:
        if not self.shut[number]:
            self.engine.drain(number, now)
        if why not in self.shut[number]:
            self.closures.append(NodeClosure(node=number, at=now, why=why, closes=True))
        self.shut[number].add(why)

    def open(self, number: int, why: str, now: float) -> None:
        if why in self.shut[number]:
            self.closures.append(NodeClosure(node=number, at=now, why=why, closes=False))
        self.shut[number].discard(why)
        if not self.shut[number]:
            self.engine.node_up(number, now)
            self.schedule_turn(now)

    def had_machine_fault(self, number: int, now: float) -> bool:
        """Whether the node itself had a fault recently, not only a program that ran on it."""
        real = (fault for fault in self.broken[number] if fault.kind in MACHINE_FAULTS)
        return any(now - RECENT_FAULT_S <= fault.at <= now for fault in real) or bool(self._sick(number, now))

    def dice(self, *what: object) -> Random:
        return Random(f"{self.plan.seed}:" + ":".join(str(part) for part in what))

    # --- actions of a strategy

    def restart(self, job: str, step: int | None, *, at: float, skip: tuple[int, int] | None = None) -> None:
        """Restart a job from the checkpoint of this step, or from the beginning if it is None."""
        work = self.works[job]
        self.tally.record_restart(job)
        chosen = work.newest(step) if step is not None else None
        if skip:
            work.skips.append(skip)
        if work.is_gang or chosen:
            work.step, work.loss_defect = (chosen.step, chosen.loss_defect) if chosen else (0, "")
        work.base = work.step
        self.agenda.at(at, self.queue, work)

    def stop(self, job: str, now: float, *, saving: bool = False) -> None:
        """Stop a running attempt, with a signal that makes it save a checkpoint or at once."""
        work = self.works[job]
        if work.running and not self.tally.of(job):
            self.tally.wrong_stops.append(f"{job} at {virtual_time(now):%d %H:%M:%S}")
        if work.running and work.silent_since is not None:
            work.current_attempt.hangs.append((work.silent_since, now))
        if saving and work.running:
            work.saved.append(DrillCheckpoint(step=work.step, at=now, whole=True, loss_defect=work.loss_defect))
        self.leave(work, now, keeps_work=False)

    def cordon(self, node: str, now: float) -> None:
        number = self.number_of[node]
        if "cordon" in self.shut[number]:
            return
        self.tally.cordons += 1
        if not self.had_machine_fault(number, now):
            self.tally.false_cordons.append(f"{node} at {virtual_time(now):%d %H:%M:%S}")
        self.close(number, "cordon", now)

    def resume(self, node: str, now: float) -> None:
        self.open(self.number_of[node], "cordon", now)

    def repair(self, node: str, now: float, then: Callable[[float], None]) -> None:
        """Send a node to repair; its faults are gone when it returns."""
        number = self.number_of[node]
        returns_at = now + self.dice("repair", node, int(now)).uniform(*REPAIR_RANGE_S)

        def finish_repair(_: None, later: float) -> None:
            self.mended |= {fault.number for fault in self.broken[number] if fault.at < later}
            then(later)

        self.agenda.at(returns_at, finish_repair)

    def test(self, worlds: Sequence[NodeGroup], now: float, then: Callable[[list[GroupResult], float], None]) -> None:
        """Run these all-gather tests in parallel; no job starts on their nodes meanwhile."""
        numbers = [self.number_of[node] for world in worlds for node in world]
        for number in numbers:
            self.close(number, "test", now)

        def finish_tests(_: None, later: float) -> None:
            outcomes = [self._test_outcome(world, later) for world in worlds]
            for number in numbers:
                self.open(number, "test", later)
            then(outcomes, later)

        self.agenda.at(now + self.plan.test_round_s, finish_tests)

    def _test_outcome(self, world: NodeGroup, now: float) -> GroupResult:
        faults = [fault for node in world for fault in self._sick(self.number_of[node], now)]
        sick = any(fault.kind != FaultKind.SLOW for fault in faults)
        chance = self.dice("gather", *world, int(now)).random()
        passed = chance < MISSED_FAILURE_RATE if sick else chance >= FALSE_FAILURE_RATE
        return GroupResult(nodes=world, passed=passed, why="" if passed else "timed out")

    def call_operator(self, job: str, now: float) -> None:
        """Call an operator, who comes after some time and does the right thing."""
        work = self.works[job]
        self.tally.record_handover(job)
        if not work.handed_over and not work.over:
            work.handed_over = True
            at = now + self.dice("human", job, work.run).uniform(*self.plan.human_s)
            self.agenda.at(at, self._mend_job, work)

    def _mend_job(self, work: DrillJob, now: float) -> None:
        """What the operator does."""
        work.handed_over = False
        if (outage := next((high for low, high in self.outages if low <= now < high), None)) is not None:
            self.agenda.at(outage, self._mend_job, work)
            return
        if work.running and not (work.loss_defect or work.dying or work.silent_since is not None):
            return  # it runs again, so there is nothing to fix
        for number in work.nodes:
            if self._sick(number, now):
                self.close(number, "repair", now)
                self.repair(self.names[number], now, self._reopen_action(number))
            self.leave(work, now, keeps_work=False)
        self._fix_program(work, now)

    def _reopen_action(self, number: int) -> Callable[[float], None]:
        def reopen_node(now: float) -> None:
            self.open(number, "repair", now)
            self.open(number, "cordon", now)

        return reopen_node

    def _fix_program(self, work: DrillJob, now: float) -> None:
        """Fix the program or the data. A job of the mix with a lasting flaw ends here and is submitted as a new job."""
        if work.flaw and not work.flaw.passes and not work.is_gang:
            work.over = True
            return
        work.bug, work.flaw = None, None
        work.skips += [(low, high) for low, high, _ in work.bad_data]
        if work.is_gang:
            good = [checkpoint for checkpoint in work.saved if checkpoint.whole and not checkpoint.loss_defect]
            chosen = max(good, key=lambda checkpoint: checkpoint.step, default=None)
            work.step, work.loss_defect = (chosen.step if chosen else 0), ""
        work.base = work.step
        self.queue(work, now)

    def node_readings(self, names: Iterable[str], now: float) -> list[NodeTelemetryWindow]:
        return [self._node_reading(name, now) for name in names]

    def _node_reading(self, name: str, now: float) -> NodeTelemetryWindow:
        number = self.number_of[name]
        broken = [(fault.kind, fault.at) for fault in self.broken.get(number, ()) if fault.number not in self.mended]
        return symptoms.simulated_reading(name, now, broken, self._current_noise(now).get(name, ""))

    def _current_noise(self, now: float) -> dict[str, str]:
        bucket = int(now // symptoms.NOISE_S)
        if self._noises[0] != bucket:
            self._noises = bucket, symptoms.draw_node_noise(self.names, self.dice("noise", bucket))
        return self._noises[1]

    def ranks(self, job: str, now: float) -> list[RankTimings]:
        nodes = [self.names[number] for number in self.works[job].nodes]
        slow = {self.names[number]: factor for number, factor in self.slow().items()}
        return symptoms.rank_step_times(self.plan, nodes, slow, f"{job}:{int(now)}")

    def slow(self) -> dict[int, float]:
        """Slow nodes and their factors. They are few, so they are stored separately."""
        self.slowed = [fault for fault in self.slowed if fault.number not in self.mended]
        return {fault.node: fault.factor for fault in self.slowed}

    def idle(self) -> list[str]:
        """Nodes in service without a job."""
        free = self.engine.resources.free
        return [name for number, name in enumerate(self.names) if free[number] == self.plan.gpus_per_node
                and not self.shut[number]]  # fmt: skip

    def nodes_with_symptoms(self, now: float) -> list[str]:
        """Nodes in service whose telemetry may differ from that of a healthy node."""
        noisy = {self.number_of[name] for name in self._current_noise(now)}
        faulty = {
            number for number, faults in self.broken.items() for fault in faults
            if fault.number not in self.mended and symptoms.is_visible(fault.kind, fault.at, now)
        }  # fmt: skip
        return [self.names[number] for number in sorted(noisy | faulty) if not self.shut[number]]

    def is_in_service(self, node: str) -> bool:
        return not self.shut[self.number_of[node]]

    def is_occupied(self, node: str) -> bool:
        return self.engine.resources.free[self.number_of[node]] < self.plan.gpus_per_node

    def jobs_without_new_lines(self) -> list[str]:
        """Running jobs of the mix that start or hang. The others write a line every `LINE_EVERY_S`."""
        return [
            work.name for work in self.running.values()
            if (work.silent_since is not None or work.current_attempt.first_step is None) and not work.is_gang
        ]  # fmt: skip

    def last_line_at(self, job: str, now: float) -> float:
        work = self.works[job]
        until, began = min(now, work.silent_since or now), work.current_attempt.first_step
        return (
            began + (until - began) // LINE_EVERY_S * LINE_EVERY_S
            if began is not None
            else work.current_attempt.promised
        )

    def lines(self, job: str, now: float) -> list[TimedLine]:
        """The last lines of a job's log with their times."""
        work = self.works[job]
        began, last = work.current_attempt.first_step, self.last_line_at(job, now)
        if began is None:
            return []
        first = max(0, int((last - began) / LINE_EVERY_S) - 60)
        return [
            TimedLine(at=began + n * LINE_EVERY_S, text=f"step {work.base + 2 * n} | loss 2.1")
            for n in range(first, int((last - began) / LINE_EVERY_S) + 1)
        ]


def _new_engine(plan: DrillPlan, quotas: Sequence[QuotaView]) -> Engine:
    rules = AcmeRules()
    nodes = [
        NodeView(
            id=number, name=name, gpus=plan.gpus_per_node, free_gpus=tuple(range(plan.gpus_per_node)), free_cpus=0,
            free_memory_mb=0, leaf=f"l{number // 8:03}",
        )
        for number, name in enumerate(plan.node_names)
    ]  # fmt: skip
    return Engine(NodeResources(nodes), rules, quota_usage=QuotaUsage(quotas, reserves=rules.reserves))


def symptom_delay_s(stage: DrillSimulation, fault: DrillFault) -> float:
    return stage.dice("shows", fault.number).uniform(*SYMPTOM_DELAY_S)
