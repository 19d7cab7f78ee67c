"""Compares the collective operations in which the ranks of a job timed out, and names the rank that is behind. Pure.

PyTorch's watchdog writes the sequence number and the type of the operation for each rank. Ranks of one process group
run the same operations in the same order, so a few ranks with a lower number have not reached the operation for which
the others wait. Old versions do not name the group; numbers that differ by more than `MAX_LAG` are of different groups.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ..values import CollectivePosition, ParsedLine

POSITION = re.compile(r"SeqNum=([0-9]{1,18}), OpType=(\w{1,40})")
GROUP = re.compile(r"\[PG (?:ID )?(\w{1,20})(?: PG GUID ([^\s(\]]{1,80}))?[^\]]{0,120}? Rank [0-9]{1,9}\]")
OWN_RANK = re.compile(r"\[Rank ([0-9]{1,9})\]")
MAX_LAG = 16
MAX_NAMED_RANKS = 8


def parse_position(line: ParsedLine) -> CollectivePosition | None:
    """The position of the line's rank; None if the line names no operation or no rank."""
    found = POSITION.search(line.text)
    own = OWN_RANK.search(line.text)
    rank = line.rank if line.rank is not None else int(own[1]) if own else None
    if found is None or rank is None:
        return None
    group = GROUP.search(line.text)
    name = (group[2] or group[1]) if group else ""
    return CollectivePosition(rank=rank, group=name, sequence=int(found[1]), operation=found[2])


@dataclass(frozen=True, kw_only=True)
class Desync:
    """Ranks of one process group that disagree about the current operation: few against many."""

    few: tuple[CollectivePosition, ...]
    many: tuple[CollectivePosition, ...]

    @property
    def is_lag(self) -> bool:
        return self.few[0].sequence < self.many[0].sequence

    @property
    def sentence(self) -> str:
        few, many = _ranks_text(self.few), _ranks_text(self.many)
        few = few[0].upper() + few[1:]
        if self.is_lag:
            return f"{few} stood at {_operation(self.few)} while {many} waited at {_operation(self.many)}."
        return (
            f"{few} called {_operation(self.few)}, {many} called {_operation(self.many)}: "
            "the ranks do not run the same operations."
        )


def find_desync(positions: Iterable[CollectivePosition]) -> Desync | None:
    """The first group in which a minority is behind or runs another operation."""
    groups: dict[str, list[CollectivePosition]] = defaultdict(list)
    for position in positions:
        groups[position.group].append(position)
    for members in groups.values():
        by_operation: dict[tuple[int, str], list[CollectivePosition]] = defaultdict(list)
        for position in members:
            by_operation[position.sequence, position.operation].append(position)
        if len(by_operation) != 2:
            continue
        few, many = sorted(by_operation.values(), key=len)
        lag = many[0].sequence - few[0].sequence
        if len(few) < len(many) and 0 <= lag <= MAX_LAG:
            return Desync(few=tuple(few), many=tuple(many))
    return None


def _ranks_text(positions: Collection[CollectivePosition]) -> str:
    ranks = sorted(position.rank for position in positions)
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > MAX_NAMED_RANKS:
        return f"{len(ranks)} ranks"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def _operation(positions: tuple[CollectivePosition, ...]) -> str:
    return f"operation {positions[0].sequence} ({positions[0].operation})"
