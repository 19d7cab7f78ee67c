"""What must hold of a record whatever happened to the programs that wrote it. Pure: rows in, sentences out.

The Events are the witness: they cannot be edited, so the whole history of states and of GPUs is told again from them
and compared with the rows. An empty list is an acquittal.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import pairwise

from jobs.lifecycle import FINAL, LIVE, MOVES, State

Gpu = tuple[str, int]
RECOVERY = "recovery"


@dataclass(frozen=True, kw_only=True)
class Told:
    """One Event of a job. `group` is the transaction it was written in: what it tells became true at once."""

    id: int
    group: object
    what: str
    job: str
    attempt: str = ""
    source: str = ""
    target: str = ""
    gpus: frozenset[Gpu] | None = None


@dataclass(frozen=True, kw_only=True)
class Closing:
    """One Event of a node: who drained or resumed it."""

    id: int
    node: str
    what: str
    by: str


@dataclass(frozen=True, kw_only=True)
class Done:
    """One step of a decision of recovery, that was really made."""

    decision: int
    kind: str
    node: str = ""


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A job's row, and how many attempts of it there are."""

    job: str
    state: str
    attempts: int = 0
    live_attempts: int = 0


@dataclass(frozen=True, kw_only=True)
class Ran:
    """A job as the cluster itself remembers it."""

    key: str
    state: str
    started: bool


@dataclass(frozen=True, kw_only=True)
class Evidence:
    accepted: Mapping[str, str] = field(default_factory=dict)  # id -> name, of every job that was answered with 201
    final_once: Mapping[str, str] = field(default_factory=dict)  # id -> the final state somebody has seen
    names: Sequence[str] = ()  # of all jobs in the record
    rows: Sequence[Kept] = ()
    told: Sequence[Told] = ()
    ran: Sequence[Ran] = ()
    closings: Sequence[Closing] = ()
    done: Sequence[Done] = ()


def violations(evidence: Evidence) -> list[str]:
    return [
        *lost(evidence.accepted, {row.job: row.state for row in evidence.rows}),
        *run_twice(evidence.ran, evidence.names),
        *held_twice(evidence.told),
        *moved_after_the_end(evidence.final_once, evidence.rows, evidence.told),
        *untold(evidence.rows, evidence.told),
        *carried_out_twice(evidence.done, evidence.told),
        *cordoned_twice(evidence.closings),
        *restarted_alive(evidence.told),
    ]


def lost(accepted: Iterable[str], states: Mapping[str, str]) -> Iterator[str]:
    """(1) No accepted job is lost: each is there, and has come to its end."""
    for job in accepted:
        if job not in states:
            yield f"{job} was accepted and is not in the record"
        elif states[job] not in FINAL:
            yield f"{job} is still {states[job]}"


def run_twice(ran: Sequence[Ran], names: Iterable[str]) -> Iterator[str]:
    """(2) None ran twice with effect: once for each attempt, once to its good end for each job, one job for each wish.

    What runs once too often is cancelled by the next sync; so a run that was cancelled has no effect.
    """
    effective = [one for one in ran if one.started and one.state != State.CANCELLED]
    yield from (f"attempt {key} ran {n} times" for key, n in Counter(one.key for one in effective).items() if n > 1)
    completed = Counter(one.key.rpartition(".")[0] for one in ran if one.state == State.COMPLETED)
    yield from (f"{job} completed {n} times" for job, n in completed.items() if n > 1)
    yield from (f"{name} is in the record {n} times" for name, n in Counter(names).items() if n > 1)


def held_twice(told: Sequence[Told]) -> Iterator[str]:
    """(3) No GPU has two holders at any instant."""
    held: dict[str, frozenset[Gpu]] = {}
    holder: dict[Gpu, str] = {}
    for together in _by_transaction(told):
        for one in together:  # what is given back in a transaction is free for the others in it
            for gpu in held.pop(one.job, frozenset()) if _gives_back(one) else ():
                holder.pop(gpu, None)
        for one in together:
            if not one.gpus:
                continue
            for gpu in one.gpus:
                if gpu in holder:
                    yield f"{gpu[0]} GPU {gpu[1]} was given to {one.job} while {holder[gpu]} held it (event {one.id})"
                holder[gpu] = one.job
            held[one.job] = one.gpus


