"""Checks what must be true after a storm. Pure: takes rows and returns one sentence per violation.

There are two sources of evidence. The cluster's own file of effects (`effects.py`) shows which commands really started
and ended. Events cannot be edited, so the history of states and of GPUs is rebuilt from them and compared with the
rows. An empty list means that there is no violation.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from jobs.core.lifecycle import FINAL_STATES, LIVE_STATES, TRANSITIONS, State
from jobs.core.preemption_contract import CHECKPOINT_TOLERANCE
from tests.chaos.effects import Effect

Gpu = tuple[str, int]
RECOVERY = "recovery"
# The maximum age of the data that a loop decides from: a stale response, and a worker that froze after reading it
MAX_SNAPSHOT_AGE = timedelta(seconds=40)


@dataclass(frozen=True, kw_only=True)
class JobEvent:
    """One Event of a job. `group` is its transaction: all its changes became visible at once."""

    id: int
    group: object
    type: str
    job: str
    attempt: str = ""
    source: str = ""
    target: str = ""
    gpus: frozenset[Gpu] | None = None
    at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class NodeEvent:
    """One Event of a node: it was drained or resumed."""

    id: int
    node: str
    type: str
    by: str


@dataclass(frozen=True, kw_only=True)
class RecoveryStep:
    """One step of an executed recovery decision."""

    decision: int
    kind: str
    node: str = ""


@dataclass(frozen=True, kw_only=True)
class JobRow:
    """A job's row and the numbers of its attempts."""

    job: str
    state: str
    attempts: int = 0
    live_attempts: int = 0


@dataclass(frozen=True, kw_only=True)
class EndedAttempt:
    """An attempt that ended, and whether its own installation requested the end."""

    key: str
    state: str
    stop_requested: bool


@dataclass(frozen=True, kw_only=True)
class Holding:
    """A GPU held by a job, from when its installation recorded the start until the GPU was released."""

    job: str
    attempt: str
    gpu: Gpu
    since: datetime
    until: datetime


@dataclass(frozen=True, kw_only=True)
class Preemption:
    """A recorded preemption that was not withdrawn, the terms of its job, and what was recorded before.

    A transaction may be frozen between its begin and its writes, so an Event may be earlier than the change it tells.
    `decided_at` is the time of the Event, `queued_at` that of the command, which is read from the clock after the
    decision. Each clause is judged with the one that favors the installation.
    """

    job: str
    attempt: str
    decided_at: datetime
    queued_at: datetime
    preemptible: bool = True
    exempt: timedelta = timedelta(0)
    at_checkpoint: bool = False
    per_day: int | None = None
    started_at: datetime | None = None  # Event of the start
    saved_at: Sequence[datetime] = ()  # Events of checkpoints of this attempt on remote storage
    earlier: Sequence[datetime] = ()  # ends of earlier attempts that were preempted


@dataclass(frozen=True, kw_only=True)
class Evidence:
    accepted: Mapping[str, str] = field(default_factory=dict)  # id -> name of every job whose submission was confirmed
    withdrawn: Collection[str] = ()  # jobs that a user cancelled
    final_once: Mapping[str, str] = field(default_factory=dict)  # id -> the final state observed during the storm
    names: Sequence[str] = ()  # names of all jobs in the database
    rows: Sequence[JobRow] = ()
    events: Sequence[JobEvent] = ()
    effects: Sequence[Effect] = ()
    ended_attempts: Sequence[EndedAttempt] = ()
    holdings: Sequence[Holding] = ()
    counted_nodes: Mapping[str, int] = field(default_factory=dict)  # see `promised_beyond_capacity`
    node_events: Sequence[NodeEvent] = ()
    steps: Sequence[RecoveryStep] = ()
    preemptions: Sequence[Preemption] = ()
    stopped_by_others: Collection[str] = ()  # attempts that somebody else stopped on their cluster
    out_of_sight: Collection[str] = ()  # attempts that ran on while their cluster could not see or stop them


def violations(evidence: Evidence) -> list[str]:
    states = {row.job: row.state for row in evidence.rows}
    return [
        *lost(evidence.accepted, states),
        *recorded_twice(evidence.names),
        *side_effects([effect for effect in evidence.effects if effect.attempt not in evidence.out_of_sight]),
        *success_without_effect(states, evidence.accepted, evidence.effects),
        *success_not_recorded(states, _recorded(evidence), evidence.withdrawn),
        *timed_out(states, evidence.accepted),
        *cancelled_by_nobody(evidence.ended_attempts, evidence.stopped_by_others),
        *held_twice(evidence.events),
        *moved_after_the_end(evidence.final_once, evidence.rows, evidence.events),
        *unexplained(evidence.rows, evidence.events),
        *carried_out_twice(evidence.steps, evidence.events),
        *cordoned_twice(evidence.node_events),
        *restarted_alive(evidence.events),
        *preempted_outside_contract(evidence.preemptions),
    ]


