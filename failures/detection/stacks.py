"""Reads the stacks of a hanging job's ranks from a log, and finds the ranks that the others wait for. Pure.

The parser reads the output of `faulthandler` and `py-spy dump`, with or without a launcher's rank before each line. A
line of its own may also name the rank (`stacks of rank 3`). One thread represents a rank: the one in a collective, else
the main program; threads of pools and data loader helpers are ignored.

If all ranks are in the same collective, the fault is in a GPU, a link or the network. If a minority is elsewhere, the
others wait for it. This is evidence for the user and for the text of the incident: Acme never drains a node because of
a stack.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from failures.diagnosis import lines

MAX_FRAMES = 40  # of one thread
MAX_NAMED_GROUPS = 4  # groups of ranks that a sentence names

THREAD_HEADER = re.compile(r"^(?:Current thread|Thread) (?:0x[0-9a-fA-F]+|\d+)\b")
FAULTHANDLER_FRAME = re.compile(r'^\s*File "(?P<file>[^"]{1,400})", line (?P<line>\d+|\?\?\?) in (?P<name>.{1,200})$')
PY_SPY_FRAME = re.compile(r"^\s+(?P<name>[\w<>.]{1,200}) \((?P<file>[^():]{1,400}):(?P<line>\d+)\)$")
RANK_MARKER = re.compile(r"\bstacks of rank (\d{1,6})\b")


class RankActivity(StrEnum):
    COLLECTIVE = "collective"
    LOADER = "data loader"
    CHECKPOINT = "checkpoint"
    COMPILE = "compilation"
    DEVICE = "GPU"
    OTHER = "other"


@dataclass(frozen=True, kw_only=True)
class Frame:
    name: str
    file: str
    line: str

    @property
    def short(self) -> str:
        return f"{self.name} ({'/'.join(self.file.split('/')[-2:])}:{self.line})"


@dataclass(frozen=True, kw_only=True)
class Stack:
    """The stack of one thread, innermost frame first. Rank -1 means unknown."""

    rank: int
    frames: tuple[Frame, ...]

    @property
    def is_helper(self) -> bool:
        """Whether this is a thread that the program started, and not its main thread."""
        return self.frames[-1].name in ("_bootstrap", "__bootstrap")


@dataclass(frozen=True, kw_only=True)
class RankPosition:
    """What a rank is doing, in which function, and from where in the program it was called."""

    doing: RankActivity
    name: str
    frame: Frame
    caller: Frame | None = None

    def words(self, *, many: bool) -> str:
        """A verb phrase for one rank or for `many`, with the place in the program."""
        phrase = ACTIVITY_PHRASES[self.doing][many].format(name=self.name)
        return f"{phrase}, {(self.caller or self.frame).short}"


ACTIVITY_PHRASES: dict[RankActivity, tuple[str, str]] = {
    RankActivity.COLLECTIVE: ("waits in {name}", "wait in {name}"),
    RankActivity.LOADER: ("is in its data loader", "are in their data loaders"),
    RankActivity.CHECKPOINT: ("is saving or loading a checkpoint", "are saving or loading a checkpoint"),
    RankActivity.COMPILE: ("is compiling", "are compiling"),
    RankActivity.DEVICE: ("waits for its GPU", "wait for their GPUs"),
    RankActivity.OTHER: ("is in {name}", "are in {name}"),
}

# The innermost matching frame decides. Names such as `send` count only in the files below: others use them too.
COLLECTIVE_FUNCTION = re.compile(
    r"^_?(?:all_(?:reduce|gather|to_all)\w*|reduce_scatter\w*|reduce|broadcast\w*|gather\w*|scatter\w*|(?:monitored_)?barrier"
    r"|i?send|i?recv|batch_isend_irecv|wait)$"
)
ACTIVITY_PATTERNS: tuple[tuple[RankActivity, re.Pattern[str], re.Pattern[str]], ...] = tuple(
    (doing, re.compile(file), re.compile(name))
    for doing, file, name in (
        (
            RankActivity.COLLECTIVE,
            r"torch/distributed/(?:distributed_c10d|_functional_collectives)\.py$",
            COLLECTIVE_FUNCTION.pattern,
        ),
        (RankActivity.COLLECTIVE, r"(?:deepspeed/comm|megatron/core|colossalai)/", COLLECTIVE_FUNCTION.pattern),
        (RankActivity.COLLECTIVE, r"mpi4py|horovod/", COLLECTIVE_FUNCTION.pattern),
        (RankActivity.LOADER, r"torch/utils/data/|webdataset/|streaming/base/|/datasets/|tf/data/", r"."),
        (
            RankActivity.CHECKPOINT,
            r"torch/distributed/checkpoint/|torch/serialization\.py$|safetensors/|checkpointing\.py$",
            r".",
        ),
        (RankActivity.COMPILE, r"torch/_(?:inductor|dynamo)/|triton/(?:compiler|runtime)/", r"."),
        (RankActivity.DEVICE, r"torch/cuda/(?:__init__|streams)\.py$", r"^(?:synchronize|wait)$"),
    )
)
LIBRARY_PATH = re.compile(r"/(?:site|dist)-packages/|/lib/python\d|^torch/|^<frozen")


def parse_stacks(text: str) -> list[Stack]:
    """The stacks of all threads, in the order of the log."""
    return list(_iter_stacks(text.splitlines()))


def _iter_stacks(rows: Iterable[str]) -> Iterator[Stack]:
    """Stacks as they end. Lines of several ranks may be interleaved, so each rank has its own open thread."""
    open_: dict[int, list[Frame]] = {}
    named = -1  # the rank from the last marker line; it applies to lines without a launcher's prefix
    for row in rows:
        line = lines.parse(0, row)
        if marker := RANK_MARKER.search(line.message):
            named = int(marker[1])
        rank = _stack_rank(row, line.rank, named)
        if THREAD_HEADER.match(line.message.strip()):
            yield from _complete_stack(rank, open_.pop(rank, None))
            open_[rank] = []
        elif rank in open_ and (frame := _parse_frame(line.message)):
            open_[rank] += [frame] if len(open_[rank]) < MAX_FRAMES else []
        elif rank in open_:
            yield from _complete_stack(rank, open_.pop(rank))
    for rank, frames in open_.items():
        yield from _complete_stack(rank, frames)


def _stack_rank(row: str, marked: int | None, named: int) -> int:
    """The rank of a row. A launcher's prefix wins; a rank that is only mentioned in the text does not count."""
    return marked if marked is not None and not RANK_MARKER.search(row) else named


