"""Work queue of an evaluation: slices for free GPUs, cut when they are taken, from the measurements so far.

Nothing is assigned in advance. A free GPU takes a slice of the dataset with the most remaining work. Slices shrink with
the remaining work (guided self-scheduling: the remaining work divided by twice the number of GPUs), so the last slices
are short and all GPUs end at about the same time, even if the estimates are wrong. Five rules change this order:

- An unmeasured dataset is probed first: a few samples show how long the rest takes. Until then its slices have the
  minimum length. So an estimate that is wrong by a factor of 20 costs minutes at the beginning, not hours at the end.
- Datasets with a long metric come first, so that their CPU work runs in parallel with the remaining GPU work. Their
  slices are short enough that the longest metric does not end last.
- A node continues with the checkpoint that it has a copy of until no work is left. Then it takes the first checkpoint
  that no node has started, or the one with the most remaining work per node.
- If no dataset of a checkpoint may be split, no slice fits the gaps at the end, so their order is optimized
  (`uncut_order`).
- The measured time of a slice determines the next slices of its dataset and checkpoint, and those of the same dataset
  for other checkpoints that were not measured.

A take costs O(log datasets); a switch to another checkpoint costs O(started checkpoints).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from scheduling.evaluation.rules import uncut_order
from scheduling.evaluation.rules.work import EvaluationSite, SliceCost

PROBE_SLICE_S = (
    10.0  # by the estimate: long enough to measure if it takes a twentieth, short enough if it takes 20 times as long
)
MIN_PARTS_FOR_PROBE = 8  # with fewer parts, the first regular slice is the measurement
MIN_SLICE_S = 30.0  # opening a dataset takes about a second: 3% of the shortest slice
LONG_METRIC_RATIO = 0.25  # relative to the time on the GPU
UNCUT_REST_FACTOR = 1.3  # a remainder of up to this many slices is not split again


@dataclass(frozen=True, kw_only=True)
class DatasetTask:
    """One dataset of one checkpoint, with its expected total cost."""

    checkpoint: int
    dataset: int
    samples: int
    prior: SliceCost
    parts: int = 1_000_000  # maximum number of slices
    offset: int = 0  # its first sample
    is_measured: bool = True  # otherwise the prior is only an estimate
    begun: bool = False  # some samples are already assigned


@dataclass(frozen=True, kw_only=True)
class DatasetSlice:
    task: int
    start: int
    samples: int
    probes: bool = False


@dataclass(kw_only=True)
class _RemainingTask:
    """The remaining work of a task."""

    task: DatasetTask
    done: int = 0  # samples taken
    cuts: int = 0
    entry: int = 0  # its newest entry in the heap; older ones are void
    factor: float = 1.0  # measured time relative to the prior
    known: bool = False  # measured, here or for another checkpoint
    is_probed: bool = False  # a probe is running
    turn: int | None = None  # its place in the optimized order

    @property
    def share(self) -> float:
        return 1 - self.done / self.task.samples

    @property
    def remaining_s(self) -> float:
        return self.share * self.task.prior.gpu_s * self.factor

    @property
    def tail(self) -> float:
        """Seconds of metric per second on the GPU."""
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
    """A checkpoint with its tasks in order and the nodes that work on it."""

    heap: list[tuple[bool, bool, float, int, int]] = field(default_factory=list)
    tasks: list[int] = field(default_factory=list)
    open: int = 0  # tasks with remaining work
    left_s: float = 0.0
    nodes: set[int] = field(default_factory=set)


class WorkQueue:
    """The work of a campaign that is not assigned yet."""

    def __init__(self, tasks: Sequence[DatasetTask], site: EvaluationSite) -> None:
        self._gpus = site.gpus
        self._per_node = site.gpus_per_node
        self._states = [_RemainingTask(task=task, known=task.is_measured, is_probed=task.begun) for task in tasks]
        self._factors: dict[int, float] = {}  # of the datasets measured so far
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
        """Note that the node has this checkpoint. Return False if it has no remaining work."""
        if not self._checkpoints[checkpoint].open:
            return False
        self._at[node] = checkpoint
        self._checkpoints[checkpoint].nodes.add(node)
        self._unbegun = [name for name in self._unbegun if name != checkpoint]
        return True

    def checkpoint_for(self, node: int) -> int | None:
        """Return the checkpoint that this node should work on, or None if there is no work."""
        current = self._at.get(node)
        if current is not None and self._checkpoints[current].open:
            return current
        selected = self._next_checkpoint()
        if current is not None:
            self._checkpoints[current].nodes.discard(node)
        if selected is None:
            self._at.pop(node, None)
            return None
        self._at[node] = selected
        self._checkpoints[selected].nodes.add(node)
        return selected

    def take(self, checkpoint: int) -> DatasetSlice | None:
        begun = self._checkpoints[checkpoint]
        if not begun.open:
            return None
        number = self._pop_first_task(begun)
        state = self._states[number]
        before, probes = state.remaining_s, state.needs_probe
        samples = self._probe_samples(state) if probes else self._slice_samples(state, begun)
        taken = DatasetSlice(task=number, start=state.task.offset + state.done, samples=samples, probes=probes)
        state.done += taken.samples
        state.cuts += 1
        if state.done < state.task.samples:
            self._push_task(begun, number)
        else:
            begun.open -= 1
        self._subtract_remaining(begun, before - state.remaining_s)
        return taken

    def next_needs_probe(self, checkpoint: int) -> bool:
        """Whether the next slice of the checkpoint is a probe."""
        begun = self._checkpoints[checkpoint]
        if not begun.open:
            return False
        number = self._pop_first_task(begun)
        self._push_task(begun, number)
        return self._states[number].needs_probe

    def record_cost(self, taken: DatasetSlice, took: SliceCost) -> None:
        """Record the real cost of a slice. It determines the expected cost of the remaining work."""
        state = self._states[taken.task]
        expected = state.task.prior.gpu_s * taken.samples / state.task.samples
        before = state.remaining_s
        state.factor = took.gpu_s / max(expected, 1e-9)
        state.known = True
        self._factors[state.task.dataset] = state.factor
        begun = self._checkpoints[state.task.checkpoint]
        self._subtract_remaining(begun, before - state.remaining_s)
        if state.done < state.task.samples:
            self._push_task(begun, taken.task)

    def _order_uncut_tasks(self) -> None:
        """Optimize the order of checkpoints whose datasets may not be split. Each checkpoint is assumed to get an even
        share of the nodes, and at least one."""
        gpus = max(self._per_node, self._gpus // max(len(self._checkpoints), 1))
        for begun in self._checkpoints.values():
            tasks = [self._states[number].task for number in begun.tasks]
            if all(task.parts < 2 for task in tasks):
                work = tuple((task.prior.gpu_s, task.prior.score) for task in tasks)
                for turn, place in enumerate(uncut_order.best_order(work, gpus)):
                    self._states[begun.tasks[place]].turn = turn

    def _push_task(self, begun: _CheckpointQueue, number: int) -> None:
        state = self._states[number]
        state.entry += 1
        heappush(begun.heap, (*state.place(), number, state.entry))

    def _pop_first_task(self, begun: _CheckpointQueue) -> int:
        while True:
            *_, number, entry = heappop(begun.heap)
            state = self._states[number]
            if entry != state.entry:
                continue
            if not self._update_estimate(state, begun):
                return number
            self._push_task(begun, number)

    def _update_estimate(self, state: _RemainingTask, begun: _CheckpointQueue) -> bool:
        """Apply measurements and probes of the same dataset at other checkpoints. Return whether the task changed."""
        if state.known:
            return False
        if state.task.dataset in self._factors:
            before = state.remaining_s
            state.factor, state.known = self._factors[state.task.dataset], True
            self._subtract_remaining(begun, before - state.remaining_s)
            return True
        if state.task.dataset in self._probed and not state.is_probed:
            state.is_probed = True
            return True
        return False

    def _probe_samples(self, state: _RemainingTask) -> int:
        state.is_probed = True
        self._probed.add(state.task.dataset)
        if state.task.parts < MIN_PARTS_FOR_PROBE:
            return _min_samples(state)
        return self._samples_for(state, PROBE_SLICE_S / (1 + state.tail))

    def _samples_for(self, state: _RemainingTask, seconds: float) -> int:
        remaining = state.task.samples - state.done
        return max(1, min(remaining, int(remaining * seconds / max(state.remaining_s, 1e-9))))

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

    def _slice_samples(self, state: _RemainingTask, begun: _CheckpointQueue) -> int:
        """Return the number of samples of the next slice."""
        remaining = state.task.samples - state.done
        workers = max(len(begun.nodes), 1) * self._per_node if self._unbegun else self._gpus
        share_s = (begun.left_s if self._unbegun else self._left_s) / (2 * workers)
        slice_s = max(MIN_SLICE_S, share_s)
        if state.tail >= LONG_METRIC_RATIO:
            slice_s = min(slice_s, max(MIN_SLICE_S, self._whole_s / 4 / state.tail))
        if not state.known:
            return max(_min_samples(state), self._samples_for(state, MIN_SLICE_S / (1 + state.tail)))
        return (
            remaining
            if state.remaining_s <= UNCUT_REST_FACTOR * slice_s
            else max(_min_samples(state), self._samples_for(state, slice_s))
        )


def _min_samples(state: _RemainingTask) -> int:
    """Return the minimum size of the next slice: an even share, so that the last allowed slice is not the largest."""
    return math.ceil((state.task.samples - state.done) / max(state.task.parts - state.cuts, 1))
