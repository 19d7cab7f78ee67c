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
ATTEMPT_BUCKET_ORDER = (
    Bucket.HUNG,
    Bucket.CHECKPOINT_STALL,
    Bucket.START_UP,
    Bucket.RECOVERY,
    Bucket.IDLE,
    Bucket.LOST_WORK,
    Bucket.SLOW,
    Bucket.PRODUCTIVE,
)
HELD_BUCKETS = frozenset(ATTEMPT_BUCKET_ORDER)
BUCKET_RANK = {bucket: rank for rank, bucket in enumerate(ATTEMPT_BUCKET_ORDER)}


class BucketInterval(NamedTuple):
    """From `start` to before `end`, in microseconds since 1970."""

    start: int
    end: int
    bucket: Bucket
    cause: str = ""


class GpuAllocation(NamedTuple):
    """An attempt on GPUs of one node. Where the indices are not known, how many."""

    attempt: int
    start: int
    end: int
    gpus: tuple[int, ...] = ()
    unplaced_gpus: int = 0


class WaitInterval(NamedTuple):
    """A job that may start as far as it is concerned."""

    start: int
    end: int
    gpus_per_node: int
    model: str = ""  # empty: any


@dataclass(frozen=True, kw_only=True)
class NodeHistory:
    """A node. `capacity` is how many GPUs it had from when on; before the first entry it was not there."""

    name: str
    model: str = ""
    capacity: Sequence[tuple[int, int]] = ()
    spells: Sequence[BucketInterval] = ()  # down, drained
    holdings: Sequence[GpuAllocation] = ()


@dataclass(frozen=True, kw_only=True)
class LedgerInput:
    machines: Sequence[NodeHistory]
    lives: Mapping[int, Sequence[BucketInterval]] = field(
        default_factory=dict
    )  # of an attempt; `worked.life` writes them
    waits: Sequence[WaitInterval] = ()


class LedgerEntry(NamedTuple):
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


LayerValue = TypeVar("LayerValue")


class TimelineLayer(NamedTuple, Generic[LayerValue]):
    start: int
    end: int
    rank: tuple[int, ...]  # the lowest is on top
    says: LayerValue


def flatten_layers(
    layers: Iterable[TimelineLayer[LayerValue]], ground: LayerValue, start: int, end: int
) -> Iterator[tuple[int, int, LayerValue]]:
    """What is on top at each moment of a window; the ground where nothing lies. Neighbours never overlap."""
    within = (layer for layer in layers if max(layer.start, start) < min(layer.end, end))
    coming = sorted(within, key=lambda layer: layer.start)
    open_: list[tuple[tuple[int, ...], int, TimelineLayer[LayerValue]]] = []
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


def ledger_entries(facts: LedgerInput, start: int, end: int) -> Iterator[LedgerEntry]:
    """All of the window, divided. Pieces of a node come together; those of free GPUs last."""
    wanted = {
        machine.model: _smallest_waiting_request(facts.waits, machine.model, start, end) for machine in facts.machines
    }
    lives: dict[int, IntervalTimeline] = {}
    for machine in facts.machines:
        yield from _node_entries(machine, facts.lives, lives, wanted[machine.model], start, end)


class IntervalTimeline(NamedTuple):
    """An attempt's own time line, painted once and cut for every GPU that it holds."""

    starts: list[int]
    parts: list[tuple[int, int, BucketInterval]]

    def within(self, start: int, end: int) -> Iterator[tuple[int, int, BucketInterval]]:
        for part in self.parts[max(0, bisect_right(self.starts, start) - 1) :]:
            if part[0] >= end:
                return
            yield max(part[0], start), min(part[1], end), part[2]


def _attempt_timeline(spells: Sequence[BucketInterval], start: int, end: int) -> IntervalTimeline:
    ground = BucketInterval(start, end, Bucket.PRODUCTIVE)
    layers = (TimelineLayer(one.start, one.end, (BUCKET_RANK[one.bucket], one.start), one) for one in spells)
    parts = list(flatten_layers(layers, ground, start, end))
    return IntervalTimeline([part[0] for part in parts], parts)


NO_ALLOCATION = GpuAllocation(-1, 0, 0)


def _node_entries(
    machine: NodeHistory,
    spells: Mapping[int, Sequence[BucketInterval]],
    lives: dict[int, IntervalTimeline],
    wanted: IntervalTimeline | None,
    start: int,
    end: int,
) -> Iterator[LedgerEntry]:
    free: Counter[int] = Counter()  # how many more GPUs are free from then on
    for there, holdings, gpus in _gpu_lanes(machine, start, end):
        for since, until in there:
            for low, high, says in flatten_layers(_gpu_layers(machine, holdings), NO_ALLOCATION, since, until):
                if says is NO_ALLOCATION:
                    free[low] += gpus
                    free[high] -= gpus
                elif isinstance(says, BucketInterval):
                    yield LedgerEntry(low, high, gpus, says.bucket, machine.name, None, says.cause)
                else:
                    if says.attempt not in lives:
                        lives[says.attempt] = _attempt_timeline(spells.get(says.attempt, ()), start, end)
                    for a, b, part in lives[says.attempt].within(low, high):
                        yield LedgerEntry(a, b, gpus, part.bucket, machine.name, says.attempt, part.cause)
    yield from _free_entries(machine.name, free, wanted)