def _parse_frame(message: str) -> Frame | None:
    match = FAULTHANDLER_FRAME.match(message) or PY_SPY_FRAME.match(message)
    return Frame(name=match["name"].strip(), file=match["file"], line=match["line"]) if match else None


def _complete_stack(rank: int, frames: list[Frame] | None) -> Iterator[Stack]:
    if frames:
        yield Stack(rank=rank, frames=tuple(frames))


# --- positions of the ranks


def rank_positions(stacks: Sequence[Stack]) -> dict[int, RankPosition]:
    """The position of each rank. If a rank was dumped twice, its last dump counts; helper threads never do."""
    stacks_of_rank: dict[int, list[Stack]] = defaultdict(list)
    for stack in stacks:
        if not stack.is_helper:
            stacks_of_rank[stack.rank].append(stack)
    chosen = {}
    for rank, own_stacks in sorted(stacks_of_rank.items()):
        positions = [_stack_position(stack) for stack in own_stacks]
        collectives = [position for position in positions if position.doing is RankActivity.COLLECTIVE]
        chosen[rank] = (collectives or positions)[-1]
    return chosen


def _stack_position(stack: Stack) -> RankPosition:
    for at, frame in enumerate(stack.frames):
        for doing, file, name in ACTIVITY_PATTERNS:
            if file.search(frame.file) and name.search(frame.name):
                return RankPosition(
                    doing=doing,
                    name=frame.name.lstrip("_"),
                    frame=frame,
                    caller=_first_own_frame(stack.frames[at + 1 :]),
                )
    own = _first_own_frame(stack.frames) or stack.frames[0]
    return RankPosition(doing=RankActivity.OTHER, name=own.name, frame=own)


