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

from scheduling.evaluation.line import Line, Slice, Task
from scheduling.evaluation.work import Cost, Site

WORTH = 8.0  # times what starting and loading take, a trial should at least last
MOST_PARTS = 48  # of a trial: they go through the environment of a process
SCORE_S = 60.0  # metrics are gathered into one CPU job up to this


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What is not in a shard yet of one dataset of one checkpoint."""

    evaluation: int
    checkpoint: str
    dataset: str
    start: int
    samples: int
    cost: Cost  # of these samples
    parts: int  # in how many it may still be cut
    measured: bool = True  # by any trial so far
    begun: bool = False  # some of it is in a shard


@dataclass(frozen=True, kw_only=True)
class Loose:
    """A shard that came to nothing and is to be tried again, whole."""

    shard: int
    evaluation: int
    checkpoint: str
    dataset: str
    start: int
    samples: int
    cost: Cost


@dataclass(frozen=True, kw_only=True)
class NodeRoom:
    name: str
    slots: int  # trials that would fit now
    ours: int = 0  # trials of this campaign that are there or on their way


@dataclass(frozen=True, kw_only=True)
class Inferred:
    shard: int
    checkpoint: str
    score_s: float


@dataclass(frozen=True, kw_only=True)
class Board:
    wanted: Sequence[Wanted] = ()
    loose: Sequence[Loose] = ()
    nodes: Sequence[NodeRoom] = ()
    staged: Mapping[str, frozenset[str]] = field(default_factory=dict)  # node -> checkpoints that are there
    coming: Mapping[str, frozenset[str]] = field(default_factory=dict)  # node -> checkpoints on their way
    at_work: Mapping[str, str] = field(default_factory=dict)  # node -> the checkpoint of its newest trial
    most_nodes: int = 1
    slots_per_node: int = 8
    stages: bool = True  # whether copies are kept on nodes at all
    ready_s: float = 30.0  # until a trial infers
    inferred: Sequence[Inferred] = ()
    scoring: int = 0
    most_scoring: int = 16


@dataclass(frozen=True, kw_only=True)
class Cut:
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
    cuts: tuple[Cut, ...]

    @property
    def expected_s(self) -> float:
        return sum(cut.expected_s for cut in self.cuts)


@dataclass(frozen=True, kw_only=True)
class NewScoring:
    checkpoint: str
    shards: tuple[int, ...]
    expected_s: float


@dataclass(frozen=True, kw_only=True)
class Moves:
    stage: tuple[tuple[str, str], ...] = ()  # node, checkpoint
    trials: tuple[NewTrial, ...] = ()
    scorings: tuple[NewScoring, ...] = ()

    @property
    def nothing(self) -> bool:
        return not (self.stage or self.trials or self.scorings)


def decide(board: Board) -> Moves:
    stage, trials = _gpus(board) if board.wanted or board.loose else ((), ())
    return Moves(stage=tuple(stage), trials=tuple(trials), scorings=tuple(_scorings(board)))


def _gpus(board: Board) -> tuple[list[tuple[str, str]], list[NewTrial]]:
    rooms = dict(enumerate(_chosen(board)))
    if not rooms:
        return [], []
    work: list[Loose | Wanted] = [*board.loose, *board.wanted]
    names = sorted({one.checkpoint for one in work})
    line = _line(board, work, names, rooms)
    share_s = line.left_s / _slots(board)
    probes = math.ceil(_unprobed(board) / _slots(board))
    stage: list[tuple[str, str]] = []
    trials: list[NewTrial] = []
    for number in _round(rooms):
        checkpoint = line.checkpoint_for(number)
        if checkpoint is None:
            continue
        name, node = names[checkpoint], rooms[number].name
        if board.stages and name not in board.staged.get(node, ()):
            if name not in board.coming.get(node, ()) and (node, name) not in stage:
                stage.append((node, name))
        elif cuts := tuple(_packed(line, work, checkpoint, board, share_s, probes)):
            trials.append(NewTrial(node=node, checkpoint=name, cuts=cuts))
    return stage, trials


def _line(board: Board, work: Sequence[Loose | Wanted], names: Sequence[str], rooms: Mapping[int, NodeRoom]) -> Line:
    """What nobody has taken, with the nodes going on with the checkpoints that they have."""
    numbers = {name: number for number, name in enumerate(names)}
    site = Site(nodes=max(1, board.most_nodes), gpus_per_node=max(1, board.slots_per_node))
    datasets = {name: number for number, name in enumerate(sorted({one.dataset for one in work}))}
    line = Line([_task(one, numbers[one.checkpoint], datasets[one.dataset]) for one in work], site)
    for node, room in rooms.items():
        for checkpoint in _prefers(board, room.name):
            if checkpoint in numbers and line.hold(node, numbers[checkpoint]):
                break
    return line


def _chosen(board: Board) -> list[NodeRoom]:
    """The nodes that may be used now: those that we are on already, then those that hold a copy, then the emptiest."""
    ranked = sorted(board.nodes, key=lambda room: (-room.ours, -len(_here(board, room.name)), -room.slots, room.name))
    return [room for room in ranked[: board.most_nodes] if room.slots]


def _here(board: Board, node: str) -> frozenset[str]:
    return board.staged.get(node, frozenset()) | board.coming.get(node, frozenset())


def _prefers(board: Board, node: str) -> Iterator[str]:
    """What it is at, then what it has, then what it is getting."""
    if node in board.at_work:
        yield board.at_work[node]
    yield from sorted(board.staged.get(node, ()))
    yield from sorted(board.coming.get(node, ()))


def _task(one: Loose | Wanted, checkpoint: int, dataset: int) -> Task:
    wanted = one if isinstance(one, Wanted) else None
    return Task(
        checkpoint=checkpoint,
        dataset=dataset,
        samples=one.samples,
        prior=one.cost,
        parts=wanted.parts if wanted else 1,
        offset=one.start,
        measured=wanted.measured if wanted else True,
        begun=wanted.begun if wanted else True,
    )


def _round(rooms: Mapping[int, NodeRoom]) -> Iterator[int]:
    """One slot of each node, then the second of each: work spreads over nodes before it fills one."""
    for turn in range(max(room.slots for room in rooms.values())):
        yield from (number for number, room in rooms.items() if turn < room.slots)


def _slots(board: Board) -> int:
    return max(1, board.most_nodes * board.slots_per_node)


def _unprobed(board: Board) -> int:
    return len({one.dataset for one in board.wanted if not one.measured} - {o.dataset for o in board.wanted if o.begun})


def _packed(
    line: Line, work: Sequence[Loose | Wanted], checkpoint: int, board: Board, share_s: float, probes: int
) -> Iterator[Cut]:
    """`share_s` and `probes` are what each GPU would get, if all that is left were dealt out evenly now."""
    if line.wants_probe(checkpoint):
        for _ in range(min(probes, MOST_PARTS)):
            if line.wants_probe(checkpoint) and (taken := line.take(checkpoint)):
                yield _cut(taken, work[taken.task])
        return
    target_s = max(line.left_s / (2 * _slots(board)), min(share_s, WORTH * board.ready_s))
    filled_s = 0.0
    for _ in range(MOST_PARTS):
        taken = line.take(checkpoint)
        if taken is None:
            return
        cut = _cut(taken, work[taken.task])
        yield cut
        filled_s += cut.expected_s
        if filled_s >= target_s:
            return


def _cut(taken: Slice, one: Loose | Wanted) -> Cut:
    expected_s = one.cost.on_gpu * taken.samples / one.samples
    shard = one.shard if isinstance(one, Loose) else None
    return Cut(evaluation=one.evaluation, start=taken.start, samples=taken.samples, expected_s=expected_s, shard=shard)


def _scorings(board: Board) -> Iterator[NewScoring]:
    """Long metrics first and alone, short ones together; never more jobs at once than the suite allows."""
    room = board.most_scoring - board.scoring
    for batch in _batches(sorted(board.inferred, key=lambda one: (-one.score_s, one.shard))):
        if room <= 0:
            return
        room -= 1
        shards = tuple(one.shard for one in batch)
        yield NewScoring(checkpoint=batch[0].checkpoint, shards=shards, expected_s=sum(one.score_s for one in batch))


def _batches(inferred: Iterable[Inferred]) -> Iterator[list[Inferred]]:
    open_: dict[str, list[Inferred]] = defaultdict(list)
    filled_s: dict[str, float] = defaultdict(float)
    for one in inferred:
        batch = open_[one.checkpoint]
        if batch and (filled_s[one.checkpoint] + one.score_s > SCORE_S or len(batch) >= MOST_PARTS):
            yield batch
            batch = open_[one.checkpoint] = []
            filled_s[one.checkpoint] = 0.0
        batch.append(one)
        filled_s[one.checkpoint] += one.score_s
    yield from (batch for batch in open_.values() if batch)
