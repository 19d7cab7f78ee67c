"""The datacenter of a drill: the engine gives places, jobs start, run and end, nodes are shut and opened. Pure.

Everything true is here. An answer (`answers.Answer`) is told what a control plane would be told, and does what one
could do: the public methods below `what an answer may do`. Virtual seconds; dice are seeded by what they decide.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Protocol

from failures.circumstances import NodeNews
from failures.detect.hang import Line
from failures.detect.nodes import Reading
from failures.detect.ranks import Rank
from failures.nodetest import Outcome, World
from scheduling.drill import symptoms
from scheduling.drill.agenda import Agenda
from scheduling.drill.tally import Tally
from scheduling.drill.values import Beat, Ended, Fault, Plan, moment
from scheduling.drill.works import MIX_STEP_S, Checkpoint, Life, Work
from scheduling.engine.engine import Engine, Job
from scheduling.simulator.troubles import REPAIR_S, SHOWS_WITHIN_S, Breakage

SYNC_S, VERDICT_S, TURN_S = 1.0, 2.0, 1.0  # a look at the cluster, a diagnosis, a turn of the scheduler
TEARDOWN_S = (2.0, 15.0)  # from the first rank that dies to the last
NODE_LOST_S = (5.0, 15.0)  # until a cluster calls a silent node down
STUMBLE_S = (20.0, 60.0)  # into its start-up a job meets what is broken
MIX_START_S = 60.0
LINE_EVERY_S = 20.0
FALSE_FAILURE, MISSED_FAILURE = 0.002, 0.03  # of an all-gather between two nodes
LATELY_S = 3600.0
SILENT = frozenset({Breakage.HANG, "nccl_timeout_error"})
OF_THE_MACHINE = frozenset(
    {Breakage.OFF_BUS, Breakage.ECC, Breakage.NVLINK, Breakage.FABRIC, Breakage.DEATH, Breakage.SLOW}
)


class Answer(Protocol):
    """Who answers to what goes wrong: Acme, or what is compared with it."""

    name: str

    def beat(self, job: str, beat: Beat) -> None: ...

    def section(self, job: str, name: str, begin: float, end: float) -> None: ...

    def started(self, job: str, now: float) -> None: ...

    def ended(self, seen: Ended, now: float) -> None: ...

    def tick(self, now: float) -> None: ...


class Stage:
    def __init__(self, plan: Plan, engine: Engine, agenda: Agenda, tally: Tally) -> None:
        self.plan, self.engine, self.agenda, self.tally = plan, engine, agenda, tally
        self.names = plan.name_of
        self.number_of = {name: number for number, name in enumerate(self.names)}
        self.works: dict[str, Work] = {}
        self.by_job: dict[int, Work] = {}
        self.broken: dict[int, list[Fault]] = defaultdict(list)
        self.mended: set[int] = set()
        self.slowed: list[Fault] = []
        self.shut: dict[int, set[str]] = defaultdict(set)
        self.outages: list[tuple[float, float]] = []
        self.on_first_step: Callable[[Work, float], None] = lambda work, now: None
        self.answer: Answer
        self._woken = False
        self._jobs = 0
        self._noises: tuple[int, dict[str, str]] = -1, {}

    # --- jobs come, start and end

    def submit(self, work: Work, now: float) -> None:
        self.works[work.name] = work
        self.queue(work, now)

    def queue(self, work: Work, now: float) -> None:
        if work.waiting or work.running or work.over:
            return
        self._jobs += 1
        left = max(1.0, work.need_s - work.step * MIX_STEP_S)
        work.job = Job(self._jobs, work.ask, work.submitted, left, left)
        self.by_job[self._jobs] = work
        work.waiting = True
        self.engine.submit(work.job, now)
        self.wake(now)

    def wake(self, now: float) -> None:
        if not self._woken:
            self._woken = True
            self.agenda.at(now + TURN_S, self._turn)

    def _turn(self, now: float) -> None:
        self._woken = False
        self.engine.decide(now)
        stopped, started = list(self.engine.stopped), list(self.engine.started)
        self.engine.stopped.clear()
        self.engine.started.clear()
        for job in stopped:
            self._interrupted(self.by_job[job.number], now)
        for job in started:
            self._start(self.by_job[job.number], job, now)

    def _interrupted(self, work: Work, now: float) -> None:
        """It gave way to an owner, saved as it was told to, and waits again."""
        self.leave(work, now, kept=True)
        work.saved.append(Checkpoint(step=work.step, at=now, whole=True))
        work.waiting = True

    def _start(self, work: Work, job: Job, now: float) -> None:
        work.job, work.waiting, work.running, work.dying = job, False, True, False
        work.run += 1
        work.silent_since = None
        work.nodes = tuple(sorted(node for node, _ in job.places or ()))
        after = work.lives[-1].cause if work.lives else ""
        work.lives.append(Life(promised=now, base=work.step, nodes=work.nodes, after=after))
        work.base = work.step
        self.answer.started(work.name, now)
        if kind := self.obstacle(work, now):
            self._fail_to_start(work, kind, now)
            return
        start_up = self.plan.restart_s if work.is_gang else MIX_START_S
        self.agenda.at(now + start_up, self.unless_moved(work, self._first))

    def _fail_to_start(self, work: Work, kind: str, now: float) -> None:
        """A node that does not answer keeps the others waiting in silence until NCCL's watchdog ends the job, as it
        does to a job that runs. What else is broken is an error at once."""
        after = self.dice("stumble", work.name, work.run).uniform(*STUMBLE_S)
        if kind in SILENT:
            self.agenda.at(now + after + self.plan.watchdog_s, self._if(work, "nccl_timeout_error"))
        else:
            self.agenda.at(now + after, self._if(work, kind))

    def _if(self, work: Work, kind: str) -> Callable[[float], None]:
        return self.unless_moved(work, lambda one, now: self.die(one, now, kind))

    def unless_moved(self, work: Work, deed: Callable[[Work, float], None]) -> Callable[[float], None]:
        """What was planned for an attempt is void when that attempt is over."""
        run = work.run

        def due(now: float) -> None:
            if work.run == run and work.running:
                deed(work, now)

        return due

    def _first(self, work: Work, now: float) -> None:
        work.life.first_step = now
        self.on_first_step(work, now)

    def obstacle(self, work: Work, now: float) -> str:
        """What stands in the way of a start there."""
        for number in work.nodes:
            for fault in self.sick(number):
                if fault.kind != Breakage.SLOW and (fault.kind != Breakage.NVLINK or work.gpus > 1):
                    return fault.kind
        if work.saves and any(low <= now < high for low, high in self.outages):
            return Breakage.STORAGE
        return ""

    def sick(self, number: int) -> list[Fault]:
        """What is broken there now and stays so."""
        return [
            one for one in self.broken[number] if one.number not in self.mended and (one.sticks or self._is_down(one))
        ]

    def _is_down(self, fault: Fault) -> bool:
        return fault.kind == Breakage.DEATH and self.agenda.now < fault.at + fault.lasts_s

    def die(self, work: Work, now: float, kind: str, where: int | None = None, state: str = "FAILED") -> None:
        """Its processes are gone; the record hears of it a moment later."""
        if not work.running:
            return
        work.life.cause = kind
        seen = self.seen(work.name, now, kind, where, state)
        self.leave(work, now, kept=False)
        self.agenda.at(now + SYNC_S + VERDICT_S, lambda later: self.answer.ended(seen, later))

    def seen(self, job: str, now: float, kind: str = "", where: int | None = None, state: str = "RUNNING") -> Ended:
        """An attempt as the record has it at this moment."""
        work = self.works[job]
        self.progress(work, now)
        nodes = tuple(self.names[number] for number in work.nodes)
        log = symptoms.log_of(
            kind, job=work.number, nodes=nodes, gpus=self._width(work), rank=self._rank(work, kind, where),
            step=work.step, dice=f"{self.plan.seed}:{work.name}:{work.run}",
        )  # fmt: skip
        return Ended(
            job=work.name, team=work.team, kind=work.kind, at=moment(now), state=state,
            log=log, exit_code=1, nodes=frozenset(nodes), step=self._told_step(work), started_from=work.base or None,
            shelf=symptoms.shelf_of((one.step, one.at, one.whole) for one in work.saved), ran=work.ran(now),
            news=self._news(work, now) if state == "NODE_FAIL" else (),
        )  # fmt: skip

    def _told_step(self, work: Work) -> int | None:
        """How far it says it came; evaluation and debugging report nothing."""
        return work.step if work.saves else None

    def _width(self, work: Work) -> int:
        return min(work.gpus, self.plan.gpus_per_node)

    def _rank(self, work: Work, kind: str, where: int | None) -> int:
        dice = self.dice("rank", work.name, work.run)
        if where is None:
            sick = [number for number in work.nodes if any(one.kind == kind for one in self.sick(number))]
            where = sick[0] if sick else None
        if where is not None and where in work.nodes:
            return work.nodes.index(where) * self._width(work) + dice.randrange(self._width(work))
        return dice.randrange(max(1, len(work.nodes) * self._width(work)))

    def _news(self, work: Work, now: float) -> tuple[NodeNews, ...]:
        down = [number for number in work.nodes if "down" in self.shut[number]]
        return tuple(NodeNews(node=self.names[number], at=moment(now), condition="DOWN") for number in down)

    def leave(self, work: Work, now: float, *, kept: bool) -> None:
        """It gives its GPUs back. What was not saved is lost when it starts again."""
        if not work.running:
            return
        self.progress(work, now)
        work.life.ended, work.life.kept = now, kept
        work.running = False
        work.run += 1
        if work.job is not None and work.job.places is not None:
            self.engine.end(work.job, now)
        if not kept and not work.is_gang:
            newest = work.newest(None)
            work.base, work.step = work.step, newest.step if newest else 0
        self.wake(now)

    def progress(self, work: Work, now: float) -> None:
        """How far a job of the mix has come; the gang counts its steps itself."""
        if work.is_gang or work.life.first_step is None:
            return
        worked = min(now, work.silent_since or now) - work.life.first_step
        work.step = work.life.base + int(max(0.0, worked) / MIX_STEP_S)
        if work.saves:
            known = {one.step for one in work.saved}
            every = int(self.plan.checkpoint_s / MIX_STEP_S)
            for step in range((work.life.base // every + 1) * every, work.step + 1, every):
                if step in known:
                    continue
                at = work.life.first_step + (step - work.life.base) * MIX_STEP_S
                work.saved.append(Checkpoint(step=step, at=at, whole=True))

    def finish(self, work: Work, now: float) -> None:
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
            self.wake(now)

    def was_broken(self, number: int, now: float) -> bool:
        """Whether there was anything wrong with the machine itself, not only with a program that ran there."""
        real = (fault for fault in self.broken[number] if fault.kind in OF_THE_MACHINE)
        return any(now - LATELY_S <= fault.at <= now for fault in real) or bool(self.sick(number))

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
            work.step, work.tainted = (chosen.step, chosen.tainted) if chosen else (0, "")
        work.base = work.step
        self.agenda.at(at, lambda now: self.queue(work, now))

    def stop(self, job: str, now: float, *, saving: bool = False) -> None:
        """End a running attempt: by a signal on which it saves, or at once."""
        work = self.works[job]
        if work.running and not self.tally.of(job):
            self.tally.wrong_stops.append(f"{job} at {moment(now):%d %H:%M:%S}")
        if work.running and work.silent_since is not None:
            work.life.hangs.append((work.silent_since, now))
        if saving and work.running:
            work.saved.append(Checkpoint(step=work.step, at=now, whole=True, tainted=work.tainted))
        self.leave(work, now, kept=False)

    def cordon(self, node: str, now: float) -> None:
        number = self.number_of[node]
        if "cordon" in self.shut[number]:
            return
        self.tally.cordons += 1
        if not self.was_broken(number, now):
            self.tally.false_cordons.append(f"{node} at {moment(now):%d %H:%M:%S}")
        self.close(number, "cordon", now)

    def resume(self, node: str, now: float) -> None:
        self.open(self.number_of[node], "cordon", now)

    def repair(self, node: str, now: float, then: Callable[[float], None]) -> None:
        """People take it out, mend what is broken, and give it back."""
        number = self.number_of[node]
        done = now + self.dice("repair", node, int(now)).uniform(*REPAIR_S)

        def mended(later: float) -> None:
            self.mended |= {fault.number for fault in self.broken[number] if fault.at < later}
            then(later)

        self.agenda.at(done, mended)

    def test(self, worlds: Sequence[World], now: float, then: Callable[[list[Outcome], float], None]) -> None:
        """Run these all-gathers at once; nobody else starts on their nodes meanwhile."""
        numbers = [self.number_of[node] for world in worlds for node in world.nodes]
        for number in numbers:
            self.close(number, "test", now)

        def done(later: float) -> None:
            outcomes = [self._tried(world, later) for world in worlds]
            for number in numbers:
                self.open(number, "test", later)
            then(outcomes, later)

        self.agenda.at(now + self.plan.test_round_s, done)

    def _tried(self, world: World, now: float) -> Outcome:
        sick = any(one.kind != Breakage.SLOW for node in world.nodes for one in self.sick(self.number_of[node]))
        chance = self.dice("gather", *world.nodes, int(now)).random()
        passed = chance < MISSED_FAILURE if sick else chance >= FALSE_FAILURE
        return Outcome(nodes=world.nodes, passed=passed, why="" if passed else "timed out")

    def hand_over(self, job: str, now: float) -> None:
        """A person is called. He needs his time, and then does what is right."""
        work = self.works[job]
        self.tally.handed_over(job)
        if not work.handed_over and not work.over:
            work.handed_over = True
            self.agenda.at(now + self.dice("human", job, work.run).uniform(*self.plan.human_s), self._by_hand(work))

    def _by_hand(self, work: Work) -> Callable[[float], None]:
        def mend(now: float) -> None:
            work.handed_over = False
            if (outage := next((high for low, high in self.outages if low <= now < high), None)) is not None:
                self.agenda.at(outage, mend)
                return
            if work.running and not (work.tainted or work.dying or work.silent_since is not None):
                return  # it runs again
            for number in work.nodes:
                if self.sick(number):
                    self.close(number, "repair", now)
                    self.repair(self.names[number], now, self._back(number))
                self.leave(work, now, kept=False)
            self._set_right(work, now)

        return mend

    def _back(self, number: int) -> Callable[[float], None]:
        def opened(now: float) -> None:
            self.open(number, "repair", now)
            self.open(number, "cordon", now)

        return opened

    def _set_right(self, work: Work, now: float) -> None:
        """The owner mends his program or his data. A job of the mix that was wrong is submitted as another one."""
        if work.flaw and not work.flaw.passes and not work.is_gang:
            work.over = True
            return
        work.bug, work.flaw = None, None
        work.skips += [(low, high) for low, high, _ in work.bad_data]
        if work.is_gang:
            good = [one for one in work.saved if one.whole and not one.tainted]
            chosen = max(good, key=lambda one: one.step, default=None)
            work.step, work.tainted = (chosen.step if chosen else 0), ""
        work.base = work.step
        self.queue(work, now)

    def readings(self, names: Iterable[str], now: float) -> list[Reading]:
        return [self._reading(name, now) for name in names]

    def _reading(self, name: str, now: float) -> Reading:
        number = self.number_of[name]
        broken = [(one.kind, one.at) for one in self.broken.get(number, ()) if one.number not in self.mended]
        return symptoms.reading(name, now, broken, self._noise(now).get(name, ""))

    def _noise(self, now: float) -> dict[str, str]:
        bucket = int(now // symptoms.NOISE_S)
        if self._noises[0] != bucket:
            self._noises = bucket, symptoms.noises(self.names, self.dice("noise", bucket))
        return self._noises[1]

    def ranks(self, job: str, now: float) -> list[Rank]:
        work = self.works[job]
        slow = {self.names[number]: factor for number, factor in self.slow().items()}
        return symptoms.ranks_of(self.plan, [self.names[number] for number in work.nodes], slow, f"{job}:{int(now)}")

    def slow(self) -> dict[int, float]:
        """Nodes that hold others up, and by how much. There are few, so they are kept apart."""
        self.slowed = [fault for fault in self.slowed if fault.number not in self.mended]
        return {fault.node: fault.factor for fault in self.slowed}

    def idle(self) -> list[str]:
        """Nodes in service on which nobody runs."""
        free = self.engine.room.free
        return [name for number, name in enumerate(self.names) if free[number] == self.plan.gpus_per_node
                and not self.shut[number]]  # fmt: skip

    def in_service(self) -> list[str]:
        return [name for number, name in enumerate(self.names) if not self.shut[number]]

    def occupied(self, node: str) -> bool:
        return self.engine.room.free[self.number_of[node]] < self.plan.gpus_per_node

    def talkers(self) -> list[str]:
        """Jobs of the mix that run and write a log."""
        return [work.name for work in self.works.values() if work.running and not work.is_gang]

    def last_line_at(self, job: str, now: float) -> float:
        work = self.works[job]
        until, began = min(now, work.silent_since or now), work.life.first_step
        return began + (until - began) // LINE_EVERY_S * LINE_EVERY_S if began is not None else work.life.promised

    def lines(self, job: str, now: float) -> list[Line]:
        """The last lines of a log, each with the moment it came."""
        work = self.works[job]
        began, last = work.life.first_step, self.last_line_at(job, now)
        if began is None:
            return []
        first = max(0, int((last - began) / LINE_EVERY_S) - 60)
        return [
            Line(at=began + n * LINE_EVERY_S, text=f"step {work.base + 2 * n} | loss 2.1")
            for n in range(first, int((last - began) / LINE_EVERY_S) + 1)
        ]

    def known_step(self, job: str) -> int | None:
        return self._told_step(self.works[job])


def shows(stage: Stage, fault: Fault) -> float:
    return stage.dice("shows", fault.number).uniform(*SHOWS_WITHIN_S)
