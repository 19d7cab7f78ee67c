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

from failures.detection.findings import DetectorFinding, SymptomType

MIN_RELATIVE_EXCESS = 0.15
NOISE_FACTOR = 6.0
MIN_MEASUREMENTS = 5  # measurements of each rank
SLOW_NODE_FRACTION = 0.5


@dataclass(frozen=True, kw_only=True)
class RankTimings:
    number: int
    group: str  # those who do the same work
    node: str
    seconds: Sequence[float]  # computing, of the same last steps


def detect_slow_ranks(ranks: Sequence[RankTimings], now: float) -> list[DetectorFinding]:
    """Nodes first, then ranks that stand alone; the slowest before the others."""
    over = _excess_by_rank(ranks)
    slow = {rank.number: over[rank.number] for rank in ranks if rank.number in over}
    nodes = _ranks_by_node(ranks)
    found = []
    for node, there in nodes.items():
        mine = [number for number in there if number in slow]
        if len(mine) > 1 and len(mine) >= SLOW_NODE_FRACTION * len(there):
            found.append(
                _slow_rank_finding(SymptomType.SLOW_NODE, node, median(slow.pop(number) for number in mine), now)
            )
    found += [_slow_rank_finding(SymptomType.SLOW_RANK, f"rank {number}", part, now) for number, part in slow.items()]
    return sorted(found, key=lambda one: (one.symptom != SymptomType.SLOW_NODE, -one.observed, one.subject))


def _ranks_by_node(ranks: Sequence[RankTimings]) -> Mapping[str, list[int]]:
    nodes = defaultdict(list)
    for rank in ranks:
        nodes[rank.node].append(rank.number)
    return nodes


def _excess_by_rank(ranks: Sequence[RankTimings]) -> dict[int, float]:
    """How much longer than its group, for those who stand out of it."""
    groups = defaultdict(list)
    for rank in ranks:
        if len(rank.seconds) >= MIN_MEASUREMENTS:
            groups[rank.group].append((median(rank.seconds), rank.number))
    found: dict[int, float] = {}
    for members in groups.values():
        middle = median(took for took, _ in members)
        noise = 1.4826 * median(abs(took - middle) for took, _ in members)
        limit = middle + max(MIN_RELATIVE_EXCESS * middle, NOISE_FACTOR * noise)
        if len(members) > 2 and middle > 0:  # of two nobody can say which one is slow
            found |= {number: took / middle - 1 for took, number in members if took > limit}
    return found


def _slow_rank_finding(symptom: SymptomType, subject: str, part: float, now: float) -> DetectorFinding:
    return DetectorFinding(
        symptom=symptom,
        since=now,
        subject=subject,
        observed=1 + part,
        expected=1.0,
        why=f"{subject[:1].upper()}{subject[1:]} computes {part:.0%} longer than those who do the same work.",
    )
