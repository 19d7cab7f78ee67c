"""Assign every GPU-second of a cluster to exactly one bucket. Pure.

The input intervals may overlap, contradict each other or end before they begin, because clocks and reports do.
`ledger_entries` decides each moment once, in the order below, so the buckets add up to capacity x time to the
microsecond: for any window, across clock changes (times are microseconds since 1970, UTC), for nodes that get more GPUs
and for every version of these rules. Windows are additive: two halves equal the whole.

Precedence, per GPU:
  1  down            the node does not respond: nothing runs there, whatever the rows say
  2  an attempt      the newest holder of the GPU; within an attempt, `ATTEMPT_BUCKET_ORDER`: hung, checkpoint stall,
                     start-up or recovery, lost work, slow; the remainder is productive
  3  drained         test, repair or maintenance; jobs still running on a draining node count as their attempt
     asleep          powered down, or on the way there or back; a job that waits for the boot counts as its attempt
  4  free            no job waited · reserved idle: a job waited that fits on this node, so the order kept it free ·
                     fragmented: jobs waited, and the free GPUs of this node were too few for each of them

A share of a GPU counts its thousandths. What is left of a shared GPU is fragmented while a job waits, because no job
that needs a whole GPU can use it, and free otherwise. A MIG slice counts the thousandths of its profile, held or free.

The cost is n log n in the intervals of a node, once per set of GPUs with the same history (usually one or two per
node).
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

from jobs.core.gpu_models import accepts_model
from jobs.core.gpu_shares import WHOLE_GPU

VERSION = "3"  # version of these rules, stored with the figures


class Bucket(StrEnum):
    """Where GPU time went."""

    PRODUCTIVE = "productive"
    START_UP = "start_up"
    CHECKPOINT_STALL = "checkpoint_stall"
    LOST_WORK = "lost_work"
    RECOVERY = "recovery"
    HUNG = "hung"
    SLOW = "slow"
    RESERVED_IDLE = "reserved_idle"
    FRAGMENTED = "fragmented"
    FREE = "free"  # and no job waited
    ASLEEP = "asleep"
    DRAINED = "drained"
    DOWN = "down"


# The first bucket that applies to a moment takes precedence
ATTEMPT_BUCKET_ORDER = (
    Bucket.HUNG,
    Bucket.CHECKPOINT_STALL,
    Bucket.START_UP,
    Bucket.RECOVERY,
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
    """An attempt on GPUs of one node. `unplaced_gpus` is their number if the indices are unknown; `milli` how many
    thousandths of each it holds; of a MIG slice, those of its profile.
    """

    attempt: int
    start: int
    end: int
    gpus: tuple[int, ...] = ()
    unplaced_gpus: int = 0
    milli: int = WHOLE_GPU


class SharedGpu(NamedTuple):
    """A GPU of which these attempts hold shares."""

    holders: tuple[GpuAllocation, ...]

    def parts(self, whole: int) -> Iterator[tuple[GpuAllocation | None, int, int]]:
        """The holders and what is left (None), as ranges of its thousandths. Contradictory rows get what is left."""
        begin = 0
        for holder in self.holders:
            end = min(begin + holder.milli, whole)
            yield holder, begin, end
            begin = end
        yield None, begin, whole


class WaitInterval(NamedTuple):
    """A period in which a job was ready to start."""

    start: int
    end: int
    gpus_per_node: int
    model: str = ""  # empty: any; several: `jobs.core.gpu_models`


@dataclass(frozen=True, kw_only=True)
class NodeHistory:
    """A node. `capacity` lists (time, GPUs from then on); before the first entry the node did not exist."""

    name: str
    model: str = ""
    capacity: Sequence[tuple[int, int]] = ()
    slices: Mapping[int, int] = field(default_factory=dict)  # index → thousandths of those that are MIG slices
    spells: Sequence[BucketInterval] = ()  # down, drained, asleep
    holdings: Sequence[GpuAllocation] = ()


@dataclass(frozen=True, kw_only=True)
class LedgerInput:
    """Everything that the ledger of a cluster is computed from."""

    machines: Sequence[NodeHistory]
    lives: Mapping[int, Sequence[BucketInterval]] = field(
        default_factory=dict
    )  # by attempt; see `attempt_intervals.bucket_intervals`
    waits: Sequence[WaitInterval] = ()


class LedgerEntry(NamedTuple):
    """The GPU time of a node that one attempt (None: no attempt) spent in one bucket, in one window of the ledger."""

    window: int
    gpu_us: int
    bucket: Bucket
    node: str
    attempt: int | None = None
    cause: str = ""


def share_us(start: int, end: int, first: int, last: int) -> int:
    """The GPU-microseconds of the thousandths from `first` to before `last`, in a period.

    Rounded so that adjacent periods and adjacent ranges add up exactly.
    """
    return (end * last // WHOLE_GPU - end * first // WHOLE_GPU) - (
        start * last // WHOLE_GPU - start * first // WHOLE_GPU
    )


LayerValue = TypeVar("LayerValue")


class TimelineLayer(NamedTuple, Generic[LayerValue]):
    """A value that applies from `start` to `end` unless a layer of lower rank covers it."""

    start: int
    end: int
    rank: tuple[int, ...]  # the lowest rank is on top
    says: LayerValue


def flatten_layers(
    layers: Iterable[TimelineLayer[LayerValue]], ground: LayerValue, start: int, end: int
) -> Iterator[tuple[int, int, LayerValue]]:
    """The top layer at each moment of a window, or `ground` where there is none. Periods never overlap."""
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


def ledger_entries(data: LedgerInput, edges: Sequence[int]) -> Iterator[LedgerEntry]:
    """All entries of the windows between consecutive edges. Entries of a node are consecutive."""
    start, end = edges[0], edges[-1]
    models = {node.model for node in data.machines}
    smallest_waiting = {model: _smallest_waiting_request(data.waits, model, start, end) for model in models}
    timelines: dict[int, AttemptTimeline] = {}
    for node in data.machines:
        yield from _node_entries(node, data.lives, timelines, smallest_waiting[node.model], edges)


def windows_within(edges: Sequence[int], start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The windows that overlap a period, as (number, start, end), cut to it."""
    number = max(0, bisect_right(edges, start) - 1)
    while number < len(edges) - 1 and edges[number] < end:
        yield number, max(start, edges[number]), min(end, edges[number + 1])
        number += 1


