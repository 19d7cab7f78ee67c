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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from heapq import heapify, heappop, heappush
from random import Random
from typing import Protocol

from jobs.lifecycle import FINAL, Flag, NodeFlag, NodeState, State, occupied

REPAIR_S = (600.0, 7200.0)
DAY_S = 86_400.0
TERM, KILL = 15, 9

# Slurm's numbers for what it refuses.
BAD_CONFIGURATION, UNKNOWN_JOB, UNKNOWN_NODE, ALREADY_DONE, BAD_NODE_STATE = 2014, 2017, 2018, 2021, 2028


class Refusal(Exception):
    """What the controller will not do, with Slurm's number for it."""

    def __init__(self, number: int, words: str) -> None:
        super().__init__(words)
        self.number, self.words = number, words


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How long the controller takes for its own part."""

    configure_s: float = 1.0
    complete_s: float = 0.5  # the epilog: the GPUs are held a moment longer than the job runs
    kill_wait_s: float = 5.0
    min_job_age_s: float = 3600.0  # how long an ended job is still told of


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was asked; it never changes, except where a job is updated by hand."""

    name: str
    user: str
    account: str = ""
    partition: str = ""
    comment: str = ""
    script: str = ""
    workdir: str = "/"
    environment: Mapping[str, str] = field(default_factory=dict)
    required_nodes: tuple[str, ...] = ()
    node_count: int = 1
    gpus_per_node: int = 0
    gpu_model: str = ""
    cpus_per_node: int = 1
    memory_per_node_mb: int = 0
    limit_s: float | None = None
    stdout: str = ""
    held: bool = False


@dataclass(frozen=True, kw_only=True)
class Exit:
    code: int = 0
    signal: int = 0


@dataclass(frozen=True, kw_only=True)
class Job:
    """One job as it stands. `nodes` and `gpus` stay after its end; whether they are held is `holds`."""

    id: int
    request: Request
    submitted_at: float
    state: State = State.PENDING
    flags: frozenset[Flag] = frozenset()
    reason: str = "None"
    nodes: tuple[str, ...] = ()
    gpus: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    started_at: float = 0.0
    began_at: float = 0.0  # when its nodes were ready and its command began
    ended_at: float = 0.0
    exit: Exit = Exit()

    @property
    def configuring(self) -> bool:
        return Flag.CONFIGURING in self.flags

    @property
    def completing(self) -> bool:
        return Flag.COMPLETING in self.flags

    @property
    def holds(self) -> bool:
        return self.state == State.RUNNING or self.completing

    @property
    def ends_by(self) -> float | None:
        return None if self.request.limit_s is None else self.started_at + self.request.limit_s


@dataclass(frozen=True, kw_only=True)
class Node:
    name: str
    cpus: int
    memory_mb: int
    gpus: int
    gpu_model: str = ""
    features: tuple[str, ...] = ()
    boot_at: float = 0.0
    drained: bool = False
    down: bool = False
    reason: str = ""
    reason_by: str = ""
    reason_at: float = 0.0
    repair_at: float = 0.0

    @property
    def usable(self) -> bool:
        return not (self.down or self.drained)


@dataclass(frozen=True, kw_only=True)
class Clock:
    """What must survive besides jobs and nodes, so that no id and no fault is drawn twice."""

    next_id: int = 1
    faults: int = 0
    next_fault_at: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Picture:
    """The whole world at rest: what a store gives back after a restart."""

    nodes: tuple[Node, ...]
    jobs: tuple[Job, ...] = ()
    clock: Clock = Clock()


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What is new since the last time; every value whole, so that writing it twice does no harm."""

    jobs: tuple[Job, ...] = ()
    nodes: tuple[Node, ...] = ()
    forgotten: tuple[int, ...] = ()
    clock: Clock | None = None

    def __bool__(self) -> bool:
        return bool(self.jobs or self.nodes or self.forgotten or self.clock)


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What the hands report: the processes of a job are gone."""

    job_id: int
    at: float
    state: State
    exit: Exit = Exit()
    reason: str = "None"
    lost_node: str = ""  # the node that went down with it


