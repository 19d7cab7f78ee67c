"""Decides the next actions of a campaign: copies of checkpoints, trials on free GPUs, scoring jobs on CPUs.

The snapshot contains the complete state; nothing is stored between two decisions. A trial for one GPU takes slices from
the queue of unassigned work (`WorkQueue`). Its size is the remaining work divided by twice the number of GPUs, so that
trials shrink and all end at about the same time, but at least long enough to justify starting the framework and loading
the checkpoint. The first trials of unmeasured datasets only process a few samples of each; the following ones are sized
by these measurements. Unfinished work of a trial returns to the queue. Pure: snapshot in, actions out.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from scheduling.evaluation.rules.dispatch import DatasetSlice, DatasetTask, WorkQueue
from scheduling.evaluation.rules.work import EvaluationSite, SliceCost

MIN_TRIAL_FACTOR = 8.0  # minimum length of a trial, in multiples of the time to inference
MAX_TRIAL_PARTS = 48  # limited by the size of a process's environment
SCORING_BATCH_S = 60.0  # metrics are collected into one CPU job up to this length


@dataclass(frozen=True, kw_only=True)
class UnassignedSamples:
    """The samples of one dataset of one checkpoint that are not in a shard yet."""

    evaluation: int
    checkpoint: str
    dataset: str
    start: int
    samples: int
    cost: SliceCost  # of these samples
    parts: int  # maximum number of further shards
    is_measured: bool = True  # by any trial so far
    begun: bool = False  # some samples are in a shard


@dataclass(frozen=True, kw_only=True)
class RetryShard:
    """A failed or lost shard, to be retried as a whole."""

    shard: int
    evaluation: int
    checkpoint: str
    dataset: str
    start: int
    samples: int
    cost: SliceCost


@dataclass(frozen=True, kw_only=True)
class NodeSlots:
    name: str
    slots: int  # trials that fit now
    ours: int = 0  # running and pending trials of this campaign


@dataclass(frozen=True, kw_only=True)
class InferredShard:
    shard: int
    checkpoint: str
    score_s: float


@dataclass(frozen=True, kw_only=True)
class CampaignSnapshot:
    wanted: Sequence[UnassignedSamples] = ()
    loose: Sequence[RetryShard] = ()
    nodes: Sequence[NodeSlots] = ()
    staged: Mapping[str, frozenset[str]] = field(default_factory=dict)  # node -> copies of checkpoints
    coming: Mapping[str, frozenset[str]] = field(default_factory=dict)  # node -> copies being made or removed
    at_work: Mapping[str, str] = field(default_factory=dict)  # node -> checkpoint of its newest trial
    most_nodes: int = 1
    slots_per_node: int = 8
    stages: bool = True  # whether the suite uses copies on nodes
    ready_s: float = 30.0  # from the start of a trial to its first inference
    inferred: Sequence[InferredShard] = ()
    scoring: int = 0
    most_scoring: int = 16


@dataclass(frozen=True, kw_only=True)
class TrialSlice:
    """Samples for a trial. `shard` is set if they already are in a shard."""

    evaluation: int
    start: int
    samples: int
    expected_s: float
    shard: int | None = None


@dataclass(frozen=True, kw_only=True)
class NewTrial:
    node: str
    checkpoint: str
    cuts: tuple[TrialSlice, ...]

    @property
    def expected_s(self) -> float:
        return sum(cut.expected_s for cut in self.cuts)


@dataclass(frozen=True, kw_only=True)
class NewScoring:
    checkpoint: str
    shards: tuple[int, ...]
    expected_s: float


@dataclass(frozen=True, kw_only=True)
class CampaignActions:
    stage: tuple[tuple[str, str], ...] = ()  # node, checkpoint
    trials: tuple[NewTrial, ...] = ()
    scorings: tuple[NewScoring, ...] = ()

    @property
    def nothing(self) -> bool:
        return not (self.stage or self.trials or self.scorings)


def decide(board: CampaignSnapshot) -> CampaignActions:
    """Return the next actions of the campaign."""
    stage, trials = _stagings_and_trials(board) if board.wanted or board.loose else ((), ())
    return CampaignActions(stage=tuple(stage), trials=tuple(trials), scorings=tuple(_new_scorings(board)))


def _stagings_and_trials(board: CampaignSnapshot) -> tuple[list[tuple[str, str]], list[NewTrial]]:
    rooms = dict(enumerate(_eligible_nodes(board)))
    if not rooms:
        return [], []
    work: list[RetryShard | UnassignedSamples] = [*board.loose, *board.wanted]
    names = sorted({item.checkpoint for item in work})
    line = _work_queue(board, work, names, rooms)
    share_s = line.remaining_s / _total_slots(board)
    probes = math.ceil(_unprobed_datasets(board) / _total_slots(board))
    stage: list[tuple[str, str]] = []
    trials: list[NewTrial] = []
    for number in _slot_order(rooms):
        checkpoint = line.checkpoint_for(number)
        if checkpoint is None:
            continue
        name, node = names[checkpoint], rooms[number].name
        if board.stages and name not in board.staged.get(node, ()):
            if name not in board.coming.get(node, ()) and (node, name) not in stage:
                stage.append((node, name))
        elif cuts := tuple(_trial_slices(line, work, checkpoint, board, share_s, probes)):
            trials.append(NewTrial(node=node, checkpoint=name, cuts=cuts))
    return stage, trials


def _work_queue(
    board: CampaignSnapshot,
    work: Sequence[RetryShard | UnassignedSamples],
    names: Sequence[str],
    rooms: Mapping[int, NodeSlots],
) -> WorkQueue:
    """Return the queue of unassigned work, in which the nodes continue with the checkpoints that they have."""
    numbers = {name: number for number, name in enumerate(names)}
    site = EvaluationSite(nodes=max(1, board.most_nodes), gpus_per_node=max(1, board.slots_per_node))
    datasets = {name: number for number, name in enumerate(sorted({item.dataset for item in work}))}
    line = WorkQueue([_dispatch_task(item, numbers[item.checkpoint], datasets[item.dataset]) for item in work], site)
    for node, room in rooms.items():
        for checkpoint in _preferred_checkpoints(board, room.name):
            if checkpoint in numbers and line.hold(node, numbers[checkpoint]):
                break
    return line


def _eligible_nodes(board: CampaignSnapshot) -> list[NodeSlots]:
    """Return the usable nodes within the limit: nodes with our trials first, then with copies, then the emptiest."""
    ranked = sorted(
        board.nodes, key=lambda room: (-room.ours, -len(_present_or_arriving(board, room.name)), -room.slots, room.name)
    )
    return [room for room in ranked[: board.most_nodes] if room.slots]


def _present_or_arriving(board: CampaignSnapshot, node: str) -> frozenset[str]:
    return board.staged.get(node, frozenset()) | board.coming.get(node, frozenset())


def _preferred_checkpoints(board: CampaignSnapshot, node: str) -> Iterator[str]:
    """Yield the checkpoint of the node's newest trial, then its copies, then its arriving copies."""
    if node in board.at_work:
        yield board.at_work[node]
    yield from sorted(board.staged.get(node, ()))
    yield from sorted(board.coming.get(node, ()))


