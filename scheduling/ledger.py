"""Every GPU-second of a cluster in exactly one bucket. Pure.

What happened comes in as spells that may overlap, contradict each other or end before they begin, because clocks do
and reports do. `paint` decides each moment once, by the order written below, so the buckets sum to capacity x time to
the microsecond: for any window, over a change of clocks (moments are microseconds since 1970, UTC), over a node that
gets more GPUs, and whichever version of these rules divides them. Windows add up: two halves are the whole.

Who wins, per GPU:
  1  down            the node does not answer: nothing runs there, whatever the rows say
  2  an attempt      the newest holder of the GPU; inside an attempt, `WITHIN`: hung, checkpoint stall, start-up or
                     recovery, idle, lost work, slow, and what is left is productive
  3  drained         in test, repair or maintenance; what still runs on a draining node counts as its attempt
  4  free            nobody waited · reserved idle: somebody waits who would fit on this node, so the order keeps it ·
                     fragmented: somebody waits, and what is free of this node is too little for each of them

The cost is n log n in the spells of a node, once per set of GPUs with the same history (usually one or two a node).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from heapq import heappop, heappush
from itertools import pairwise
from typing import Generic, NamedTuple, TypeVar

VERSION = "1"  # of these rules; kept beside figures that are stored


class Bucket(StrEnum):
    PRODUCTIVE = "productive"
    START_UP = "start_up"
    CHECKPOINT_STALL = "checkpoint_stall"
    LOST_WORK = "lost_work"
    RECOVERY = "recovery"
    HUNG = "hung"
    SLOW = "slow"
    IDLE = "idle"  # held, and nothing done with it
    RESERVED_IDLE = "reserved_idle"
    FRAGMENTED = "fragmented"
    FREE = "free"  # and nobody waited
    DRAINED = "drained"
    DOWN = "down"


# The first that is said of a moment wins
WITHIN = (
    Bucket.HUNG,
    Bucket.CHECKPOINT_STALL,
    Bucket.START_UP,
    Bucket.RECOVERY,
    Bucket.IDLE,
    Bucket.LOST_WORK,
    Bucket.SLOW,
    Bucket.PRODUCTIVE,
)
HELD = frozenset(WITHIN)
RANK = {bucket: rank for rank, bucket in enumerate(WITHIN)}


class Spell(NamedTuple):
    """From `start` to before `end`, in microseconds since 1970."""

    start: int
    end: int
    bucket: Bucket
    cause: str = ""


class Holding(NamedTuple):
    """An attempt on GPUs of one node. Where the indices are not known, how many."""

    attempt: int
    start: int
    end: int
    gpus: tuple[int, ...] = ()
    unplaced: int = 0


class Wait(NamedTuple):
    """A job that may start as far as it is concerned."""

    start: int
    end: int
    gpus_per_node: int
    model: str = ""  # empty: any


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A node. `capacity` is how many GPUs it had from when on; before the first entry it was not there."""

    name: str
    model: str = ""
    capacity: Sequence[tuple[int, int]] = ()
    spells: Sequence[Spell] = ()  # down, drained
    holdings: Sequence[Holding] = ()


@dataclass(frozen=True, kw_only=True)
class Facts:
    machines: Sequence[Machine]
    lives: Mapping[int, Sequence[Spell]] = field(default_factory=dict)  # of an attempt; `worked.life` writes them
    waits: Sequence[Wait] = ()


class Piece(NamedTuple):
    """So many GPUs of a node, all the time from `start` to `end`, in one bucket."""

    start: int
    end: int
    gpus: int
    bucket: Bucket
    node: str
    attempt: int | None = None
    cause: str = ""

    @property
    def gpu_us(self) -> int:
        return (self.end - self.start) * self.gpus


Said = TypeVar("Said")


class Layer(NamedTuple, Generic[Said]):
    start: int
    end: int
    rank: tuple[int, ...]  # the lowest is on top
    says: Said