def _by_transaction(told: Sequence[Told]) -> Iterable[list[Told]]:
    """In the order of their first Events: who takes a GPU writes his Event after the giver's transaction is over."""
    groups: dict[object, list[Told]] = {}
    for one in told:
        groups.setdefault(one.group, []).append(one)
    return groups.values()


def _gives_back(one: Told) -> bool:
    return one.gpus is not None or (one.source in LIVE and one.target not in LIVE)


def moved_after_the_end(seen: Mapping[str, str], rows: Sequence[Kept], told: Sequence[Told]) -> Iterator[str]:
    """(4) Who has seen a final state sees it for ever."""
    states = {row.job: row.state for row in rows}
    for job, state in seen.items():
        if states.get(job) != state:
            yield f"{job} was {state} and is {states.get(job, 'gone')}"
    yield from (f"{one.job} left {one.source} (event {one.id})" for one in told if one.source in FINAL)


def untold(rows: Sequence[Kept], told: Sequence[Told]) -> Iterator[str]:
    """(5) Each change has its Event: the chain of moves is legal, unbroken, and ends where the row stands."""
    chains: dict[str, list[Told]] = defaultdict(list)
    for one in told:
        if one.target and one.what in ("job.submitted", "job.moved"):
            chains[one.job].append(one)
    for row in rows:
        yield from _broken(row, chains.get(row.job, []))


def _broken(row: Kept, chain: Sequence[Told]) -> Iterator[str]:
    if not chain or chain[0].what != "job.submitted":
        yield f"{row.job}: nobody wrote down that it was submitted"
        return
    for before, after in pairwise(chain):
        if after.source != before.target or (State(after.source), State(after.target)) not in MOVES:
            yield f"{row.job}: {before.target} was followed by {after.source} to {after.target} (event {after.id})"
    if chain[-1].target != row.state:
        yield f"{row.job}: the last Event says {chain[-1].target}, the row {row.state}"
    promised = sum(one.source == State.PENDING and one.target == State.RUNNING for one in chain)
    if promised != row.attempts:
        yield f"{row.job}: {row.attempts} attempts, but {promised} promises were told"
    if row.live_attempts != (row.state in LIVE):
        yield f"{row.job} is {row.state} with {row.live_attempts} live attempts"


def carried_out_twice(done: Sequence[Done], told: Sequence[Told]) -> Iterator[str]:
    """(7) No decision is carried out twice with effect: each step once for a node, each failure recovered from once."""
    for one, times in Counter(done).items():
        if times > 1:
            where = f" {one.node}" if one.node else ""
            yield f"decision {one.decision} has {one.kind}{where} {times} times"
    recovered = Counter(one.attempt for one in told if one.what == "job.recovered" and one.attempt)
    yield from (f"{attempt} was recovered from {times} times" for attempt, times in recovered.items() if times > 1)


def cordoned_twice(closings: Sequence[Closing]) -> Iterator[str]:
    """(8) Recovery closes a node once: it is not drained again before somebody resumed it."""
    closed: set[str] = set()
    for one in closings:
        if one.what == "node.resumed":
            closed.discard(one.node)
        elif one.by == RECOVERY and one.node in closed:
            yield f"{one.node} was drained by recovery, and was drained by it already (event {one.id})"
        elif one.by == RECOVERY:
            closed.add(one.node)


def restarted_alive(told: Sequence[Told]) -> Iterator[str]:
    """(9) No job is started again while an attempt of it lives."""
    states: dict[str, str] = {}
    for one in told:
        if one.what == "job.recovered" and states.get(one.job) in LIVE:
            yield f"{one.job} was recovered while it was {states[one.job]} (event {one.id})"
        if one.target:
            states[one.job] = one.target


def unsteady(before: Set[str] | str, after: Set[str] | str) -> Iterator[str]:
    """(6) One more reconcile changes nothing."""
    if before != after:
        yield "one more turn changed the record of jobs that were at rest"