def _gpu_layers(
    machine: NodeHistory, holdings: Iterable[GpuAllocation]
) -> Iterator[TimelineLayer[BucketInterval | GpuAllocation]]:
    for spell in machine.spells:
        yield TimelineLayer(spell.start, spell.end, (0 if spell.bucket == Bucket.DOWN else 2, spell.start), spell)
    for one in holdings:
        yield TimelineLayer(one.start, one.end, (1, -one.start, -one.attempt), one)


def _gpu_lanes(
    machine: NodeHistory, start: int, end: int
) -> Iterator[tuple[tuple[tuple[int, int], ...], tuple[GpuAllocation, ...], int]]:
    """GPUs of one history: when they were there, who held them, how many they are."""
    per_gpu: dict[int, list[GpuAllocation]] = defaultdict(list)
    whole = max((gpus for _, gpus in machine.capacity), default=0)
    for one in sorted(machine.holdings, key=lambda one: (one.unplaced_gpus > 0, one.start)):
        if one.start < one.end:
            for gpu in one.gpus or _least_held_gpus(per_gpu, one, whole):
                per_gpu[gpu].append(one)
    lanes = Counter((_present_spans(machine.capacity, gpu, start, end), tuple(per_gpu[gpu])) for gpu in range(whole))
    for (there, holdings), gpus in lanes.items():
        yield there, holdings, gpus


def _least_held_gpus(per_gpu: Mapping[int, Sequence[GpuAllocation]], one: GpuAllocation, whole: int) -> Sequence[int]:
    """Whoever came without indices gets GPUs that nobody else holds then, as far as there are any."""

    def held_us(gpu: int) -> int:
        others = per_gpu.get(gpu, ())
        return sum(max(0, min(one.end, other.end) - max(one.start, other.start)) for other in others)

    return sorted(range(whole), key=lambda gpu: (held_us(gpu), gpu))[: one.unplaced_gpus]


def _present_spans(capacity: Sequence[tuple[int, int]], gpu: int, start: int, end: int) -> tuple[tuple[int, int], ...]:
    return tuple((low, high) for low, high, gpus in _capacity_steps(capacity, start, end) if gpus > gpu)


def _capacity_steps(capacity: Sequence[tuple[int, int]], start: int, end: int) -> Iterator[tuple[int, int, int]]:
    steps = sorted(capacity)
    for (at, gpus), until in zip(steps, [*(at for at, _ in steps[1:]), end], strict=False):
        if max(at, start) < min(until, end):
            yield max(at, start), min(until, end), gpus


def _smallest_waiting_request(
    waits: Iterable[WaitInterval], model: str, start: int, end: int
) -> IntervalTimeline | None:
    """How few free GPUs of one node would serve somebody who waits; as the `cause` of a spell."""
    mine = [one for one in waits if one.gpus_per_node > 0 and one.model in ("", model)]
    if not mine:
        return None
    nobody = BucketInterval(start, end, Bucket.FREE, "")
    layers = (
        TimelineLayer(
            w.start, w.end, (w.gpus_per_node,), BucketInterval(w.start, w.end, Bucket.FRAGMENTED, str(w.gpus_per_node))
        )
        for w in mine
    )
    parts = list(flatten_layers(layers, nobody, start, end))
    return IntervalTimeline([part[0] for part in parts], parts)


def _free_entries(node: str, changes: Mapping[int, int], wanted: IntervalTimeline | None) -> Iterator[LedgerEntry]:
    moments = sorted(changes)
    gpus = 0
    for low, high in pairwise(moments):
        gpus += changes[low]
        if not gpus:
            continue
        if wanted is None:
            yield LedgerEntry(low, high, gpus, Bucket.FREE, node)
            continue
        for a, b, says in wanted.within(low, high):
            yield LedgerEntry(a, b, gpus, _free_bucket(gpus, says), node)


def _free_bucket(gpus: int, wanted: BucketInterval) -> Bucket:
    if wanted.bucket == Bucket.FREE:
        return Bucket.FREE
    return Bucket.RESERVED_IDLE if gpus >= int(wanted.cause) else Bucket.FRAGMENTED


SumKey = TypeVar("SumKey")


def sum_by_key(found: Iterable[LedgerEntry], key: Callable[[LedgerEntry], SumKey]) -> dict[SumKey, Counter[Bucket]]:
    """GPU-microseconds by whatever the key says, and by bucket."""
    sums: dict[SumKey, Counter[Bucket]] = defaultdict(Counter)
    for piece in found:
        sums[key(piece)][piece.bucket] += piece.gpu_us
    return dict(sums)


def capacity_us(machines: Iterable[NodeHistory], start: int, end: int) -> int:
    """GPUs x time, from the capacity alone: what the buckets must sum to."""
    steps = (step for machine in machines for step in _capacity_steps(machine.capacity, start, end))
    return sum((high - low) * gpus for low, high, gpus in steps)


def split_entries(found: Iterable[LedgerEntry], at: Sequence[int]) -> Iterator[LedgerEntry]:
    """The same pieces, none of which crosses one of these moments: the midnights of a table by day."""
    for piece in found:
        low = piece.start
        for moment in at[bisect_right(at, piece.start) :]:
            if moment >= piece.end:
                break
            yield piece._replace(start=low, end=moment)
            low = moment
        yield piece._replace(start=low)