def _recorded(evidence: Evidence) -> list[Effect]:
    """Effects of attempts in the database that nobody else stopped.

    A failover may lose an attempt together with its end, and its job may then have ended in another way. An attempt
    that somebody else deletes while it ends may leave no trace of its success.
    """
    known = {attempt.key for attempt in evidence.ended_attempts} - set(evidence.stopped_by_others)
    return [effect for effect in evidence.effects if effect.attempt in known]


def lost(accepted: Iterable[str], states: Mapping[str, str]) -> Iterator[str]:
    """(1) Every accepted job is in the database and has ended."""
    for job in accepted:
        if job not in states:
            yield f"{job} was accepted and is not in the database"
        elif states[job] not in FINAL_STATES:
            yield f"{job} is still {states[job]}"


def recorded_twice(names: Iterable[str]) -> Iterator[str]:
    """(2) One request creates one job, no matter how often it was sent."""
    yield from (f"{name} is in the database {n} times" for name, n in Counter(names).items() if n > 1)


def side_effects(effects: Sequence[Effect]) -> Iterator[str]:
    """(3) Effects that must never occur. Node tests are excluded, because repeating them is harmless."""
    of_jobs = [effect for effect in effects if effect.job != effect.attempt]
    yield from started_after_success(of_jobs)
    yield from started_twice(of_jobs)
    yield from overlapping(of_jobs)


def started_after_success(effects: Sequence[Effect]) -> Iterator[str]:
    """A command that ended with exit code 0 is not run again."""
    successes: dict[str, Effect] = {}
    for effect in effects:
        earlier = successes.get(effect.job)
        if effect.starts and earlier:
            yield (
                f"{effect.job} was started as {effect.key} (cluster job {effect.job_id}) after {earlier.key}"
                f" (cluster job {earlier.job_id}) had ended with exit code 0"
            )
        if effect.succeeded:
            successes.setdefault(effect.job, effect)


def started_twice(effects: Sequence[Effect]) -> Iterator[str]:
    """An attempt starts only once."""
    starts: dict[str, list[int]] = defaultdict(list)
    for effect in effects:
        if effect.starts:
            starts[effect.attempt].append(effect.job_id)
    for attempt, ids in starts.items():
        if len(ids) > 1:
            yield f"attempt {attempt} was started {len(ids)} times, as cluster jobs {', '.join(map(str, ids))}"


def overlapping(effects: Sequence[Effect]) -> Iterator[str]:
    """Two commands of one job never run at the same time."""
    running: dict[str, dict[int, str]] = defaultdict(dict)
    for effect in effects:
        commands = running[effect.job]
        if not effect.starts:
            commands.pop(effect.job_id, None)
            continue
        for other_id, other in commands.items():
            yield f"{effect.key} (cluster job {effect.job_id}) was started while {other} (cluster job {other_id}) ran"
        commands[effect.job_id] = effect.key


def success_without_effect(
    states: Mapping[str, str], accepted: Iterable[str], effects: Sequence[Effect]
) -> Iterator[str]:
    """(4) Every COMPLETED job has a command that ended with exit code 0."""
    succeeded = {effect.job for effect in effects if effect.succeeded}
    for job in accepted:
        if states.get(job) == State.COMPLETED and job not in succeeded:
            yield f"{job} is COMPLETED, but no command of it ended with exit code 0"


def success_not_recorded(
    states: Mapping[str, str], effects: Sequence[Effect], withdrawn: Collection[str]
) -> Iterator[str]:
    """(5) A job whose command ended with exit code 0 is COMPLETED, unless a user cancelled it."""
    for job in sorted({effect.job for effect in effects if effect.succeeded and effect.job in states}):
        state = states[job]
        if state in FINAL_STATES and state != State.COMPLETED and not (state == State.CANCELLED and job in withdrawn):
            yield f"{job} is {state}, but a command of it ended with exit code 0"


def timed_out(states: Mapping[str, str], accepted: Iterable[str]) -> Iterator[str]:
    """(6) No job ends because of its time limit: the storm's jobs take seconds, and their limits are minutes."""
    yield from (f"{job} is TIMEOUT, long before its time limit" for job in accepted if states.get(job) == State.TIMEOUT)


def cancelled_by_nobody(attempts: Iterable[EndedAttempt], stopped_by_others: Collection[str] = ()) -> Iterator[str]:
    """(7) An attempt is cancelled only by its own installation, or by somebody else on the cluster."""
    for attempt in attempts:
        requested = attempt.stop_requested or attempt.key in stopped_by_others
        if attempt.state == State.CANCELLED and not requested:
            yield f"attempt {attempt.key} was cancelled without a request"


