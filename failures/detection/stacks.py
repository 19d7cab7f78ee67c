"""Where each rank of a job that hangs stands: stacks out of a log, and who is not where the others are. Pure.

Reads what `faulthandler` and `py-spy dump` print, with or without a launcher's rank before each line; a rank may also
be told by a line of its own (`stacks of rank 3`). Of a rank's threads one speaks for it: its own collective, else what
the program itself does; threads of pools and of data loaders' helpers speak for nobody.

Everybody in one collective points at what lies between them; one who is elsewhere is whom the others wait for. That is
evidence for a person, and for the sentence of the incident: no node is closed because of a stack.
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
    """One thread, the innermost frame first. Rank -1: nobody said which one it is."""

    rank: int
    frames: tuple[Frame, ...]

    @property
    def is_helper(self) -> bool:
        """A thread that the program started beside itself."""
        return self.frames[-1].name in ("_bootstrap", "__bootstrap")


@dataclass(frozen=True, kw_only=True)
class RankPosition:
    """Where a rank stands: what it does, in which function, and who called that."""

    doing: RankActivity
    name: str
    frame: Frame
    caller: Frame | None = None

    def words(self, *, many: bool) -> str:
        said = ACTIVITY_PHRASES[self.doing][many].format(name=self.name)
        return f"{said}, {(self.caller or self.frame).short}"


ACTIVITY_PHRASES: dict[RankActivity, tuple[str, str]] = {
    RankActivity.COLLECTIVE: ("waits in {name}", "wait in {name}"),
    RankActivity.LOADER: ("is in its data loader", "are in their data loaders"),
    RankActivity.CHECKPOINT: ("saves or loads a checkpoint", "save or load a checkpoint"),
    RankActivity.COMPILE: ("compiles", "compile"),
    RankActivity.DEVICE: ("waits for its GPU", "wait for their GPUs"),
    RankActivity.OTHER: ("is in {name}", "are in {name}"),
}

# The innermost frame that fits says it. `send` and `recv` count where torch.distributed has them, and nowhere else.
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
    """Every thread's stack, in the order of the log."""
    return list(_iter_stacks(text.splitlines()))


def _iter_stacks(rows: Iterable[str]) -> Iterator[Stack]:
    """A rank's lines may stand between those of another one, so each has a thread of its own under way."""
    open_: dict[int, list[Frame]] = {}
    named = -1  # by a line of its own; it holds until the next one, for lines that no launcher marks
    for row in rows:
        line = lines.parse(0, row)
        if told := RANK_MARKER.search(line.message):
            named = int(told[1])
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
    """What stands before the line knows best; a rank that a line of the stack only mentions is none."""
    return marked if marked is not None and not RANK_MARKER.search(row) else named


def _parse_frame(message: str) -> Frame | None:
    match = FAULTHANDLER_FRAME.match(message) or PY_SPY_FRAME.match(message)
    return Frame(name=match["name"].strip(), file=match["file"], line=match["line"]) if match else None


def _complete_stack(rank: int, frames: list[Frame] | None) -> Iterator[Stack]:
    if frames:
        yield Stack(rank=rank, frames=tuple(frames))


# --- where they stand


def rank_positions(stacks: Sequence[Stack]) -> dict[int, RankPosition]:
    """By rank; of a rank that was asked twice the last answer counts, as far as it has threads that speak."""
    of_rank: dict[int, list[Stack]] = defaultdict(list)
    for stack in stacks:
        if not stack.is_helper:
            of_rank[stack.rank].append(stack)
    found = {}
    for rank, mine in sorted(of_rank.items()):
        stood = [_stack_position(stack) for stack in mine]
        waits = [one for one in stood if one.doing is RankActivity.COLLECTIVE]
        found[rank] = (waits or stood)[-1]
    return found


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
    """The first one that is the program's and no library's."""
    return next((frame for frame in frames if not LIBRARY_PATH.search(frame.file)), None)


# --- what that says


@dataclass(frozen=True, kw_only=True)
class StackSummary:
    """What the stacks say, in sentences; and the ranks whom the others wait for."""

    sentences: tuple[str, ...]
    awaited_ranks: tuple[int, ...] = ()
    silent: tuple[int, ...] = ()


def summarize_stacks(found: Mapping[int, RankPosition], world: int) -> StackSummary:
    """`world`: how many ranks there are; 0 where nobody knows."""
    ranked = {rank: place for rank, place in found.items() if rank >= 0}
    if not ranked:
        said = [f"A rank {place.words(many=False)}." for place in found.values()]
        return StackSummary(sentences=tuple(said[:1]) or ("No rank has said where it stands.",))
    silent = tuple(rank for rank in range(world) if rank not in ranked)
    groups = _group_positions(ranked)
    sentences = [_group_sentence(place, members, world) for place, members in groups[:MAX_NAMED_GROUPS]]
    awaited = _find_awaited_ranks(groups)
    if awaited:
        sentences.append(f"The others wait for {_rank_list(awaited)}.")
    elif len(groups) == 1 and groups[0][0].doing is RankActivity.COLLECTIVE and not silent and len(ranked) > 1:
        sentences.append("All have come there and none goes on: it lies between them, in a GPU, a link or the network.")
    elif len(groups) > 1 and all(place.doing is RankActivity.COLLECTIVE for place, _ in groups):
        sentences.append("They wait in different collectives, so the program has led them apart.")
    if silent and len(silent) < world:
        sentences.append(f"{_rank_list(silent, capital=True)} gave no stack.")
    return StackSummary(sentences=tuple(sentences), awaited_ranks=awaited, silent=silent)


def _group_positions(ranked: Mapping[int, RankPosition]) -> list[tuple[RankPosition, list[int]]]:
    """Those who do the same, the most first."""
    counted = Counter((place.doing, place.name) for place in ranked.values())
    members: dict[tuple[RankActivity, str], list[int]] = defaultdict(list)
    for rank in sorted(ranked):
        members[ranked[rank].doing, ranked[rank].name].append(rank)
    order = sorted(counted, key=lambda key: (-counted[key], members[key][0]))
    return [(ranked[members[key][0]], members[key]) for key in order]


def _find_awaited_ranks(groups: Sequence[tuple[RankPosition, list[int]]]) -> tuple[int, ...]:
    """A minority that has not come to the collective in which all the others wait."""
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
    """0-6,8"""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ",".join("-".join(str(end) for end in run) for run in runs)


def expected_world_size(found: Mapping[int, RankPosition], gpus: int) -> int:
    """A rank for each GPU is usual and not certain: only where most of them have answered are the others missed."""
    return gpus if 2 * sum(rank >= 0 for rank in found) > gpus else 0
