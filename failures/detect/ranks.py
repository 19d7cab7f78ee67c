"""Which rank makes all the others wait, and whether it is the node. Pure.

In a synchronous job everybody's step takes as long as the slowest, so steps tell nothing about who it is. The time a
rank spends computing (without waiting for others) does, compared within its own parallel group: ranks of other groups
may have other work by design (the first and last pipeline stages).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from failures.detect.findings import Finding, Symptom

OVER = 0.15
NOISES = 6.0
ENOUGH = 5  # measurements of each rank
PART_OF_NODE = 0.5


@dataclass(frozen=True, kw_only=True)
class Rank:
    number: int
    group: str  # those who do the same work
    node: str
    seconds: Sequence[float]  # computing, of the same last steps


def slow_ranks(ranks: Sequence[Rank], now: float) -> list[Finding]:
    """Nodes first, then ranks that stand alone; the slowest before the others."""
    over = _over(ranks)
    slow = {rank.number: over[rank.number] for rank in ranks if rank.number in over}
    nodes = _by_node(ranks)
    found = []
    for node, there in nodes.items():
        mine = [number for number in there if number in slow]
        if len(mine) > 1 and len(mine) >= PART_OF_NODE * len(there):
            found.append(_finding(Symptom.SLOW_NODE, node, median(slow.pop(number) for number in mine), now))
    found += [_finding(Symptom.SLOW_RANK, f"rank {number}", part, now) for number, part in slow.items()]
    return sorted(found, key=lambda one: (one.symptom != Symptom.SLOW_NODE, -one.observed, one.subject))


def _by_node(ranks: Sequence[Rank]) -> Mapping[str, list[int]]:
    nodes = defaultdict(list)
    for rank in ranks:
        nodes[rank.node].append(rank.number)
    return nodes


def _over(ranks: Sequence[Rank]) -> dict[int, float]:
    """How much longer than its group, for those who stand out of it."""
    groups = defaultdict(list)
    for rank in ranks:
        if len(rank.seconds) >= ENOUGH:
            groups[rank.group].append((median(rank.seconds), rank.number))
    found: dict[int, float] = {}
    for members in groups.values():
        middle = median(took for took, _ in members)
        noise = 1.4826 * median(abs(took - middle) for took, _ in members)
        limit = middle + max(OVER * middle, NOISES * noise)
        if len(members) > 2 and middle > 0:  # of two nobody can say which one is slow
            found |= {number: took / middle - 1 for took, number in members if took > limit}
    return found


def _finding(symptom: Symptom, subject: str, part: float, now: float) -> Finding:
    return Finding(
        symptom=symptom,
        since=now,
        subject=subject,
        observed=1 + part,
        expected=1.0,
        why=f"{subject[:1].upper()}{subject[1:]} computes {part:.0%} longer than those who do the same work.",
    )