def paint(layers: Iterable[Layer[Said]], ground: Said, start: int, end: int) -> Iterator[tuple[int, int, Said]]:
    """What is on top at each moment of a window; the ground where nothing lies. Neighbours never overlap."""
    within = (layer for layer in layers if max(layer.start, start) < min(layer.end, end))
    coming = sorted(within, key=lambda layer: layer.start)
    open_: list[tuple[tuple[int, ...], int, Layer[Said]]] = []
    now, next_ = start, 0
    while now < end:
        while next_ < len(coming) and coming[next_].start <= now:
            heappush(open_, (coming[next_].rank, next_, coming[next_]))
            next_ += 1
        while open_ and open_[0][2].end <= now:
            heappop(open_)
        until = min(end, coming[next_].start) if next_ < len(coming) else end
        if open_:
            until = min(until, open_[0][2].end)
        yield now, until, open_[0][2].says if open_ else ground
        now = until


def pieces(facts: Facts, start: int, end: int) -> Iterator[Piece]:
    """All of the window, divided. Pieces of a node come together; those of free GPUs last."""
    wanted = {machine.model: _least_wanted(facts.waits, machine.model, start, end) for machine in facts.machines}
    lives: dict[int, Life] = {}
    for machine in facts.machines:
        yield from _of_machine(machine, facts.lives, lives, wanted[machine.model], start, end)


class Life(NamedTuple):
    """An attempt's own time line, painted once and cut for every GPU that it holds."""

    starts: list[int]
    parts: list[tuple[int, int, Spell]]

    def within(self, start: int, end: int) -> Iterator[tuple[int, int, Spell]]:
        for part in self.parts[max(0, bisect_right(self.starts, start) - 1) :]:
            if part[0] >= end:
                return
            yield max(part[0], start), min(part[1], end), part[2]


def _life(spells: Sequence[Spell], start: int, end: int) -> Life:
    ground = Spell(start, end, Bucket.PRODUCTIVE)
    layers = (Layer(one.start, one.end, (RANK[one.bucket], one.start), one) for one in spells)
    parts = list(paint(layers, ground, start, end))
    return Life([part[0] for part in parts], parts)


NOBODY = Holding(-1, 0, 0)


def _of_machine(
    machine: Machine,
    spells: Mapping[int, Sequence[Spell]],
    lives: dict[int, Life],
    wanted: Life | None,
    start: int,
    end: int,
) -> Iterator[Piece]:
    free: Counter[int] = Counter()  # how many more GPUs are free from then on
    for there, holdings, gpus in _lanes(machine, start, end):
        for since, until in there:
            for low, high, says in paint(_layers(machine, holdings), NOBODY, since, until):
                if says is NOBODY:
                    free[low] += gpus
                    free[high] -= gpus
                elif isinstance(says, Spell):
                    yield Piece(low, high, gpus, says.bucket, machine.name, None, says.cause)
                else:
                    if says.attempt not in lives:
                        lives[says.attempt] = _life(spells.get(says.attempt, ()), start, end)
                    for a, b, part in lives[says.attempt].within(low, high):
                        yield Piece(a, b, gpus, part.bucket, machine.name, says.attempt, part.cause)
    yield from _free(machine.name, free, wanted)


def _layers(machine: Machine, holdings: Iterable[Holding]) -> Iterator[Layer[Spell | Holding]]:
    for spell in machine.spells:
        yield Layer(spell.start, spell.end, (0 if spell.bucket == Bucket.DOWN else 2, spell.start), spell)
    for one in holdings:
        yield Layer(one.start, one.end, (1, -one.start, -one.attempt), one)


def _lanes(
    machine: Machine, start: int, end: int
) -> Iterator[tuple[tuple[tuple[int, int], ...], tuple[Holding, ...], int]]:
    """GPUs of one history: when they were there, who held them, how many they are."""
    per_gpu: dict[int, list[Holding]] = defaultdict(list)
    whole = max((gpus for _, gpus in machine.capacity), default=0)
    for one in sorted(machine.holdings, key=lambda one: (one.unplaced > 0, one.start)):
        if one.start < one.end:
            for gpu in one.gpus or _emptiest(per_gpu, one, whole):
                per_gpu[gpu].append(one)
    lanes = Counter((_there(machine.capacity, gpu, start, end), tuple(per_gpu[gpu])) for gpu in range(whole))
    for (there, holdings), gpus in lanes.items():
        yield there, holdings, gpus