class IntervalTimeline(NamedTuple):
    """A flattened timeline, computed once and cut many times."""

    starts: list[int]
    parts: list[tuple[int, int, BucketInterval]]

    def within(self, start: int, end: int) -> Iterator[tuple[int, int, BucketInterval]]:
        """The parts that overlap the window, cut to it."""
        # By index: a slice would copy the rest of the timeline for each of thousands of calls
        for index in range(max(0, bisect_right(self.starts, start) - 1), len(self.parts)):
            part = self.parts[index]
            if part[0] >= end:
                return
            yield max(part[0], start), min(part[1], end), part[2]


class AttemptTimeline(NamedTuple):
    """The timeline of an attempt with its sums. The nodes of a gang are held at the same time, so most are cached."""

    timeline: IntervalTimeline
    cached: dict[tuple[int, int], list[tuple[Bucket, str, int]]]

    def sums_within(self, start: int, end: int) -> list[tuple[Bucket, str, int]]:
        """The time by bucket and cause from `start` to `end`."""
        if (sums := self.cached.get((start, end))) is None:
            by_bucket: Counter[tuple[Bucket, str]] = Counter()
            for low, high, interval in self.timeline.within(start, end):
                by_bucket[interval.bucket, interval.cause] += high - low
            sums = [(bucket, cause, spent) for (bucket, cause), spent in by_bucket.items()]
            self.cached[start, end] = sums
        return sums


def _attempt_timeline(intervals: Sequence[BucketInterval], start: int, end: int) -> AttemptTimeline:
    ground = BucketInterval(start, end, Bucket.PRODUCTIVE)
    layers = (
        TimelineLayer(interval.start, interval.end, (BUCKET_RANK[interval.bucket], interval.start), interval)
        for interval in intervals
    )
    parts = list(flatten_layers(layers, ground, start, end))
    return AttemptTimeline(IntervalTimeline([part[0] for part in parts], parts), {})


NO_ALLOCATION = GpuAllocation(-1, 0, 0)


EntryKey = tuple[int, Bucket, int | None, str]  # window, bucket, attempt, cause


