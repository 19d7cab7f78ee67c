"""What a campaign does next: which nodes stage which checkpoint, what the free GPUs evaluate, what the CPUs score.

The board is the whole of it, as it is now; nothing is remembered between two looks. A trial is cut for one GPU from the
line of what nobody has taken (`line`): a share of what is left over twice the GPUs, so that trials shrink towards the
end and all end together, but long enough for the start and the loading of the model to be worth it. Where datasets were
never measured, the first trials go through a few samples of each and nothing else: what follows is then cut by what
they took. What a trial did not come to goes back to the line. Pure: board in, moves out.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from scheduling.evaluation.dispatch import DatasetSlice, DatasetTask, WorkQueue
from scheduling.evaluation.work import EvaluationSite, SliceCost

MIN_TRIAL_FACTOR = 8.0  # times what starting and loading take, a trial should at least last
MAX_TRIAL_PARTS = 48  # of a trial: they go through the environment of a process
SCORING_BATCH_S = 60.0  # metrics are gathered into one CPU job up to this


@dataclass(frozen=True, kw_only=True)
class UnassignedSamples:
    """What is not in a shard yet of one dataset of one checkpoint."""

    evaluation: int
    checkpoint: str
    dataset: str
    start: int
    samples: int
    cost: SliceCost  # of these samples
    parts: int  # in how many it may still be cut
    is_measured: bool = True  # by any trial so far
    begun: bool = False  # some of it is in a shard


@dataclass(frozen=True, kw_only=True)
class RetryShard:
    """A shard that came to nothing and is to be tried again, whole."""

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
    slots: int  # trials that would fit now
    ours: int = 0  # trials of this campaign that are there or on their way


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
    staged: Mapping[str, frozenset[str]] = field(default_factory=dict)  # node -> checkpoints that are there
    coming: Mapping[str, frozenset[str]] = field(default_factory=dict)  # node -> checkpoints on their way
    at_work: Mapping[str, str] = field(default_factory=dict)  # node -> the checkpoint of its newest trial
    most_nodes: int = 1
    slots_per_node: int = 8
    stages: bool = True  # whether copies are kept on nodes at all
    ready_s: float = 30.0  # until a trial infers
    inferred: Sequence[InferredShard] = ()
    scoring: int = 0
    most_scoring: int = 16


@dataclass(frozen=True, kw_only=True)
class TrialSlice:
    """Samples for a trial; `shard` where they had one before."""

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
    stage, trials = _stagings_and_trials(board) if board.wanted or board.loose else ((), ())
    return CampaignActions(stage=tuple(stage), trials=tuple(trials), scorings=tuple(_new_scorings(board)))


def _stagings_and_trials(board: CampaignSnapshot) -> tuple[list[tuple[str, str]], list[NewTrial]]:
    rooms = dict(enumerate(_eligible_nodes(board)))
    if not rooms:
        return [], []
    work: list[RetryShard | UnassignedSamples] = [*board.loose, *board.wanted]
    names = sorted({one.checkpoint for one in work})
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
    """What nobody has taken, with the nodes going on with the checkpoints that they have."""
    numbers = {name: number for number, name in enumerate(names)}
    site = EvaluationSite(nodes=max(1, board.most_nodes), gpus_per_node=max(1, board.slots_per_node))
    datasets = {name: number for number, name in enumerate(sorted({one.dataset for one in work}))}
    line = WorkQueue([_dispatch_task(one, numbers[one.checkpoint], datasets[one.dataset]) for one in work], site)
    for node, room in rooms.items():
        for checkpoint in _preferred_checkpoints(board, room.name):
            if checkpoint in numbers and line.hold(node, numbers[checkpoint]):
                break
    return line


def _eligible_nodes(board: CampaignSnapshot) -> list[NodeSlots]:
    """The nodes that may be used now: those that we are on already, then those that hold a copy, then the emptiest."""
    ranked = sorted(
        board.nodes, key=lambda room: (-room.ours, -len(_present_or_arriving(board, room.name)), -room.slots, room.name)
    )
    return [room for room in ranked[: board.most_nodes] if room.slots]


def _present_or_arriving(board: CampaignSnapshot, node: str) -> frozenset[str]:
    return board.staged.get(node, frozenset()) | board.coming.get(node, frozenset())


def _preferred_checkpoints(board: CampaignSnapshot, node: str) -> Iterator[str]:
    """What it is at, then what it has, then what it is getting."""
    if node in board.at_work:
        yield board.at_work[node]
    yield from sorted(board.staged.get(node, ()))
    yield from sorted(board.coming.get(node, ()))


def _dispatch_task(one: RetryShard | UnassignedSamples, checkpoint: int, dataset: int) -> DatasetTask:
    wanted = one if isinstance(one, UnassignedSamples) else None
    return DatasetTask(
        checkpoint=checkpoint,
        dataset=dataset,
        samples=one.samples,
        prior=one.cost,
        parts=wanted.parts if wanted else 1,
        offset=one.start,
        is_measured=wanted.is_measured if wanted else True,
        begun=wanted.begun if wanted else True,
    )


def _slot_order(rooms: Mapping[int, NodeSlots]) -> Iterator[int]:
    """One slot of each node, then the second of each: work spreads over nodes before it fills one."""
    for turn in range(max(room.slots for room in rooms.values())):
        yield from (number for number, room in rooms.items() if turn < room.slots)


def _total_slots(board: CampaignSnapshot) -> int:
    return max(1, board.most_nodes * board.slots_per_node)


def _unprobed_datasets(board: CampaignSnapshot) -> int:
    return len(
        {one.dataset for one in board.wanted if not one.is_measured} - {o.dataset for o in board.wanted if o.begun}
    )


def _trial_slices(
    line: WorkQueue,
    work: Sequence[RetryShard | UnassignedSamples],
    checkpoint: int,
    board: CampaignSnapshot,
    share_s: float,
    probes: int,
) -> Iterator[TrialSlice]:
    """`share_s` and `probes` are what each GPU would get, if all that is left were dealt out evenly now."""
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


def _trial_slice(taken: DatasetSlice, one: RetryShard | UnassignedSamples) -> TrialSlice:
    expected_s = one.cost.gpu_s * taken.samples / one.samples
    shard = one.shard if isinstance(one, RetryShard) else None
    return TrialSlice(
        evaluation=one.evaluation, start=taken.start, samples=taken.samples, expected_s=expected_s, shard=shard
    )


def _new_scorings(board: CampaignSnapshot) -> Iterator[NewScoring]:
    """Long metrics first and alone, short ones together; never more jobs at once than the suite allows."""
    room = board.most_scoring - board.scoring
    for batch in _scoring_batches(sorted(board.inferred, key=lambda one: (-one.score_s, one.shard))):
        if room <= 0:
            return
        room -= 1
        shards = tuple(one.shard for one in batch)
        yield NewScoring(checkpoint=batch[0].checkpoint, shards=shards, expected_s=sum(one.score_s for one in batch))


def _scoring_batches(inferred: Iterable[InferredShard]) -> Iterator[list[InferredShard]]:
    open_: dict[str, list[InferredShard]] = defaultdict(list)
    filled_s: dict[str, float] = defaultdict(float)
    for one in inferred:
        batch = open_[one.checkpoint]
        if batch and (filled_s[one.checkpoint] + one.score_s > SCORING_BATCH_S or len(batch) >= MAX_TRIAL_PARTS):
            yield batch
            batch = open_[one.checkpoint] = []
            filled_s[one.checkpoint] = 0.0
        batch.append(one)
        filled_s[one.checkpoint] += one.score_s
    yield from (batch for batch in open_.values() if batch)