def _emptiest(per_gpu: Mapping[int, Sequence[Holding]], one: Holding, whole: int) -> Sequence[int]:
    """Whoever came without indices gets GPUs that nobody else holds then, as far as there are any."""

    def taken(gpu: int) -> int:
        others = per_gpu.get(gpu, ())
        return sum(max(0, min(one.end, other.end) - max(one.start, other.start)) for other in others)

    return sorted(range(whole), key=lambda gpu: (taken(gpu), gpu))[: one.unplaced]


def _there(capacity: Sequence[tuple[int, int]], gpu: int, start: int, end: int) -> tuple[tuple[int, int], ...]:
    return tuple((low, high) for low, high, gpus in _steps(capacity, start, end) if gpus > gpu)


def _steps(capacity: Sequence[tuple[int, int]], start: int, end: int) -> Iterator[tuple[int, int, int]]:
    steps = sorted(capacity)
    for (at, gpus), until in zip(steps, [*(at for at, _ in steps[1:]), end], strict=False):
        if max(at, start) < min(until, end):
            yield max(at, start), min(until, end), gpus


def _least_wanted(waits: Iterable[Wait], model: str, start: int, end: int) -> Life | None:
    """How few free GPUs of one node would serve somebody who waits; as the `cause` of a spell."""
    mine = [one for one in waits if one.gpus_per_node > 0 and one.model in ("", model)]
    if not mine:
        return None
    nobody = Spell(start, end, Bucket.FREE, "")
    layers = (
        Layer(w.start, w.end, (w.gpus_per_node,), Spell(w.start, w.end, Bucket.FRAGMENTED, str(w.gpus_per_node)))
        for w in mine
    )
    parts = list(paint(layers, nobody, start, end))
    return Life([part[0] for part in parts], parts)


def _free(node: str, changes: Mapping[int, int], wanted: Life | None) -> Iterator[Piece]:
    moments = sorted(changes)
    gpus = 0
    for low, high in pairwise(moments):
        gpus += changes[low]
        if not gpus:
            continue
        if wanted is None:
            yield Piece(low, high, gpus, Bucket.FREE, node)
            continue
        for a, b, says in wanted.within(low, high):
            yield Piece(a, b, gpus, _why_free(gpus, says), node)


def _why_free(gpus: int, wanted: Spell) -> Bucket:
    if wanted.bucket == Bucket.FREE:
        return Bucket.FREE
    return Bucket.RESERVED_IDLE if gpus >= int(wanted.cause) else Bucket.FRAGMENTED


Key = TypeVar("Key")


def totals(found: Iterable[Piece], key: Callable[[Piece], Key]) -> dict[Key, Counter[Bucket]]:
    """GPU-microseconds by whatever the key says, and by bucket."""
    sums: dict[Key, Counter[Bucket]] = defaultdict(Counter)
    for piece in found:
        sums[key(piece)][piece.bucket] += piece.gpu_us
    return dict(sums)


def capacity_us(machines: Iterable[Machine], start: int, end: int) -> int:
    """GPUs x time, from the capacity alone: what the buckets must sum to."""
    steps = (step for machine in machines for step in _steps(machine.capacity, start, end))
    return sum((high - low) * gpus for low, high, gpus in steps)


def split(found: Iterable[Piece], at: Sequence[int]) -> Iterator[Piece]:
    """The same pieces, none of which crosses one of these moments: the midnights of a table by day."""
    for piece in found:
        low = piece.start
        for moment in at[bisect_right(at, piece.start) :]:
            if moment >= piece.end:
                break
            yield piece._replace(start=low, end=moment)
            low = moment
        yield piece._replace(start=low)