def _node_entries(
    node: NodeHistory,
    intervals: Mapping[int, Sequence[BucketInterval]],
    timelines: dict[int, AttemptTimeline],
    smallest_waiting: IntervalTimeline | None,
    edges: Sequence[int],
) -> Iterator[LedgerEntry]:
    start, end = edges[0], edges[-1]
    sums: Counter[EntryKey] = Counter()
    free: Counter[int] = Counter()  # time -> change in the number of free GPUs
    for low, high, layer, gpus, milli in _lane_parts(node, start, end):
        if layer is NO_ALLOCATION and milli == WHOLE_GPU:
            free[low] += gpus
            free[high] -= gpus
            continue
        for window, since, until in windows_within(edges, low, high):
            if layer is NO_ALLOCATION:
                sums[window, Bucket.FREE, None, ""] += share_us(since, until, 0, milli) * gpus
                continue
            if isinstance(layer, BucketInterval):
                sums[window, layer.bucket, None, layer.cause] += share_us(since, until, 0, milli) * gpus
                continue
            if isinstance(layer, SharedGpu):
                for holder in layer.holders:
                    if holder.attempt not in timelines:
                        timelines[holder.attempt] = _attempt_timeline(intervals.get(holder.attempt, ()), start, end)
                _add_shared_gpu(sums, layer, timelines, smallest_waiting, (window, since, until), milli)
                continue
            if layer.attempt not in timelines:
                timelines[layer.attempt] = _attempt_timeline(intervals.get(layer.attempt, ()), start, end)
            if milli < WHOLE_GPU:
                for part_start, part_end, interval in timelines[layer.attempt].timeline.within(since, until):
                    key = window, interval.bucket, layer.attempt, interval.cause
                    sums[key] += share_us(part_start, part_end, 0, milli) * gpus
                continue
            for bucket, cause, spent in timelines[layer.attempt].sums_within(since, until):
                sums[window, bucket, layer.attempt, cause] += spent * gpus
    _add_free_time(sums, free, smallest_waiting, edges)
    for (window, bucket, attempt, cause), gpu_us in sums.items():
        yield LedgerEntry(window, gpu_us, bucket, node.name, attempt, cause)


def _add_shared_gpu(
    sums: Counter[EntryKey],
    gpu: SharedGpu,
    timelines: Mapping[int, AttemptTimeline],
    smallest_waiting: IntervalTimeline | None,
    period: tuple[int, int, int],
    milli: int,
) -> None:
    window, since, until = period
    for holder, first, last in gpu.parts(milli):
        if holder:
            for low, high, interval in timelines[holder.attempt].timeline.within(since, until):
                key = window, interval.bucket, holder.attempt, interval.cause
                sums[key] += share_us(low, high, first, last)
        elif smallest_waiting is None:
            sums[window, Bucket.FREE, None, ""] += share_us(since, until, first, last)
        else:
            for low, high, waiting in smallest_waiting.within(since, until):
                sums[window, waiting.bucket, None, ""] += share_us(low, high, first, last)


NodeLayer = BucketInterval | GpuAllocation | SharedGpu


def _lane_parts(node: NodeHistory, start: int, end: int) -> Iterator[tuple[int, int, NodeLayer, int, int]]:
    """What covered each group of GPUs with equal history: start, end, the covering layer, number of GPUs, thousandths
    of each."""
    for spans, holdings, gpus, milli in _gpu_lanes(node, start, end):
        for since, until in spans:
            for low, high, layer in flatten_layers(_gpu_layers(node, holdings), NO_ALLOCATION, since, until):
                yield low, high, layer, gpus, milli


def _gpu_layers(node: NodeHistory, holdings: Sequence[GpuAllocation]) -> Iterator[TimelineLayer[NodeLayer]]:
    for interval in node.spells:
        yield TimelineLayer(
            interval.start, interval.end, (0 if interval.bucket == Bucket.DOWN else 2, interval.start), interval
        )
    for holding in holdings:
        if holding.milli == WHOLE_GPU:
            yield TimelineLayer(holding.start, holding.end, (1, -holding.start, -holding.attempt), holding)
    yield from _share_layers([holding for holding in holdings if holding.milli < WHOLE_GPU])


def _share_layers(shares: Sequence[GpuAllocation]) -> Iterator[TimelineLayer[NodeLayer]]:
    """The shares of one GPU as layers, from each change of its holders to the next."""
    numbered = list(enumerate(shares))  # rows may be equal
    changes = sorted([(one.start, 1, n) for n, one in numbered] + [(one.end, 0, n) for n, one in numbered])
    holders: dict[int, GpuAllocation] = {}
    for (at, starts, number), (until, _, _) in pairwise(changes):
        if starts:
            holders[number] = shares[number]
        else:
            del holders[number]
        if until > at and holders:
            newest = max(holders.values(), key=lambda one: (one.start, one.attempt))
            yield TimelineLayer(at, until, (1, -newest.start, -newest.attempt), SharedGpu(tuple(holders.values())))