class Aim(StrEnum):
    """Who of a job gets a signal, in Slurm's words."""

    ALL = "FULL_JOB"
    SHELL = "BATCH_JOB"
    STEPS = "FULL_STEPS_ONLY"  # all but the batch shell


class Hands(Protocol):
    """What makes a job happen. They never touch the world; they are told, and asked."""

    def start(self, job: Job, now: float) -> None:
        """Begin it. A start that fails is an end, reported by the next poll."""
        ...

    def adopt(self, job: Job, now: float) -> None:
        """Take over a job that was started before the controller came back."""
        ...

    def signal(self, job: Job, number: int, now: float, aim: Aim = Aim.ALL) -> None: ...

    def next_at(self) -> float | None:
        """When the next end is due, where that is known beforehand."""
        ...

    def poll(self, now: float) -> Sequence[Ended]:
        """Whatever ended up to now, each end once."""
        ...


class Happening(StrEnum):
    CONFIGURED = "configured"
    LIMIT = "limit"
    KILL = "kill"
    RELEASED = "released"
    FORGET = "forget"
    DEATH = "death"
    REPAIR = "repair"


@dataclass(frozen=True, kw_only=True)
class Faults:
    """How often nodes die on their own: deaths per node and day, and the seed that picks which."""

    per_node_day: float = 0.0
    seed: int = 0
    speed: float = 1.0

    def gap(self, number: int, nodes: int) -> float:
        return self._dice(number, "gap").expovariate(self.per_node_day * self.speed * nodes / DAY_S)

    def victim(self, number: int, names: Sequence[str]) -> str:
        return self._dice(number, "victim").choice(names)

    def repair_s(self, number: int) -> float:
        return self._dice(number, "repair").uniform(*REPAIR_S) / self.speed

    def _dice(self, number: int, what: str) -> Random:
        return Random(f"{self.seed}:{number}:{what}")


class _Room:
    """What is free on one node just now."""

    def __init__(self, node: Node) -> None:
        self.cpus, self.memory_mb, self.gpus = node.cpus, node.memory_mb, set(range(node.gpus))
        self.jobs: set[int] = set()

    def fits(self, asked: Request) -> bool:
        return (
            len(self.gpus) >= asked.gpus_per_node
            and self.cpus >= asked.cpus_per_node
            and self.memory_mb >= asked.memory_per_node_mb
        )

    def take(self, job: Job, indices: Iterable[int]) -> None:
        self.cpus -= job.request.cpus_per_node
        self.memory_mb -= job.request.memory_per_node_mb
        self.gpus.difference_update(indices)
        self.jobs.add(job.id)

    def give(self, job: Job, indices: Iterable[int]) -> None:
        self.cpus += job.request.cpus_per_node
        self.memory_mb += job.request.memory_per_node_mb
        self.gpus.update(indices)
        self.jobs.discard(job.id)