def held_twice(events: Sequence[JobEvent]) -> Iterator[str]:
    """(8) No GPU has two holders at the same time."""
    gpus_by_job: dict[str, frozenset[Gpu]] = {}
    holder: dict[Gpu, str] = {}
    for group in _by_transaction(events):
        for event in group:  # GPUs released in a transaction may be taken in it
            for gpu in gpus_by_job.pop(event.job, frozenset()) if _releases(event) else ():
                holder.pop(gpu, None)
        for event in group:
            if not event.gpus:
                continue
            for gpu in event.gpus:
                if gpu in holder:
                    yield f"{gpu[0]} GPU {gpu[1]} was given to {event.job} while {holder[gpu]} held it ({event.id})"
                holder[gpu] = event.job
            gpus_by_job[event.job] = event.gpus


def _by_transaction(events: Sequence[JobEvent]) -> Iterable[list[JobEvent]]:
    """Groups of Events in order of their first Event: a GPU is taken only after the transaction that released it."""
    groups: dict[object, list[JobEvent]] = {}
    for event in events:
        groups.setdefault(event.group, []).append(event)
    return groups.values()


def _releases(event: JobEvent) -> bool:
    return event.gpus is not None or (event.source in LIVE_STATES and event.target not in LIVE_STATES)


def moved_after_the_end(
    observed: Mapping[str, str], rows: Sequence[JobRow], events: Sequence[JobEvent]
) -> Iterator[str]:
    """(9) An observed final state never changes."""
    states = {row.job: row.state for row in rows}
    for job, state in observed.items():
        if states.get(job) != state:
            yield f"{job} was {state} and is {states.get(job, 'gone')}"
    yield from (
        f"{event.job} left {event.source} (event {event.id})" for event in events if event.source in FINAL_STATES
    )


def unexplained(rows: Sequence[JobRow], events: Sequence[JobEvent]) -> Iterator[str]:
    """(10) Each change has its Event: the chain of transitions is legal, complete, and ends in the row's state."""
    chains: dict[str, list[JobEvent]] = defaultdict(list)
    for event in events:
        if event.target and event.type in ("job.submitted", "job.state_changed"):
            chains[event.job].append(event)
    for row in rows:
        yield from _broken(row, chains.get(row.job, []))


def _broken(row: JobRow, chain: Sequence[JobEvent]) -> Iterator[str]:
    if not chain or chain[0].type != "job.submitted":
        yield f"{row.job}: no Event says that it was submitted"
        return
    for earlier, later in pairwise(chain):
        if later.source != earlier.target or (State(later.source), State(later.target)) not in TRANSITIONS:
            yield f"{row.job}: {earlier.target} was followed by {later.source} to {later.target} (event {later.id})"
    if chain[-1].target != row.state:
        yield f"{row.job}: the last Event says {chain[-1].target}, the row {row.state}"
    promised = sum(event.source == State.PENDING and event.target == State.RUNNING for event in chain)
    if promised != row.attempts:
        yield f"{row.job}: {row.attempts} attempts, but {promised} Events of a promise"
    if row.live_attempts != (row.state in LIVE_STATES):
        yield f"{row.job} is {row.state} with {row.live_attempts} live attempts"


def carried_out_twice(steps: Sequence[RecoveryStep], events: Sequence[JobEvent]) -> Iterator[str]:
    """(11) No decision is executed twice: each step once per node, and one recovery per failure."""
    for step, times in Counter(steps).items():
        if times > 1:
            where = f" {step.node}" if step.node else ""
            yield f"decision {step.decision} has {step.kind}{where} {times} times"
    recovered = Counter(event.attempt for event in events if event.type == "job.recovered" and event.attempt)
    yield from (f"{attempt} was recovered from {times} times" for attempt, times in recovered.items() if times > 1)


def cordoned_twice(events: Sequence[NodeEvent]) -> Iterator[str]:
    """(12) Recovery cordons a node only once until an operator resumes it."""
    cordoned: set[str] = set()
    for event in events:
        if event.type == "node.resumed":
            cordoned.discard(event.node)
        elif event.by == RECOVERY and event.node in cordoned:
            yield f"{event.node} was drained by recovery, which had drained it before (event {event.id})"
        elif event.by == RECOVERY:
            cordoned.add(event.node)


def restarted_alive(events: Sequence[JobEvent]) -> Iterator[str]:
    """(13) No job is restarted while an attempt of it runs."""
    states: dict[str, str] = {}
    for event in events:
        if event.type == "job.recovered" and states.get(event.job) in LIVE_STATES:
            yield f"{event.job} was recovered while it was {states[event.job]} (event {event.id})"
        if event.target:
            states[event.job] = event.target