def _gpu_lanes(
    node: NodeHistory, start: int, end: int
) -> Iterator[tuple[tuple[tuple[int, int], ...], tuple[GpuAllocation, ...], int, int]]:
    """Groups of GPUs with equal history: when they existed, what held them, their number, and thousandths of each."""
    per_gpu: dict[int, list[GpuAllocation]] = defaultdict(list)
    whole = max((gpus for _, gpus in node.capacity), default=0)
    for holding in sorted(node.holdings, key=lambda holding: (holding.unplaced_gpus > 0, holding.start)):
        if holding.start < holding.end:
            for gpu in holding.gpus or _least_held_gpus(per_gpu, holding, whole):
                per_gpu[gpu].append(holding)
    lanes = Counter(
        (_present_spans(node.capacity, gpu, start, end), tuple(per_gpu[gpu]), node.slices.get(gpu, WHOLE_GPU))
        for gpu in range(whole)
    )
    for (spans, holdings, milli), gpus in lanes.items():
        yield spans, holdings, gpus, milli


def _least_held_gpus(
    per_gpu: Mapping[int, Sequence[GpuAllocation]], allocation: GpuAllocation, whole: int
) -> Sequence[int]:
    """GPUs for an allocation without indices: those least held by others in that time."""

    def held_us(gpu: int) -> int:
        others = per_gpu.get(gpu, ())
        return sum(max(0, min(allocation.end, other.end) - max(allocation.start, other.start)) for other in others)

    return sorted(range(whole), key=lambda gpu: (held_us(gpu), gpu))[: allocation.unplaced_gpus]


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
    """The fewest free GPUs on one node that a waiting job could use, over time, stored as the `cause` of the
    intervals.
    """
    matching = [wait for wait in waits if wait.gpus_per_node > 0 and accepts_model(wait.model, model)]
    if not matching:
        return None
    ground = BucketInterval(start, end, Bucket.FREE, "")
    layers = (
        TimelineLayer(
            wait_interval.start,
            wait_interval.end,
            (wait_interval.gpus_per_node,),
            BucketInterval(wait_interval.start, wait_interval.end, Bucket.FRAGMENTED, str(wait_interval.gpus_per_node)),
        )
        for wait_interval in matching
    )
    parts = _merge_equal_parts(flatten_layers(layers, ground, start, end))
    return IntervalTimeline([part[0] for part in parts], parts)


def _merge_equal_parts(parts: Iterable[tuple[int, int, BucketInterval]]) -> list[tuple[int, int, BucketInterval]]:
    """Merge neighbors that say the same. Many waiting jobs request the same number of GPUs."""
    merged: list[tuple[int, int, BucketInterval]] = []
    for begin, end, interval in parts:
        before = merged[-1] if merged else None
        if before and before[1] == begin and before[2][2:] == interval[2:]:
            merged[-1] = (before[0], end, before[2])
        else:
            merged.append((begin, end, interval))
    return merged


def _add_free_time(
    sums: Counter[EntryKey], changes: Mapping[int, int], smallest_waiting: IntervalTimeline | None, edges: Sequence[int]
) -> None:
    gpus = 0
    for low, high in pairwise(sorted(changes)):
        gpus += changes[low]
        if not gpus:
            continue
        for window, since, until in windows_within(edges, low, high):
            if smallest_waiting is None:
                sums[window, Bucket.FREE, None, ""] += (until - since) * gpus
                continue
            for part_start, part_end, waiting in smallest_waiting.within(since, until):
                sums[window, _free_bucket(gpus, waiting), None, ""] += (part_end - part_start) * gpus


def _free_bucket(gpus: int, smallest_waiting: BucketInterval) -> Bucket:
    """The bucket of free GPUs, depending on the smallest waiting request."""
    if smallest_waiting.bucket == Bucket.FREE:
        return Bucket.FREE
    return Bucket.RESERVED_IDLE if gpus >= int(smallest_waiting.cause) else Bucket.FRAGMENTED


SumKey = TypeVar("SumKey")


def sum_by_key(entries: Iterable[LedgerEntry], key: Callable[[LedgerEntry], SumKey]) -> dict[SumKey, Counter[Bucket]]:
    """GPU-microseconds by key and bucket."""
    sums: dict[SumKey, Counter[Bucket]] = defaultdict(Counter)
    for entry in entries:
        sums[key(entry)][entry.bucket] += entry.gpu_us
    return dict(sums)


def capacity_us(nodes: Iterable[NodeHistory], start: int, end: int) -> int:
    """GPUs x time from the capacity alone: the total that the buckets must add up to."""
    return sum(_node_capacity_us(node, start, end) for node in nodes)


def _node_capacity_us(node: NodeHistory, start: int, end: int) -> int:
    total = 0
    for low, high, gpus in _capacity_steps(node.capacity, start, end):
        slices = [milli for gpu, milli in node.slices.items() if gpu < gpus]
        total += (high - low) * (gpus - len(slices)) + sum(share_us(low, high, 0, milli) for milli in slices)
    return total