class World:
    """The cluster. One method per command, and `advance` for everything that time does."""

    def __init__(
        self, picture: Picture, hands: Hands, now: float, *, faults: Faults | None = None, timing: Timing | None = None
    ) -> None:
        self._hands = hands
        self._timing = timing or Timing()
        self._faults = faults or Faults()
        self._nodes = {node.name: node for node in picture.nodes}
        self._jobs = {job.id: job for job in picture.jobs}
        self._clock = picture.clock
        self._rooms = {node.name: _Room(node) for node in picture.nodes}
        self._waiting: dict[int, None] = {}
        self._agenda: list[tuple[float, int, Happening, int | str]] = []
        self._drawn = 0  # breaks ties on the agenda: first planned, first done
        self._now = now  # nothing starts in a time when nobody was here; what ended then ended then
        self._unsettled = True
        self._closing = False
        self.counts: Counter[str] = Counter()
        self.last_job_change = self.last_node_change = now
        self._changed_jobs: dict[int, None] = {}
        self._changed_nodes: dict[str, None] = {}
        self._forgotten: list[int] = []
        self._clock_changed = False
        self._resume_all(now)

    # Questions

    @property
    def jobs(self) -> Mapping[int, Job]:
        return self._jobs

    @property
    def nodes(self) -> Mapping[str, Node]:
        return self._nodes

    def picture(self) -> Picture:
        return Picture(nodes=tuple(self._nodes.values()), jobs=tuple(self._jobs.values()), clock=self._clock)

    def job(self, job_id: int) -> Job:
        if job_id not in self._jobs:
            raise Refusal(UNKNOWN_JOB, "Invalid job id specified")
        return self._jobs[job_id]

    def node(self, name: str) -> Node:
        if name not in self._nodes:
            raise Refusal(UNKNOWN_NODE, "Invalid node name specified")
        return self._nodes[name]

    def jobs_on(self, name: str) -> list[Job]:
        return [self._jobs[job_id] for job_id in sorted(self._rooms[name].jobs)]

    @property
    def empty(self) -> bool:
        """Whether no job has anything left on a node."""
        return not any(room.jobs for room in self._rooms.values())

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
        if any(job.completing for job in jobs):
            flags.add(NodeFlag.COMPLETING)
        if node.down:
            return NodeState.DOWN, frozenset(flags | {NodeFlag.NOT_RESPONDING})
        return occupied(node.gpus, len(self.used_gpus(name)), bool(jobs)), frozenset(flags)

    # Commands

    def submit(self, request: Request, now: float) -> Job:
        """Take it in, or say why it can never run. It starts with the next `advance`."""
        self._check_possible(request)
        job = Job(id=self._clock.next_id, request=request, submitted_at=now, reason=_first_reason(request))
        self._set_clock(replace(self._clock, next_id=job.id + 1))
        self._set_job(job, now)
        self._waiting[job.id] = None
        self._unsettled = True
        self.counts["submitted"] += 1
        return job

    def cancel(self, job_id: int, now: float) -> None:
        job = self.job(job_id)
        if job.state in FINAL:
            raise Refusal(ALREADY_DONE, "Job/step already completing or completed")
        self.counts["cancelled"] += 1
        if job.state == State.PENDING:
            self._end_waiting(job, now)
        else:
            self._stop(job, State.CANCELLED, TERM, now)

    def signal(self, job_id: int, number: int, now: float, aim: Aim = Aim.ALL) -> None:
        """Any signal but KILL goes to the processes and changes nothing here; KILL is Slurm's way to say cancel."""
        job = self.job(job_id)
        if number == KILL:
            self.cancel(job_id, now)
        elif job.state != State.RUNNING or job.configuring:
            raise Refusal(ALREADY_DONE, "Job/step already completing or completed")
        else:
            self._hands.signal(job, number, now, aim)

    def update(self, job_id: int, changed: Mapping[str, object], now: float) -> None:
        """Fields of the request that may change after submission: `limit_s`, `comment`, `held`."""
        job = self.job(job_id)
        if job.state in FINAL:
            raise Refusal(ALREADY_DONE, "Job/step already completing or completed")
        request = replace(job.request, **changed)  # type: ignore[arg-type]
        job = replace(job, request=request)
        if job.state == State.PENDING:
            job = replace(job, reason=_first_reason(request))
            self._unsettled = True
        self._set_job(job, now)
        self._plan_limit(job)

    def drain(self, name: str, reason: str, by: str, now: float) -> None:
        """No new work; what runs there ends in its own time."""
        node = self.node(name)
        self._set_node(replace(node, drained=True, reason=reason, reason_by=by, reason_at=now), now)
        self._unsettled = True

    def resume(self, name: str, now: float) -> None:
        node = self.node(name)
        booted = now if node.down else node.boot_at
        clean = replace(node, drained=False, down=False, reason="", reason_by="", reason_at=0.0, repair_at=0.0)
        self._set_node(replace(clean, boot_at=booted), now)
        self._unsettled = True

    def set_down(self, name: str, reason: str, by: str, now: float, *, repair_at: float = 0.0) -> None:
        """The node is gone, and every job that touches it with it."""
        node = replace(self.node(name), down=True, reason=reason, reason_by=by, reason_at=now, repair_at=repair_at)
        self._set_node(node, now)
        if repair_at:
            self._plan(repair_at, Happening.REPAIR, name)
        for job in self.jobs_on(name):
            if job.state == State.RUNNING:
                self._stop(job, State.NODE_FAIL, KILL, now, reason="NodeDown")
        self._unsettled = True

    def shut_down(self, reason: str, now: float) -> None:
        """The machine goes down in good order: what runs is asked to end, and nothing begins any more."""
        self._closing = True
        for job in list(self._jobs.values()):
            if job.state == State.RUNNING:
                self._stop(job, State.NODE_FAIL, TERM, now, reason=reason)

    # Time

    def advance(self, now: float) -> None:
        """Let happen what is due up to now, each thing at its own moment: one leap does what many steps would."""
        if self._unsettled:
            self._turn(self._now)
        while (at := self._next_at()) is not None and at <= now:
            self._turn(max(at, self._now))
        self._turn(max(now, self._now))

    def take_changes(self) -> Changes:
        """Everything that changed since the last call, for the store."""
        changes = Changes(
            jobs=tuple(self._jobs[job_id] for job_id in self._changed_jobs if job_id in self._jobs),
            nodes=tuple(self._nodes[name] for name in self._changed_nodes),
            forgotten=tuple(self._forgotten),
            clock=self._clock if self._clock_changed else None,
        )
        self._changed_jobs, self._changed_nodes, self._forgotten, self._clock_changed = {}, {}, [], False
        return changes

    def _next_at(self) -> float | None:
        times = [at for at in (self._agenda[0][0] if self._agenda else None, self._hands.next_at()) if at is not None]
        return min(times, default=None)

    def _turn(self, at: float) -> None:
        self._now = at
        for ended in self._hands.poll(at):
            self._ended(ended, at)
        while self._agenda and self._agenda[0][0] <= at:
            _, _, what, whom = heappop(self._agenda)
            self._happen(what, whom, at)
        if self._unsettled and not self._closing:
            self._unsettled = False
            self._start_waiting(at)

    def _plan(self, at: float, what: Happening, whom: int | str) -> None:
        self._drawn += 1
        heappush(self._agenda, (at, self._drawn, what, whom))

    def _plan_limit(self, job: Job) -> None:
        if job.state == State.RUNNING and job.ends_by is not None:
            self._plan(job.ends_by, Happening.LIMIT, job.id)

    def _happen(self, what: Happening, whom: int | str, now: float) -> None:
        """Nothing is ever taken off the agenda: each entry looks whether it still means anything."""
        if isinstance(whom, str):
            self._happen_to_node(what, whom, now)
        elif whom in self._jobs:
            self._happen_to_job(what, self._jobs[whom], now)

    def _happen_to_job(self, what: Happening, job: Job, now: float) -> None:
        if what == Happening.CONFIGURED and job.configuring and job.state == State.RUNNING:
            begun = replace(job, flags=frozenset(), began_at=job.started_at + self._timing.configure_s)
            self._set_job(begun, now)
            self._hands.start(begun, now)
        elif what == Happening.LIMIT and job.state == State.RUNNING and job.ends_by is not None and job.ends_by <= now:
            self._stop(job, State.TIMEOUT, TERM, now, reason="TimeLimit")
        elif what == Happening.KILL and job.completing:
            self._hands.signal(job, KILL, now)
        elif what == Happening.RELEASED and job.completing:
            self._release(job, now)
        elif what == Happening.FORGET and job.state in FINAL and not job.completing:
            self._forget(job)

    def _happen_to_node(self, what: Happening, name: str, now: float) -> None:
        if what == Happening.DEATH:
            self._strike(now)
        elif (node := self._nodes.get(name)) and node.down and 0 < node.repair_at <= now:
            self.resume(name, now)

    # A job's way

    def _check_possible(self, asked: Request) -> None:
        unknown = [name for name in asked.required_nodes if name not in self._nodes]
        if unknown:
            raise Refusal(UNKNOWN_NODE, "Invalid node name specified")
        eligible = [self._nodes[n] for n in asked.required_nodes] or list(self._nodes.values())
        able = sum(_able(node, asked) for node in eligible)
        exact = not asked.required_nodes or asked.node_count == len(asked.required_nodes)
        if not exact or asked.node_count < 1 or able < asked.node_count:
            raise Refusal(BAD_CONFIGURATION, "Requested node configuration is not available")

    def _start_waiting(self, now: float) -> None:
        claimed: set[str] = set()
        for job in [self._jobs[job_id] for job_id in self._waiting]:
            nodes, reason = self._place_for(job.request, claimed)
            if nodes:
                self._begin(job, nodes, now)
                continue
            if reason == "Resources":
                claimed.update(job.request.required_nodes)
            if reason != job.reason:
                self._set_job(replace(job, reason=reason), now)

    def _place_for(self, asked: Request, claimed: set[str]) -> tuple[tuple[str, ...], str]:
        """The nodes to run on, or none and the reason."""
        if asked.held:
            return (), "JobHeldUser"
        if not asked.required_nodes:
            return self._any_place(asked, claimed)
        if not all(self._nodes[name].usable for name in asked.required_nodes):
            return (), "ReqNodeNotAvail"
        if claimed.intersection(asked.required_nodes):
            return (), "Priority"
        fits = all(self._rooms[name].fits(asked) for name in asked.required_nodes)
        return (asked.required_nodes, "None") if fits else ((), "Resources")

    def _any_place(self, asked: Request, claimed: set[str]) -> tuple[tuple[str, ...], str]:
        free = (
            node.name
            for node in self._nodes.values()
            if node.usable and node.name not in claimed and _able(node, asked) and self._rooms[node.name].fits(asked)
        )
        nodes = tuple(name for name, _ in zip(free, range(asked.node_count), strict=False))
        return (nodes, "None") if len(nodes) == asked.node_count else ((), "Resources")

    def _begin(self, job: Job, nodes: tuple[str, ...], now: float) -> None:
        wanted = job.request.gpus_per_node
        gpus = {name: tuple(sorted(self._rooms[name].gpus)[:wanted]) for name in nodes} if wanted else {}
        flags = frozenset({Flag.CONFIGURING})
        started = replace(job, state=State.RUNNING, flags=flags, reason="None", nodes=nodes, gpus=gpus, started_at=now)
        del self._waiting[job.id]
        self._take_room(started)
        self._set_job(started, now)
        self._plan(now + self._timing.configure_s, Happening.CONFIGURED, job.id)
        self._plan_limit(started)
        self.counts["started"] += 1

    def _take_room(self, job: Job) -> None:
        for name in job.nodes:
            self._rooms[name].take(job, job.gpus.get(name, ()))

    def _ended(self, ended: Ended, now: float) -> None:
        """The processes are gone. A job that was being stopped keeps the state it was stopped with."""
        job = self._jobs.get(ended.job_id)
        if job is None or not job.holds:
            return
        if job.state == State.RUNNING:
            job = replace(
                job,
                state=ended.state,
                flags=frozenset({Flag.COMPLETING}),
                exit=ended.exit,
                reason=ended.reason,
                ended_at=max(ended.at, job.started_at),
            )
            self.counts[str(ended.state).lower()] += 1
            self._set_job(job, now)
        self._plan(max(ended.at, now) + self._timing.complete_s, Happening.RELEASED, job.id)
        if ended.lost_node in self._nodes:
            self._lose(ended.lost_node, now)

    def _stop(self, job: Job, state: State, number: int, now: float, *, reason: str = "None") -> None:
        """End it from outside: it is called by its end at once, and holds its GPUs until its processes are gone."""
        flags, ended = frozenset({Flag.COMPLETING}), Exit(signal=number)
        stopped = replace(job, state=state, flags=flags, reason=reason, ended_at=now, exit=ended)
        self._set_job(stopped, now)
        if job.configuring:
            self._plan(now + self._timing.complete_s, Happening.RELEASED, job.id)
            return
        self._hands.signal(stopped, number, now)
        self._plan(now + self._timing.kill_wait_s, Happening.KILL, job.id)

    def _end_waiting(self, job: Job, now: float) -> None:
        del self._waiting[job.id]
        self._set_job(replace(job, state=State.CANCELLED, reason="None", ended_at=now), now)
        self._plan(now + self._timing.min_job_age_s, Happening.FORGET, job.id)
        self._unsettled = True

    def _release(self, job: Job, now: float) -> None:
        self._set_job(replace(job, flags=frozenset()), now)
        for name in job.nodes:
            self._rooms[name].give(job, job.gpus.get(name, ()))
        self._plan(job.ended_at + self._timing.min_job_age_s, Happening.FORGET, job.id)
        self._unsettled = True

    def _forget(self, job: Job) -> None:
        del self._jobs[job.id]
        self._forgotten.append(job.id)

    # Faults

    def _strike(self, now: float) -> None:
        """One node dies, and the next death is drawn. A node that is down already cannot die again."""
        number = self._clock.faults
        standing = [node.name for node in self._nodes.values() if not node.down]
        if standing:
            self._lose(self._faults.victim(number, standing), now)
        self._draw_fault(number + 1, now)

    def _lose(self, name: str, now: float) -> None:
        repaired = now + self._faults.repair_s(self._clock.faults)
        self.set_down(name, "Not responding", "slurm", now, repair_at=repaired)

    def _draw_fault(self, number: int, now: float) -> None:
        at = now + self._faults.gap(number, len(self._nodes))
        self._set_clock(replace(self._clock, faults=number, next_fault_at=at))
        self._plan(at, Happening.DEATH, "")

    # Coming back

    def _resume_all(self, now: float) -> None:
        for job in self._jobs.values():
            self._resume_job(job, now)
        for node in self._nodes.values():
            if node.repair_at:
                self._plan(node.repair_at, Happening.REPAIR, node.name)
        if self._faults.per_node_day and self._nodes:
            if self._clock.next_fault_at:
                self._plan(self._clock.next_fault_at, Happening.DEATH, "")
            else:
                self._draw_fault(self._clock.faults, now)
        heapify(self._agenda)

    def _resume_job(self, job: Job, now: float) -> None:
        if job.state == State.PENDING:
            self._waiting[job.id] = None
        elif not job.holds:
            self._plan(job.ended_at + self._timing.min_job_age_s, Happening.FORGET, job.id)
        else:
            self._take_room(job)
            self._resume_holder(job, now)

    def _resume_holder(self, job: Job, now: float) -> None:
        self._plan_limit(job)
        if job.configuring:
            self._plan(job.started_at + self._timing.configure_s, Happening.CONFIGURED, job.id)
            return
        self._hands.adopt(job, now)
        if job.completing:
            self._plan(job.ended_at + self._timing.kill_wait_s, Happening.KILL, job.id)

    # Writing down

    def _set_job(self, job: Job, now: float) -> None:
        self._jobs[job.id] = job
        self._changed_jobs[job.id] = None
        self.last_job_change = now
        self._now = max(self._now, now)  # what follows from a command does not happen before it

    def _set_node(self, node: Node, now: float) -> None:
        self._nodes[node.name] = node
        self._changed_nodes[node.name] = None
        self.last_node_change = now
        self._now = max(self._now, now)

    def _set_clock(self, clock: Clock) -> None:
        self._clock = clock
        self._clock_changed = True


def _first_reason(request: Request) -> str:
    return "JobHeldUser" if request.held else "None"


def _able(node: Node, asked: Request) -> bool:
    """Whether the node could ever carry its share."""
    model_fits = not asked.gpu_model or not asked.gpus_per_node or asked.gpu_model == node.gpu_model
    return (
        model_fits
        and asked.gpus_per_node <= node.gpus
        and asked.cpus_per_node <= node.cpus
        and asked.memory_per_node_mb <= node.memory_mb
    )


def plan_nodes(
    names: Iterable[str], *, gpus: int, gpu_model: str, now: float, cpus: int = 128, memory_mb: int = 1_024_000
) -> Iterator[Node]:
    """Nodes in racks of four, a leaf switch per two racks, a pod per four leaves: topology by the names of features."""
    for i, name in enumerate(names):
        features = (f"rack-r{i // 4 + 1:02d}", f"leaf-l{i // 8 + 1:02d}", f"pod-p{i // 32 + 1}", "nic-hdr200x4")
        yield Node(
            name=name,
            cpus=cpus,
            memory_mb=memory_mb,
            gpus=gpus,
            gpu_model=gpu_model if gpus else "",
            features=features,
            boot_at=now,
        )