def _first_own_frame(frames: Iterable[Frame]) -> Frame | None:
    """The innermost frame that belongs to the program and not to a library."""
    return next((frame for frame in frames if not LIBRARY_PATH.search(frame.file)), None)


# --- summary


@dataclass(frozen=True, kw_only=True)
class StackSummary:
    """What the stacks show, in sentences; the ranks that the others wait for; the ranks without a stack."""

    sentences: tuple[str, ...]
    awaited_ranks: tuple[int, ...] = ()
    silent: tuple[int, ...] = ()


def summarize_stacks(positions: Mapping[int, RankPosition], world: int) -> StackSummary:
    """A summary of all positions. `world` is the number of ranks; 0 if unknown."""
    ranked = {rank: place for rank, place in positions.items() if rank >= 0}
    if not ranked:
        unranked = [f"One rank {place.words(many=False)}." for place in positions.values()]
        return StackSummary(sentences=tuple(unranked[:1]) or ("No stack was found in the log.",))
    silent = tuple(rank for rank in range(world) if rank not in ranked)
    groups = _group_positions(ranked)
    sentences = [_group_sentence(place, members, world) for place, members in groups[:MAX_NAMED_GROUPS]]
    awaited = _find_awaited_ranks(groups)
    if awaited:
        sentences.append(f"The others wait for {_rank_list(awaited)}.")
    elif len(groups) == 1 and groups[0][0].doing is RankActivity.COLLECTIVE and not silent and len(ranked) > 1:
        sentences.append("All ranks are in the same collective: the fault is in a GPU, a link or the network.")
    elif len(groups) > 1 and all(place.doing is RankActivity.COLLECTIVE for place, _ in groups):
        sentences.append("Ranks wait in different collectives: the program calls them in a different order.")
    if silent and len(silent) < world:
        sentences.append(f"{_rank_list(silent, capital=True)} reported no stack.")
    return StackSummary(sentences=tuple(sentences), awaited_ranks=awaited, silent=silent)


def _group_positions(ranked: Mapping[int, RankPosition]) -> list[tuple[RankPosition, list[int]]]:
    """Ranks grouped by what they do, the largest group first."""
    counted = Counter((place.doing, place.name) for place in ranked.values())
    members: dict[tuple[RankActivity, str], list[int]] = defaultdict(list)
    for rank in sorted(ranked):
        members[ranked[rank].doing, ranked[rank].name].append(rank)
    order = sorted(counted, key=lambda key: (-counted[key], members[key][0]))
    return [(ranked[members[key][0]], members[key]) for key in order]


def _find_awaited_ranks(groups: Sequence[tuple[RankPosition, list[int]]]) -> tuple[int, ...]:
    """The minority that has not reached the collective in which all other ranks wait; empty if there is none."""
    waiting = [members for place, members in groups if place.doing is RankActivity.COLLECTIVE]
    others = [rank for place, members in groups if place.doing is not RankActivity.COLLECTIVE for rank in members]
    if len(waiting) != 1 or not others or len(others) >= len(waiting[0]):
        return ()
    return tuple(sorted(others))


def _group_sentence(place: RankPosition, members: Sequence[int], world: int) -> str:
    if len(members) == 1:
        return f"Rank {members[0]} {place.words(many=False)}."
    if len(members) == world:
        return f"All {world} ranks {place.words(many=True)}."
    return f"{_rank_list(members, capital=True)} {place.words(many=True)}."


def _rank_list(members: Sequence[int], *, capital: bool = False) -> str:
    text = f"rank{'s' if len(members) > 1 else ''} {format_rank_ranges(members)}"
    return text[:1].upper() + text[1:] if capital else text


def format_rank_ranges(numbers: Sequence[int]) -> str:
    """Ranks as ranges: `0-6,8`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ",".join("-".join(str(end) for end in run) for run in runs)


def expected_world_size(positions: Mapping[int, RankPosition], gpus: int) -> int:
    """The number of ranks to expect; 0 if unknown.

    One rank per GPU is usual but not certain, so ranks are called missing only if most GPUs have reported one.
    """
    return gpus if 2 * sum(rank >= 0 for rank in positions) > gpus else 0