def _dispatch_task(item: RetryShard | UnassignedSamples, checkpoint: int, dataset: int) -> DatasetTask:
    unassigned = item if isinstance(item, UnassignedSamples) else None
    return DatasetTask(
        checkpoint=checkpoint,
        dataset=dataset,
        samples=item.samples,
        prior=item.cost,
        parts=unassigned.parts if unassigned else 1,
        offset=item.start,
        is_measured=unassigned.is_measured if unassigned else True,
        begun=unassigned.begun if unassigned else True,
    )


def _slot_order(rooms: Mapping[int, NodeSlots]) -> Iterator[int]:
    """Yield the nodes, once per free slot: one slot of each node, then the second of each. This spreads the work."""
    for turn in range(max(room.slots for room in rooms.values())):
        yield from (number for number, room in rooms.items() if turn < room.slots)


def _total_slots(board: CampaignSnapshot) -> int:
    return max(1, board.most_nodes * board.slots_per_node)


def _unprobed_datasets(board: CampaignSnapshot) -> int:
    return len(
        {item.dataset for item in board.wanted if not item.is_measured} - {o.dataset for o in board.wanted if o.begun}
    )


def _trial_slices(
    line: WorkQueue,
    work: Sequence[RetryShard | UnassignedSamples],
    checkpoint: int,
    board: CampaignSnapshot,
    share_s: float,
    probes: int,
) -> Iterator[TrialSlice]:
    """Yield the slices of a new trial. `share_s` and `probes` are an even share of the remaining work per GPU."""
    if line.next_needs_probe(checkpoint):
        for _ in range(min(probes, MAX_TRIAL_PARTS)):
            if line.next_needs_probe(checkpoint) and (taken := line.take(checkpoint)):
                yield _trial_slice(taken, work[taken.task])
        return
    target_s = max(line.remaining_s / (2 * _total_slots(board)), min(share_s, MIN_TRIAL_FACTOR * board.ready_s))
    filled_s = 0.0
    for _ in range(MAX_TRIAL_PARTS):
        taken = line.take(checkpoint)
        if taken is None:
            return
        cut = _trial_slice(taken, work[taken.task])
        yield cut
        filled_s += cut.expected_s
        if filled_s >= target_s:
            return


def _trial_slice(taken: DatasetSlice, item: RetryShard | UnassignedSamples) -> TrialSlice:
    expected_s = item.cost.gpu_s * taken.samples / item.samples
    shard = item.shard if isinstance(item, RetryShard) else None
    return TrialSlice(
        evaluation=item.evaluation, start=taken.start, samples=taken.samples, expected_s=expected_s, shard=shard
    )


def _new_scorings(board: CampaignSnapshot) -> Iterator[NewScoring]:
    """Yield new scoring jobs within the suite's limit: long metrics first and alone, short ones together."""
    room = board.most_scoring - board.scoring
    for batch in _scoring_batches(sorted(board.inferred, key=lambda item: (-item.score_s, item.shard))):
        if room <= 0:
            return
        room -= 1
        shards = tuple(item.shard for item in batch)
        yield NewScoring(checkpoint=batch[0].checkpoint, shards=shards, expected_s=sum(item.score_s for item in batch))


def _scoring_batches(inferred: Iterable[InferredShard]) -> Iterator[list[InferredShard]]:
    open_: dict[str, list[InferredShard]] = defaultdict(list)
    filled_s: dict[str, float] = defaultdict(float)
    for item in inferred:
        batch = open_[item.checkpoint]
        if batch and (filled_s[item.checkpoint] + item.score_s > SCORING_BATCH_S or len(batch) >= MAX_TRIAL_PARTS):
            yield batch
            batch = open_[item.checkpoint] = []
            filled_s[item.checkpoint] = 0.0
        batch.append(item)
        filled_s[item.checkpoint] += item.score_s
    yield from (batch for batch in open_.values() if batch)
