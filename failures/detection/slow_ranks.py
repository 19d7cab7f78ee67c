"""Finds the rank that makes the other ranks wait, or the node if all its ranks are slow. Pure.

In a synchronous job each step takes as long as its slowest rank, so step times do not identify that rank. The time a
rank spends computing, without waiting for others, does. It is compared within the rank's parallel group only, because
other groups may have different work by design (the first and last pipeline stages).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from failures.detection.findings import DetectorFinding, SymptomType

MIN_RELATIVE_EXCESS = 0.15
NOISE_FACTOR = 6.0
MIN_MEASUREMENTS = 5  # of each rank
SLOW_NODE_FRACTION = 0.5  # of its ranks: from here on the node is named, not its ranks


@dataclass(frozen=True, kw_only=True)
class RankTimings:
    number: int
    group: str  # ranks with the same group do the same work
    node: str
    seconds: Sequence[float]  # compute time, of the same recent steps for all ranks


def detect_slow_ranks(ranks: Sequence[RankTimings], now: float) -> list[DetectorFinding]:
    """Slow nodes first, then single slow ranks; each sorted by how slow they are."""
    excess = _excess_by_rank(ranks)
    slow = {rank.number: excess[rank.number] for rank in ranks if rank.number in excess}
    findings = []
    for node, numbers in _ranks_by_node(ranks).items():
        affected = [number for number in numbers if number in slow]
        if len(affected) > 1 and len(affected) >= SLOW_NODE_FRACTION * len(numbers):
            part = median(slow.pop(number) for number in affected)
            findings.append(_slow_rank_finding(SymptomType.SLOW_NODE, node, part, now))
    findings += [
        _slow_rank_finding(SymptomType.SLOW_RANK, f"rank {number}", part, now) for number, part in slow.items()
    ]
    return sorted(findings, key=lambda item: (item.symptom != SymptomType.SLOW_NODE, -item.observed, item.subject))


def _ranks_by_node(ranks: Sequence[RankTimings]) -> Mapping[str, list[int]]:
    nodes = defaultdict(list)
    for rank in ranks:
        nodes[rank.node].append(rank.number)
    return nodes


def _excess_by_rank(ranks: Sequence[RankTimings]) -> dict[int, float]:
    """How much longer than its group each outlier computes, as a fraction; ranks within the noise are left out."""
    groups = defaultdict(list)
    for rank in ranks:
        if len(rank.seconds) >= MIN_MEASUREMENTS:
            groups[rank.group].append((median(rank.seconds), rank.number))
    excess: dict[int, float] = {}
    for members in groups.values():
        middle = median(took for took, _ in members)
        noise = 1.4826 * median(abs(took - middle) for took, _ in members)
        limit = middle + max(MIN_RELATIVE_EXCESS * middle, NOISE_FACTOR * noise)
        if len(members) > 2 and middle > 0:  # of two ranks, either one could be the slow one
            excess |= {number: took / middle - 1 for took, number in members if took > limit}
    return excess


def _slow_rank_finding(symptom: SymptomType, subject: str, part: float, now: float) -> DetectorFinding:
    title = f"Node {subject}" if symptom is SymptomType.SLOW_NODE else subject.capitalize()
    return DetectorFinding(
        symptom=symptom,
        since=now,
        subject=subject,
        observed=1 + part,
        expected=1.0,
        why=f"{title} computes {part:.0%} longer per step than ranks with the same work.",
    )
