"""The datacenter of a drill: the engine gives places, jobs start, run and end, nodes are shut and opened. Pure.

Everything true is here. An answer (`answers.Answer`) is told what a control plane would be told, and does what one
could do: the public methods below `what an answer may do`. Virtual seconds; dice are seeded by what they decide.
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
from failures.recovery.pair_tests import GroupResult, NodeGroup
from scheduling.drill import symptoms
from scheduling.drill.agenda import EventQueue
from scheduling.drill.counts import DrillCounts
from scheduling.drill.jobs import MIX_STEP_S, AttemptLife, DrillCheckpoint, DrillJob
from scheduling.drill.values import DrillFault, DrillPlan, FailedAttempt, StepReport, virtual_time
from scheduling.engine.engine import Engine, EngineJob
from scheduling.slurmsim.faults import REPAIR_RANGE_S, SYMPTOM_DELAY_S, FaultKind

SYNC_DELAY_S, DIAGNOSIS_DELAY_S, TURN_DELAY_S = (
    1.0,
    2.0,
    1.0,
)  # a look at the cluster, a diagnosis, a turn of the scheduler
TEARDOWN_S = (2.0, 15.0)  # from the first rank that dies to the last
NODE_LOST_S = (5.0, 15.0)  # until a cluster calls a silent node down
FAILED_START_S = (20.0, 60.0)  # into its start-up a job meets what is broken
MIX_START_S = 60.0
LINE_EVERY_S = 20.0
FALSE_FAILURE_RATE, MISSED_FAILURE_RATE = 0.002, 0.03  # of an all-gather between two nodes
RECENT_FAULT_S = 3600.0
SILENT_FAULTS = frozenset({FaultKind.HANG, "nccl_timeout_error"})
MACHINE_FAULTS = frozenset(
    {FaultKind.OFF_BUS, FaultKind.ECC, FaultKind.NVLINK, FaultKind.FABRIC, FaultKind.DEATH, FaultKind.SLOW}
)


class RecoveryStrategy(Protocol):
    """Who answers to what goes wrong: Acme, or what is compared with it."""

    name: str

    def beat(self, job: str, beat: StepReport) -> None: ...

    def section(self, job: str, name: str, begin: float, end: float) -> None: ...

    def started(self, job: str, now: float) -> None: ...

    def ended(self, seen: FailedAttempt, now: float) -> None: ...

    def run_checks(self, now: float) -> None: ...


class DrillSimulation:
    def __init__(self, plan: DrillPlan, engine: Engine, agenda: EventQueue, tally: DrillCounts) -> None:
        self.plan, self.engine, self.agenda, self.tally = plan, engine, agenda, tally
        self.names = plan.node_names
        self.number_of = {name: number for number, name in enumerate(self.names)}
        self.works: dict[str, DrillJob] = {}
        self.by_job: dict[int, DrillJob] = {}
        self.broken: dict[int, list[DrillFault]] = defaultdict(list)
        self.mended: set[int] = set()
        self.slowed: list[DrillFault] = []
        self.shut: dict[int, set[str]] = defaultdict(set)
        self.outages: list[tuple[float, float]] = []
        self.on_first_step: Callable[[DrillJob, float], None] = lambda work, now: None
        self.answer: RecoveryStrategy
        self._woken = False
        self._jobs = 0
        self._noises: tuple[int, dict[str, str]] = -1, {}

    # --- jobs come, start and end

    def submit(self, work: DrillJob, now: float) -> None:
        self.works[work.name] = work
        self.queue(work, now)

    def queue(self, work: DrillJob, now: float) -> None:
        if work.waiting or work.running or work.over:
            return
        self._jobs += 1
        left = max(1.0, work.need_s - work.step * MIX_STEP_S)
        work.job = EngineJob(self._jobs, work.ask, work.submitted, left, left)
        self.by_job[self._jobs] = work
        work.waiting = True
        self.engine.submit(work.job, now)
        self.schedule_turn(now)

    def schedule_turn(self, now: float) -> None:
        if not self._woken:
            self._woken = True
            self.agenda.at(now + TURN_DELAY_S, self._run_turn)

    def _run_turn(self, now: float) -> None:
        self._woken = False
        self.engine.decide(now)
        stopped, started = list(self.engine.stopped), list(self.engine.started)
        self.engine.stopped.clear()
        self.engine.started.clear()
        for job in stopped:
            self._preempt_job(self.by_job[job.number], now)
        for job in started:
            self._start_attempt(self.by_job[job.number], job, now)

    def _preempt_job(self, work: DrillJob, now: float) -> None:
        """It gave way to an owner, saved as it was told to, and waits again."""
        self.leave(work, now, kept=True)
        work.saved.append(DrillCheckpoint(step=work.step, at=now, whole=True))
        work.waiting = True

    def _start_attempt(self, work: DrillJob, job: EngineJob, now: float) -> None:
        work.job, work.waiting, work.running, work.dying = job, False, True, False
        work.run += 1
        work.silent_since = None
        work.nodes = tuple(sorted(node for node, _ in job.places or ()))
        after = work.lives[-1].cause if work.lives else ""
        work.lives.append(AttemptLife(promised=now, base=work.step, nodes=work.nodes, after=after))
        work.base = work.step
        self.answer.started(work.name, now)
        if kind := self.start_obstacle(work, now):
            self._fail_to_start(work, kind, now)
            return
        start_up = self.plan.restart_s if work.is_gang else MIX_START_S
        self.agenda.at(now + start_up, self.if_same_attempt(work, self._record_first_step))

    def _fail_to_start(self, work: DrillJob, kind: str, now: float) -> None:
        """A node that does not answer keeps the others waiting in silence until NCCL's watchdog ends the job, as it
        does to a job that runs. What else is broken is an error at once."""
        after = self.dice("stumble", work.name, work.run).uniform(*FAILED_START_S)
        if kind in SILENT_FAULTS:
            self.agenda.at(now + after + self.plan.watchdog_s, self._die_of(work, "nccl_timeout_error"))
        else:
            self.agenda.at(now + after, self._die_of(work, kind))

    def _die_of(self, work: DrillJob, kind: str) -> Callable[[float], None]:
        return self.if_same_attempt(work, lambda one, now: self.fail_attempt(one, now, kind))

    def if_same_attempt(self, work: DrillJob, deed: Callable[[DrillJob, float], None]) -> Callable[[float], None]:
        """What was planned for an attempt is void when that attempt is over."""
        run = work.run

        def due(now: float) -> None:
            if work.run == run and work.running:
                deed(work, now)

        return due

    def _record_first_step(self, work: DrillJob, now: float) -> None:
        work.current_attempt.first_step = now
        self.on_first_step(work, now)

    def start_obstacle(self, work: DrillJob, now: float) -> str:
        """What stands in the way of a start there."""
        for number in work.nodes:
            for fault in self.sick(number):
                if fault.kind != FaultKind.SLOW and (fault.kind != FaultKind.NVLINK or work.gpus > 1):
                    return fault.kind
        if work.saves and any(low <= now < high for low, high in self.outages):
            return FaultKind.STORAGE
        return ""

    def sick(self, number: int) -> list[DrillFault]:
        """What is broken there now and stays so."""
        return [
            one
            for one in self.broken[number]
            if one.number not in self.mended and (one.sticks or self._is_node_down(one))
        ]

    def _is_node_down(self, fault: DrillFault) -> bool:
        return fault.kind == FaultKind.DEATH and self.agenda.now < fault.at + fault.lasts_s

    def fail_attempt(
        self, work: DrillJob, now: float, kind: str, where: int | None = None, state: str = "FAILED"
    ) -> None:
        """Its processes are gone; the record hears of it a moment later."""
        if not work.running:
            return
        work.current_attempt.cause = kind
        seen = self.seen(work.name, now, kind, where, state)
        self.leave(work, now, kept=False)
        self.agenda.at(now + SYNC_DELAY_S + DIAGNOSIS_DELAY_S, lambda later: self.answer.ended(seen, later))

    def seen(
        self, job: str, now: float, kind: str = "", where: int | None = None, state: str = "RUNNING"
    ) -> FailedAttempt:
        """An attempt as the record has it at this moment."""
        work = self.works[job]
        self.progress(work, now)
        nodes = tuple(self.names[number] for number in work.nodes)
        log = symptoms.failure_log(
            kind, job=work.number, nodes=nodes, gpus=self._gpus_per_used_node(work),
            rank=self._rank_at_fault(work, kind, where),
            step=work.step, dice=f"{self.plan.seed}:{work.name}:{work.run}",
        )  # fmt: skip
        return FailedAttempt(
            job=work.name, team=work.team, kind=work.kind, at=virtual_time(now), state=state,
            log=log, exit_code=1, nodes=frozenset(nodes), step=self._reported_step(work),
            started_from=work.base or None, ran=work.ran(now),
            shelf=symptoms.checkpoint_listing((one.step, one.at, one.whole) for one in work.saved),
            news=self._node_news(work, now) if state == "NODE_FAIL" else (),
        )  # fmt: skip

    def _reported_step(self, work: DrillJob) -> int | None:
        """How far it says it came; evaluation and debugging report nothing."""
        return work.step if work.saves else None

    def _gpus_per_used_node(self, work: DrillJob) -> int:
        return min(work.gpus, self.plan.gpus_per_node)

    def _rank_at_fault(self, work: DrillJob, kind: str, where: int | None) -> int:
        dice = self.dice("rank", work.name, work.run)
        if where is None:
            sick = [number for number in work.nodes if any(one.kind == kind for one in self.sick(number))]
            where = sick[0] if sick else None
        if where is not None and where in work.nodes:
            return work.nodes.index(where) * self._gpus_per_used_node(work) + dice.randrange(
                self._gpus_per_used_node(work)
            )
        return dice.randrange(max(1, len(work.nodes) * self._gpus_per_used_node(work)))

    def _node_news(self, work: DrillJob, now: float) -> tuple[NodeStateChange, ...]:
        down = [number for number in work.nodes if "down" in self.shut[number]]
        return tuple(
            NodeStateChange(node=self.names[number], at=virtual_time(now), condition="DOWN") for number in down
        )

    def leave(self, work: DrillJob, now: float, *, kept: bool) -> None:
        """It gives its GPUs back. What was not saved is lost when it starts again."""
        if not work.running:
            return
        self.progress(work, now)
        work.current_attempt.ended, work.current_attempt.kept = now, kept
        work.running = False
        work.run += 1
        if work.job is not None and work.job.places is not None:
            self.engine.end(work.job, now)
        if not kept and not work.is_gang:
            newest = work.newest(None)
            work.base, work.step = work.step, newest.step if newest else 0
        self.schedule_turn(now)

    def progress(self, work: DrillJob, now: float) -> None:
        """How far a job of the mix has come; the gang counts its steps itself."""
        if work.is_gang or work.current_attempt.first_step is None:
            return
        worked = min(now, work.silent_since or now) - work.current_attempt.first_step
        work.step = work.current_attempt.base + int(max(0.0, worked) / MIX_STEP_S)
        if work.saves:
            known = {one.step for one in work.saved}
            every = int(self.plan.checkpoint_s / MIX_STEP_S)
            for step in range((work.current_attempt.base // every + 1) * every, work.step + 1, every):
                if step in known:
                    continue
                at = work.current_attempt.first_step + (step - work.current_attempt.base) * MIX_STEP_S
                work.saved.append(DrillCheckpoint(step=step, at=at, whole=True))

    def finish(self, work: DrillJob, now: float) -> None:
        if not work.dying and work.silent_since is None:
            self.leave(work, now, kept=True)
            work.over = True

    # --- nodes

    def close(self, number: int, why: str, now: float) -> None:
        if not self.shut[number]:
            self.engine.drain(number, now)
        self.shut[number].add(why)

    def open(self, number: int, why: str, now: float) -> None:
        self.shut[number].discard(why)
        if not self.shut[number]:
            self.engine.node_up(number, now)
            self.schedule_turn(now)

    def had_machine_fault(self, number: int, now: float) -> bool:
        """Whether there was anything wrong with the machine itself, not only with a program that ran there."""
        real = (fault for fault in self.broken[number] if fault.kind in MACHINE_FAULTS)
        return any(now - RECENT_FAULT_S <= fault.at <= now for fault in real) or bool(self.sick(number))

    def dice(self, *what: object) -> Random:
        return Random(f"{self.plan.seed}:" + ":".join(str(part) for part in what))

    # --- what an answer may do

    def restart(self, job: str, step: int | None, *, at: float, skip: tuple[int, int] | None = None) -> None:
        """From the checkpoint of this step; without one from the beginning."""
        work = self.works[job]
        self.tally.restarted(job)
        chosen = work.newest(step) if step is not None else None
        if skip:
            work.skips.append(skip)
        if work.is_gang or chosen:
            work.step, work.loss_defect = (chosen.step, chosen.loss_defect) if chosen else (0, "")
        work.base = work.step
        self.agenda.at(at, lambda now: self.queue(work, now))

    def stop(self, job: str, now: float, *, saving: bool = False) -> None:
        """End a running attempt: by a signal on which it saves, or at once."""
        work = self.works[job]
        if work.running and not self.tally.of(job):
            self.tally.wrong_stops.append(f"{job} at {virtual_time(now):%d %H:%M:%S}")
        if work.running and work.silent_since is not None:
            work.current_attempt.hangs.append((work.silent_since, now))
        if saving and work.running:
            work.saved.append(DrillCheckpoint(step=work.step, at=now, whole=True, loss_defect=work.loss_defect))
        self.leave(work, now, kept=False)

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
        """People take it out, mend what is broken, and give it back."""
        number = self.number_of[node]
        done = now + self.dice("repair", node, int(now)).uniform(*REPAIR_RANGE_S)

        def mended(later: float) -> None:
            self.mended |= {fault.number for fault in self.broken[number] if fault.at < later}
            then(later)

        self.agenda.at(done, mended)

    def test(self, worlds: Sequence[NodeGroup], now: float, then: Callable[[list[GroupResult], float], None]) -> None:
        """Run these all-gathers at once; nobody else starts on their nodes meanwhile."""
        numbers = [self.number_of[node] for world in worlds for node in world.nodes]
        for number in numbers:
            self.close(number, "test", now)

        def done(later: float) -> None:
            outcomes = [self._test_outcome(world, later) for world in worlds]
            for number in numbers:
                self.open(number, "test", later)
            then(outcomes, later)

        self.agenda.at(now + self.plan.test_round_s, done)

    def _test_outcome(self, world: NodeGroup, now: float) -> GroupResult:
        sick = any(one.kind != FaultKind.SLOW for node in world.nodes for one in self.sick(self.number_of[node]))
        chance = self.dice("gather", *world.nodes, int(now)).random()
        passed = chance < MISSED_FAILURE_RATE if sick else chance >= FALSE_FAILURE_RATE
        return GroupResult(nodes=world.nodes, passed=passed, why="" if passed else "timed out")

    def call_operator(self, job: str, now: float) -> None:
        """A person is called. He needs his time, and then does what is right."""
        work = self.works[job]
        self.tally.record_handover(job)
        if not work.handed_over and not work.over:
            work.handed_over = True
            self.agenda.at(
                now + self.dice("human", job, work.run).uniform(*self.plan.human_s), self._operator_visit(work)
            )

    def _operator_visit(self, work: DrillJob) -> Callable[[float], None]:
        def mend(now: float) -> None:
            work.handed_over = False
            if (outage := next((high for low, high in self.outages if low <= now < high), None)) is not None:
                self.agenda.at(outage, mend)
                return
            if work.running and not (work.loss_defect or work.dying or work.silent_since is not None):
                return  # it runs again
            for number in work.nodes:
                if self.sick(number):
                    self.close(number, "repair", now)
                    self.repair(self.names[number], now, self._reopen_action(number))
                self.leave(work, now, kept=False)
            self._fix_program(work, now)

        return mend

    def _reopen_action(self, number: int) -> Callable[[float], None]:
        def opened(now: float) -> None:
            self.open(number, "repair", now)
            self.open(number, "cordon", now)

        return opened

    def _fix_program(self, work: DrillJob, now: float) -> None:
        """The owner mends his program or his data. A job of the mix that was wrong is submitted as another one."""
        if work.flaw and not work.flaw.passes and not work.is_gang:
            work.over = True
            return
        work.bug, work.flaw = None, None
        work.skips += [(low, high) for low, high, _ in work.bad_data]
        if work.is_gang:
            good = [one for one in work.saved if one.whole and not one.loss_defect]
            chosen = max(good, key=lambda one: one.step, default=None)
            work.step, work.loss_defect = (chosen.step if chosen else 0), ""
        work.base = work.step
        self.queue(work, now)

    def node_readings(self, names: Iterable[str], now: float) -> list[NodeTelemetryWindow]:
        return [self._node_reading(name, now) for name in names]

    def _node_reading(self, name: str, now: float) -> NodeTelemetryWindow:
        number = self.number_of[name]
        broken = [(one.kind, one.at) for one in self.broken.get(number, ()) if one.number not in self.mended]
        return symptoms.simulated_reading(name, now, broken, self._current_noise(now).get(name, ""))

    def _current_noise(self, now: float) -> dict[str, str]:
        bucket = int(now // symptoms.NOISE_S)
        if self._noises[0] != bucket:
            self._noises = bucket, symptoms.draw_node_noise(self.names, self.dice("noise", bucket))
        return self._noises[1]

    def ranks(self, job: str, now: float) -> list[RankTimings]:
        work = self.works[job]
        slow = {self.names[number]: factor for number, factor in self.slow().items()}
        return symptoms.rank_step_times(
            self.plan, [self.names[number] for number in work.nodes], slow, f"{job}:{int(now)}"
        )

    def slow(self) -> dict[int, float]:
        """Nodes that hold others up, and by how much. There are few, so they are kept apart."""
        self.slowed = [fault for fault in self.slowed if fault.number not in self.mended]
        return {fault.node: fault.factor for fault in self.slowed}

    def idle(self) -> list[str]:
        """Nodes in service on which nobody runs."""
        free = self.engine.room.free
        return [name for number, name in enumerate(self.names) if free[number] == self.plan.gpus_per_node
                and not self.shut[number]]  # fmt: skip

    def nodes_in_service(self) -> list[str]:
        return [name for number, name in enumerate(self.names) if not self.shut[number]]

    def is_occupied(self, node: str) -> bool:
        return self.engine.room.free[self.number_of[node]] < self.plan.gpus_per_node

    def jobs_with_log(self) -> list[str]:
        """Jobs of the mix that run and write a log."""
        return [work.name for work in self.works.values() if work.running and not work.is_gang]

    def last_line_at(self, job: str, now: float) -> float:
        work = self.works[job]
        until, began = min(now, work.silent_since or now), work.current_attempt.first_step
        return (
            began + (until - began) // LINE_EVERY_S * LINE_EVERY_S
            if began is not None
            else work.current_attempt.promised
        )

    def lines(self, job: str, now: float) -> list[TimedLine]:
        """The last lines of a log, each with the moment it came."""
        work = self.works[job]
        began, last = work.current_attempt.first_step, self.last_line_at(job, now)
        if began is None:
            return []
        first = max(0, int((last - began) / LINE_EVERY_S) - 60)
        return [
            TimedLine(at=began + n * LINE_EVERY_S, text=f"step {work.base + 2 * n} | loss 2.1")
            for n in range(first, int((last - began) / LINE_EVERY_S) + 1)
        ]

    def known_step(self, job: str) -> int | None:
        return self._reported_step(self.works[job])


def symptom_delay_s(stage: DrillSimulation, fault: DrillFault) -> float:
    return stage.dice("shows", fault.number).uniform(*SYMPTOM_DELAY_S)
