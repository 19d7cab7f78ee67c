"""What a free GPU evaluates next: slices cut as they are taken, from what is known by then.

Nothing is assigned beforehand. A GPU that is free takes a slice of the dataset with the most work left, and slices
shrink as the whole does (guided self-scheduling: a share of what is left over twice the GPUs), so the last ones are
short and all GPUs end together, however wrong the priors were. Five things change that order:

- A dataset that was never measured is probed before everything else: a few samples of it tell what the rest takes.
  Until they have, slices of it are the shortest there are. So a prior that is wrong by twenty costs minutes at the
  beginning, and not hours at the end.
- Datasets with a long metric are first: their CPU work then runs beside what the GPUs have still to do. Their slices
  are short enough for the longest metric not to outlast the rest.
- A node goes on with the checkpoint that it has staged, until nothing is left of it. Then it stages the first that
  nobody has begun, or helps the one with the most work left for each node on it.
- Of a checkpoint whose datasets may none of them be cut, nothing fits the gaps at the end: their order is searched for
  (`whole`).
- What a slice took is remembered for its dataset and checkpoint, and the next is cut by that; it also stands in for
  the dataset of other checkpoints, where nothing was measured.

A take costs O(log datasets); a switch to another checkpoint O(checkpoints begun).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from scheduling.evaluation import uncut_order
from scheduling.evaluation.work import EvaluationSite, SliceCost

PROBE_SLICE_S = (
    10.0  # as believed: long enough to be a measure if it takes a twentieth, short enough if it takes 20 times
)
MIN_PARTS_FOR_PROBE = 8  # parts: of fewer none is spent on a few samples, the first is their measure
MIN_SLICE_S = 30.0  # opening a dataset takes about a second: 3 % of the shortest slice
LONG_METRIC_RATIO = 0.25  # of its time on the GPU
UNCUT_REST_FACTOR = 1.3  # a rest of up to this many slices is not cut again


@dataclass(frozen=True, kw_only=True)
class DatasetTask:
    """One dataset of one checkpoint, and what it is expected to cost as a whole."""

    checkpoint: int
    dataset: int
    samples: int
    prior: SliceCost
    parts: int = 1_000_000  # the most it may be cut in
    offset: int = 0  # its first sample
    is_measured: bool = True  # otherwise the prior is arithmetic, or hearsay
    begun: bool = False  # some of it is out already


@dataclass(frozen=True, kw_only=True)
class DatasetSlice:
    task: int
    start: int
    samples: int
    probes: bool = False


@dataclass(kw_only=True)
class _RemainingTask:
    """What is left of a task."""

    task: DatasetTask
    done: int = 0  # samples given out
    cuts: int = 0
    entry: int = 0  # the newest of its entries in the heap; the others are void
    factor: float = 1.0  # how much longer than its prior it takes
    known: bool = False  # it was measured, or is as a dataset that was
    is_probed: bool = False  # somebody is finding out
    turn: int | None = None  # its place in an order that was searched for

    @property
    def share(self) -> float:
        return 1 - self.done / self.task.samples

    @property
    def remaining_s(self) -> float:
        return self.share * self.task.prior.gpu_s * self.factor

    @property
    def tail(self) -> float:
        """Seconds of metric for each second on the GPU."""
        return self.task.prior.score / max(self.task.prior.gpu_s, 1e-9)

    @property
    def needs_probe(self) -> bool:
        return not (self.known or self.is_probed)

    def place(self) -> tuple[bool, bool, float]:
        if self.turn is not None:
            return not self.needs_probe, False, self.turn
        return not self.needs_probe, self.tail < LONG_METRIC_RATIO, -self.remaining_s


@dataclass(kw_only=True)
class _CheckpointQueue:
    """A checkpoint: its tasks in order, and who works on it."""

    heap: list[tuple[bool, bool, float, int, int]] = field(default_factory=list)
    tasks: list[int] = field(default_factory=list)
    open: int = 0  # tasks of which something is left
    left_s: float = 0.0
    nodes: set[int] = field(default_factory=set)


class WorkQueue:
    """The work of a campaign that nobody has taken yet."""

    def __init__(self, tasks: Sequence[DatasetTask], site: EvaluationSite) -> None:
        self._gpus = site.gpus
        self._per_node = site.gpus_per_node
        self._rests = [_RemainingTask(task=task, known=task.is_measured, is_probed=task.begun) for task in tasks]
        self._factors: dict[int, float] = {}  # of datasets that were measured meanwhile
        self._probed = {task.dataset for task in tasks if task.begun}
        self._checkpoints: dict[int, _CheckpointQueue] = {}
        for number, task in enumerate(tasks):
            begun = self._checkpoints.setdefault(task.checkpoint, _CheckpointQueue())
            begun.tasks.append(number)
            begun.open += 1
            begun.left_s += task.prior.gpu_s
        self._order_uncut_tasks()
        for begun in self._checkpoints.values():
            for number in begun.tasks:
                self._push_task(begun, number)
        self._left_s = sum(begun.left_s for begun in self._checkpoints.values())
        self._whole_s = self._left_s / self._gpus
        self._unbegun = list(reversed(self._checkpoints))
        self._at: dict[int, int] = {}

    @property
    def remaining_s(self) -> float:
        return max(self._left_s, 0.0)

    def hold(self, node: int, checkpoint: int) -> bool:
        """The node has this checkpoint already; False if nothing is left of it."""
        if not self._checkpoints[checkpoint].open:
            return False
        self._at[node] = checkpoint
        self._checkpoints[checkpoint].nodes.add(node)
        self._unbegun = [name for name in self._unbegun if name != checkpoint]
        return True

    def checkpoint_for(self, node: int) -> int | None:
        """The checkpoint that this node should have staged now; None when nothing is left."""
        held = self._at.get(node)
        if held is not None and self._checkpoints[held].open:
            return held
        chosen = self._next_checkpoint()
        if held is not None:
            self._checkpoints[held].nodes.discard(node)
        if chosen is None:
            self._at.pop(node, None)
            return None
        self._at[node] = chosen
        self._checkpoints[chosen].nodes.add(node)
        return chosen

    def take(self, checkpoint: int) -> DatasetSlice | None:
        begun = self._checkpoints[checkpoint]
        if not begun.open:
            return None
        number = self._pop_first_task(begun)
        rest = self._rests[number]
        before, probes = rest.remaining_s, rest.needs_probe
        samples = self._probe_samples(rest) if probes else self._slice_samples(rest, begun)
        taken = DatasetSlice(task=number, start=rest.task.offset + rest.done, samples=samples, probes=probes)
        rest.done += taken.samples
        rest.cuts += 1
        if rest.done < rest.task.samples:
            self._push_task(begun, number)
        else:
            begun.open -= 1
        self._subtract_remaining(begun, before - rest.remaining_s)
        return taken

    def next_needs_probe(self, checkpoint: int) -> bool:
        """Whether what is taken next is there to be measured."""
        begun = self._checkpoints[checkpoint]
        if not begun.open:
            return False
        number = self._pop_first_task(begun)
        self._push_task(begun, number)
        return self._rests[number].needs_probe

    def record_cost(self, taken: DatasetSlice, took: SliceCost) -> None:
        """What a slice really took; it counts for what is left of its task."""
        rest = self._rests[taken.task]
        expected = rest.task.prior.gpu_s * taken.samples / rest.task.samples
        before = rest.remaining_s
        rest.factor = took.gpu_s / max(expected, 1e-9)
        rest.known = True
        self._factors[rest.task.dataset] = rest.factor
        begun = self._checkpoints[rest.task.checkpoint]
        self._subtract_remaining(begun, before - rest.remaining_s)
        if rest.done < rest.task.samples:
            self._push_task(begun, taken.task)

    def requeue_slice(self, lost: DatasetSlice) -> None:
        """A slice that came to nothing becomes a task of its own, in one piece."""
        task = self._rests[lost.task].task
        share = lost.samples / task.samples
        again = DatasetTask(
            checkpoint=task.checkpoint,
            dataset=task.dataset,
            samples=lost.samples,
            prior=task.prior.times(share),
            parts=1,
            offset=lost.start,
        )
        self._rests.append(_RemainingTask(task=again, factor=self._rests[lost.task].factor, known=True))
        begun = self._checkpoints[task.checkpoint]
        begun.open += 1
        self._push_task(begun, len(self._rests) - 1)
        self._subtract_remaining(begun, -self._rests[-1].remaining_s)

    def _order_uncut_tasks(self) -> None:
        """Checkpoints share the nodes; where there are more of them than nodes, each gets about one."""
        gpus = max(self._per_node, self._gpus // max(len(self._checkpoints), 1))
        for begun in self._checkpoints.values():
            tasks = [self._rests[number].task for number in begun.tasks]
            if all(task.parts < 2 for task in tasks):
                work = tuple((task.prior.gpu_s, task.prior.score) for task in tasks)
                for turn, place in enumerate(uncut_order.best_order(work, gpus)):
                    self._rests[begun.tasks[place]].turn = turn

    def _push_task(self, begun: _CheckpointQueue, number: int) -> None:
        rest = self._rests[number]
        rest.entry += 1
        heappush(begun.heap, (*rest.place(), number, rest.entry))

    def _pop_first_task(self, begun: _CheckpointQueue) -> int:
        while True:
            *_, number, entry = heappop(begun.heap)
            rest = self._rests[number]
            if entry != rest.entry:
                continue
            if not self._update_estimate(rest, begun):
                return number
            self._push_task(begun, number)

    def _update_estimate(self, rest: _RemainingTask, begun: _CheckpointQueue) -> bool:
        """What was found out of its dataset since it was entered, at another checkpoint."""
        if rest.known:
            return False
        if rest.task.dataset in self._factors:
            before = rest.remaining_s
            rest.factor, rest.known = self._factors[rest.task.dataset], True
            self._subtract_remaining(begun, before - rest.remaining_s)
            return True
        if rest.task.dataset in self._probed and not rest.is_probed:
            rest.is_probed = True
            return True
        return False

    def _probe_samples(self, rest: _RemainingTask) -> int:
        rest.is_probed = True
        self._probed.add(rest.task.dataset)
        if rest.task.parts < MIN_PARTS_FOR_PROBE:
            return _min_samples(rest)
        return self._samples_for(rest, PROBE_SLICE_S / (1 + rest.tail))

    def _samples_for(self, rest: _RemainingTask, seconds: float) -> int:
        remaining = rest.task.samples - rest.done
        return max(1, min(remaining, int(remaining * seconds / max(rest.remaining_s, 1e-9))))

    def _subtract_remaining(self, begun: _CheckpointQueue, by_s: float) -> None:
        begun.left_s -= by_s
        self._left_s -= by_s

    def _next_checkpoint(self) -> int | None:
        while self._unbegun:
            first = self._unbegun.pop()
            if self._checkpoints[first].open:
                return first
        open_ones = [
            (begun.left_s / (len(begun.nodes) + 1), -name) for name, begun in self._checkpoints.items() if begun.open
        ]
        return -max(open_ones)[1] if open_ones else None

    def _slice_samples(self, rest: _RemainingTask, begun: _CheckpointQueue) -> int:
        """How many samples the next slice has."""
        remaining = rest.task.samples - rest.done
        workers = max(len(begun.nodes), 1) * self._per_node if self._unbegun else self._gpus
        share_s = (begun.left_s if self._unbegun else self._left_s) / (2 * workers)
        slice_s = max(MIN_SLICE_S, share_s)
        if rest.tail >= LONG_METRIC_RATIO:
            slice_s = min(slice_s, max(MIN_SLICE_S, self._whole_s / 4 / rest.tail))
        if not rest.known:
            return max(_min_samples(rest), self._samples_for(rest, MIN_SLICE_S / (1 + rest.tail)))
        return (
            remaining
            if rest.remaining_s <= UNCUT_REST_FACTOR * slice_s
            else max(_min_samples(rest), self._samples_for(rest, slice_s))
        )


def _min_samples(rest: _RemainingTask) -> int:
    """An even share for each part that it may still be cut into: whoever gets the last must not get all the others'."""
    return math.ceil((rest.task.samples - rest.done) / max(rest.task.parts - rest.cuts, 1))