def promised_to_both(one: Evidence, other: Evidence, effects: Sequence[Effect]) -> Iterator[str]:
    """(14) No installation allocates GPUs on which a job of the other installation is known to run.

    An installation may decide from a snapshot that is `MAX_SNAPSHOT_AGE` old, which includes jobs that run for longer.
    The other installation may learn late that its job has ended, so the end in the effects file counts.
    """
    ends = {effect.attempt: datetime.fromtimestamp(effect.at, UTC) for effect in effects if effect.event == "end"}
    holdings = [
        replace(holding, since=holding.since + MAX_SNAPSHOT_AGE, until=min(holding.until, ends[holding.attempt]))
        if holding.attempt in ends
        else replace(holding, since=holding.since + MAX_SNAPSHOT_AGE)
        for holding in other.holdings
    ]
    yield from promised_while_held(one.events, holdings, one.counted_nodes)
    yield from promised_beyond_capacity(one.events, holdings, one.counted_nodes)


def promised_while_held(
    events: Sequence[JobEvent], holdings: Sequence[Holding], counted_nodes: Collection[str]
) -> Iterator[str]:
    """On nodes whose cluster says which GPUs a job holds: each GPU belongs to one job. A correction from the cluster
    may name a GPU again that was promised before, possibly before the other job ran."""
    promised: dict[str, frozenset[Gpu]] = {}
    by_gpu: dict[Gpu, list[Holding]] = defaultdict(list)
    for holding in holdings:
        by_gpu[holding.gpu].append(holding)
    for event in events:
        earlier = promised.pop(event.job, frozenset()) if _releases(event) else frozenset()
        if event.gpus:
            promised[event.job] = frozenset(event.gpus)
        for gpu in set(event.gpus or ()) - earlier if event.at else ():
            for holding in by_gpu.get(gpu, ()) if gpu[0] not in counted_nodes else ():
                if holding.since < event.at < holding.until:
                    yield (
                        f"{gpu[0]} GPU {gpu[1]} was promised to {event.job} (event {event.id}) while {holding.job}"
                        " of the other installation ran on it"
                    )


def promised_beyond_capacity(
    events: Sequence[JobEvent], holdings: Sequence[Holding], counted_nodes: Mapping[str, int]
) -> Iterator[str]:
    """On nodes whose cluster says only how many GPUs a job holds, each installation numbers them itself: together they
    do not allocate more than there are. `counted_nodes` has their numbers of GPUs.
    """
    by_node: dict[str, list[Holding]] = defaultdict(list)
    for holding in holdings:
        by_node[holding.gpu[0]].append(holding)
    held: dict[str, Counter[str]] = {}  # by job: GPUs by node
    for group in _by_transaction(events):
        for event in filter(_releases, group):
            held.pop(event.job, None)
        for event in (one for one in group if one.gpus and one.at):
            held[event.job] = Counter(node for node, _ in event.gpus or ())
            for node in held[event.job].keys() & counted_nodes.keys():
                others = [one for one in by_node[node] if one.since < event.at < one.until]
                together = sum(gpus[node] for gpus in held.values()) + len(others)
                if together > counted_nodes[node]:
                    yield (
                        f"{node} has {counted_nodes[node]} GPUs, and {together} were promised or in use after event"
                        f" {event.id} for {event.job}; {', '.join(sorted({one.job for one in others}))} of the other"
                        " installation ran there"
                    )


def unsteady(before: Set[str] | str, after: Set[str] | str) -> Iterator[str]:
    """(15) Another turn changes nothing."""
    if before != after:
        yield "another turn changed jobs that had ended"


def preempted_outside_contract(preemptions: Iterable[Preemption]) -> Iterator[str]:
    """(16) No job is preempted outside its contract: computed from its terms and times, not by the engine's rule."""
    for preemption in preemptions:
        yield from (f"{preemption.attempt} was preempted {breach}" for breach in _breaches(preemption))


def _breaches(preemption: Preemption) -> Iterator[str]:
    decided, queued = preemption.decided_at, preemption.queued_at
    if not preemption.preemptible:
        yield "although its job is not preemptible"
    if preemption.exempt and (preemption.started_at is None or queued < preemption.started_at + preemption.exempt):
        yield f"within {preemption.exempt.total_seconds():.0f} s of its start"
    recent = [at for at in preemption.earlier if at > queued - timedelta(days=1)]
    if preemption.per_day is not None and len(recent) >= preemption.per_day:
        yield f"although it had been preempted {len(recent)} times within a day, of {preemption.per_day} allowed"
    late = CHECKPOINT_TOLERANCE + MAX_SNAPSHOT_AGE
    if preemption.at_checkpoint and not any(at <= queued and decided - at <= late for at in preemption.saved_at):
        yield "without a new checkpoint"
