"""Which of many nodes is the broken one: all-gather in pairs, twice. Pure; who runs the pairs is told the outcome.

Round one puts all nodes into worlds of two (one of three if their number is odd). Whoever was in a world that passed is
good. Round two lets each node of a failed world meet a partner that is known to be good: failing again, it is faulty.
The cost is two all-gathers, however many nodes there are, as long as there are as many good partners as suspects; with
fewer, round two takes several waves. A node that nobody good can meet is not judged, and that is said.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

MAX_TEST_NODES = 100_000


class InvalidPairTest(ValueError):
    """What was asked cannot be tested; the message says why."""


@dataclass(frozen=True, kw_only=True)
class NodeGroup:
    """Nodes that run one all-gather together."""

    nodes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class GroupResult:
    """`passed` is None where nobody knows: it did not start, or the cluster lost it. That says nothing of a node."""

    nodes: tuple[str, ...]
    passed: bool | None
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class PairTestVerdict:
    """Every tested node is in exactly one of the first three."""

    good: frozenset[str]
    faulty: frozenset[str]
    unjudged: dict[str, str]  # and why
    links: tuple[tuple[str, ...], ...] = ()  # failed together, and each passed with another partner

    @property
    def sentence(self) -> str:
        parts = [f"{len(self.good)} good"]
        if self.faulty:
            parts.append(f"faulty: {', '.join(sorted(self.faulty))}")
        if self.unjudged:
            parts.append(f"not judged: {', '.join(sorted(self.unjudged))}")
        parts += [f"the path between {' and '.join(link)} failed, both work with others" for link in self.links]
        return "; ".join(parts) + "."


def first_round_groups(nodes: Collection[str], known_good: Collection[str] = ()) -> tuple[NodeGroup, ...]:
    """Everybody once. A single node needs a partner from `known_good`."""
    suspects = sorted(set(nodes))
    if len(suspects) > MAX_TEST_NODES:
        raise InvalidPairTest(f"nodes: {len(suspects)} are more than the {MAX_TEST_NODES} that one test takes")
    if len(suspects) == 1:
        partners = sorted(set(known_good) - set(suspects))
        return (NodeGroup(nodes=(suspects[0], partners[0])),) if partners else ()
    pairs = [tuple(suspects[at : at + 2]) for at in range(0, len(suspects), 2)]
    if len(suspects) % 2:
        last = pairs.pop()
        pairs[-1] += last
    return tuple(NodeGroup(nodes=pair) for pair in pairs if pair)


def second_round_waves(
    nodes: Collection[str], first: Sequence[GroupResult], known_good: Collection[str] = ()
) -> tuple[tuple[NodeGroup, ...], ...]:
    """Waves of worlds; in a wave nobody is in two. Empty: nobody failed, or no partner is known to be good."""
    suspects, partners = sorted(_nodes_that_only_failed(nodes, first)), sorted(_good_nodes(nodes, first, known_good))
    if not partners:
        return ()
    waves = [suspects[at : at + len(partners)] for at in range(0, len(suspects), len(partners))]
    return tuple(
        tuple(NodeGroup(nodes=(one, partner)) for one, partner in zip(wave, partners, strict=False)) for wave in waves
    )


def pair_test_verdict(
    nodes: Collection[str],
    first: Sequence[GroupResult],
    second: Sequence[GroupResult],
    known_good: Collection[str] = (),
) -> PairTestVerdict:
    """What both rounds say. Only failing beside a partner that is known to be good makes a node faulty."""
    tested, partners = set(nodes), _good_nodes(nodes, first, known_good)
    suspects = _nodes_that_only_failed(nodes, first)
    cleared = {node for world in second if world.passed for node in world.nodes} & suspects
    faulty = {
        node for world in second if world.passed is False for node in _failing_suspect(world, partners)
    } & suspects
    faulty -= cleared
    good = (partners & tested) | cleared
    unjudged = {node: _undetermined_reason(node, suspects, partners) for node in tested - good - faulty}
    return PairTestVerdict(
        good=frozenset(good),
        faulty=frozenset(faulty),
        unjudged=unjudged,
        links=_failed_links(first, cleared | partners),
    )


def _good_nodes(nodes: Collection[str], first: Iterable[GroupResult], known_good: Collection[str]) -> set[str]:
    """Who passed with somebody, and partners from elsewhere; those never while they are under test themselves."""
    passed = {node for world in first if world.passed for node in world.nodes}
    failed = {node for world in first if world.passed is False for node in world.nodes} - set(known_good)
    return (passed | (set(known_good) - set(nodes))) - failed


def _nodes_that_only_failed(nodes: Collection[str], first: Iterable[GroupResult]) -> set[str]:
    failed = {node for world in first if world.passed is False for node in world.nodes}
    passed = {node for world in first if world.passed for node in world.nodes}
    return (failed - passed) & set(nodes)


def _failing_suspect(world: GroupResult, partners: set[str]) -> set[str]:
    """The one that is not known to be good; of two unknown nodes neither can be accused."""
    unknown = set(world.nodes) - partners
    return unknown if len(unknown) == 1 and len(world.nodes) > 1 else set()


def _undetermined_reason(node: str, suspects: set[str], partners: set[str]) -> str:
    if node not in suspects:
        return "its world did not run, or nobody knows how it came out"
    return "its second world did not run" if partners - {node} else "no partner is known to be good"


def _failed_links(first: Iterable[GroupResult], good: set[str]) -> tuple[tuple[str, ...], ...]:
    return tuple(world.nodes for world in first if world.passed is False and set(world.nodes) <= good)


# --- spares


@dataclass(frozen=True, kw_only=True)
class SpareEstimate:
    """How many nodes to keep free, and how that was reckoned."""

    nodes: int
    spares: int
    away: float  # the share of time that a node is away
    enough: float  # how likely that many suffice
    sentence: str


def estimate_spares(
    nodes: int, *, failures_per_node_day: float, days_away: float, confidence: float = 0.99
) -> SpareEstimate:
    """The fewest spares that suffice with this confidence, if nodes fail apart from each other.

    A node is away with p = r·d / (1 + r·d): it fails r times a day and each time stays away d days. The number that is
    away at once is binomial.
    """
    _validate_spare_inputs(nodes, failures_per_node_day, days_away, confidence)
    load = failures_per_node_day * days_away
    away = load / (1 + load)
    count, covered = 0, _binomial_probability(nodes, 0, away)
    while covered < confidence and count < nodes:
        count += 1
        covered += _binomial_probability(nodes, count, away)
    enough = min(covered, 1.0)
    sentence = (
        f"{count} spares for {nodes} nodes: each is away {away:.3%} of the time, and no more than {count} are away "
        f"at once {enough:.1%} of the time."
    )
    return SpareEstimate(nodes=nodes, spares=count, away=away, enough=enough, sentence=sentence)


def _validate_spare_inputs(nodes: int, rate: float, days: float, confidence: float) -> None:
    if not 0 <= nodes <= MAX_TEST_NODES:
        raise InvalidPairTest(f"nodes: {nodes} is not between 0 and {MAX_TEST_NODES}")
    for name, value in (("failures_per_node_day", rate), ("days_away", days)):
        if not (math.isfinite(value) and value >= 0):
            raise InvalidPairTest(f"{name}: {value} is not a number of 0 or more")
    if not 0 < confidence < 1:
        raise InvalidPairTest(f"confidence: {confidence} is not between 0 and 1")


def _binomial_probability(nodes: int, away: int, p: float) -> float:
    """Exactly so many of them at once; by logarithms, because (1 - p) to the power of thousands is 0."""
    if p <= 0:
        return 1.0 if away == 0 else 0.0
    ways = math.lgamma(nodes + 1) - math.lgamma(away + 1) - math.lgamma(nodes - away + 1)
    return math.exp(ways + away * math.log(p) + (nodes - away) * math.log1p(-p))
