"""Finds the faulty nodes among many: all-gather tests in pairs, in two rounds. Pure: the caller runs the pairs.

Round one groups all nodes in pairs (one group of three if their number is odd). Every node in a group that passed is
good. Round two tests each node of a failed group with a partner that is known to be good: if it fails again, it is
faulty. The cost is two all-gathers, however many nodes there are, as long as there are as many good partners as
suspects; with fewer, round two takes several waves. Nodes without a good partner are reported as not tested.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from acmeweb.common.errors import InvalidField

MAX_TEST_NODES = 100_000
NodeGroup = tuple[str, ...]  # nodes that run one all-gather together


@dataclass(frozen=True, kw_only=True)
class GroupResult:
    """The outcome of one group. `passed` is None if it is unknown: the test did not start, or the cluster lost it."""

    nodes: NodeGroup
    passed: bool | None
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class PairTestVerdict:
    """The verdict of both rounds. Every node is in exactly one of `good`, `faulty` and `unjudged`."""

    good: frozenset[str]
    faulty: frozenset[str]
    unjudged: dict[str, str]  # node → reason
    links: tuple[NodeGroup, ...] = ()  # failed together, although each passed with another partner

    @property
    def sentence(self) -> str:
        parts = [f"{len(self.good)} good"]
        if self.faulty:
            parts.append(f"faulty: {', '.join(sorted(self.faulty))}")
        if self.unjudged:
            parts.append(f"not tested: {', '.join(sorted(self.unjudged))}")
        parts += [f"the link between {' and '.join(link)} failed, both work with other nodes" for link in self.links]
        return "; ".join(parts) + "."


def first_round_groups(nodes: Collection[str], known_good: Collection[str] = ()) -> tuple[NodeGroup, ...]:
    """The groups of round one, each node once. A single node needs a partner from `known_good`."""
    suspects = sorted(set(nodes))
    if len(suspects) > MAX_TEST_NODES:
        raise InvalidField("nodes", f"{len(suspects)} exceed the limit of {MAX_TEST_NODES} for one test")
    if len(suspects) == 1:
        partners = sorted(set(known_good) - set(suspects))
        return ((suspects[0], partners[0]),) if partners else ()
    pairs = [tuple(suspects[at : at + 2]) for at in range(0, len(suspects), 2)]
    if len(suspects) % 2:
        last = pairs.pop()
        pairs[-1] += last
    return tuple(pair for pair in pairs if pair)


def second_round_waves(
    nodes: Collection[str], first: Sequence[GroupResult], known_good: Collection[str] = ()
) -> tuple[tuple[NodeGroup, ...], ...]:
    """The groups of round two, in waves that use each node once. Empty if no node failed or no partner is good."""
    suspects, partners = sorted(_nodes_that_only_failed(nodes, first)), sorted(_good_nodes(nodes, first, known_good))
    if not partners:
        return ()
    waves = [suspects[at : at + len(partners)] for at in range(0, len(suspects), len(partners))]
    return tuple(tuple(zip(wave, partners, strict=False)) for wave in waves)


def pair_test_verdict(
    nodes: Collection[str],
    first: Sequence[GroupResult],
    second: Sequence[GroupResult],
    known_good: Collection[str] = (),
) -> PairTestVerdict:
    """The verdict of both rounds. A node is faulty only if it fails with a partner that is known to be good."""
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
    """Nodes that passed with any partner, and known good nodes that are not under test themselves."""
    passed = {node for world in first if world.passed for node in world.nodes}
    failed = {node for world in first if world.passed is False for node in world.nodes} - set(known_good)
    return (passed | (set(known_good) - set(nodes))) - failed


def _nodes_that_only_failed(nodes: Collection[str], first: Iterable[GroupResult]) -> set[str]:
    failed = {node for world in first if world.passed is False for node in world.nodes}
    passed = {node for world in first if world.passed for node in world.nodes}
    return (failed - passed) & set(nodes)


def _failing_suspect(world: GroupResult, partners: set[str]) -> set[str]:
    """The one node that is not known to be good; empty if two are unknown, because either could be the cause."""
    unknown = set(world.nodes) - partners
    return unknown if len(unknown) == 1 and len(world.nodes) > 1 else set()


def _undetermined_reason(node: str, suspects: set[str], partners: set[str]) -> str:
    if node not in suspects:
        return "its test did not run, or its result is unknown"
    return "its second test did not run" if partners - {node} else "no partner is known to be good"


def _failed_links(first: Iterable[GroupResult], good: set[str]) -> tuple[NodeGroup, ...]:
    return tuple(world.nodes for world in first if world.passed is False and set(world.nodes) <= good)


# --- spares


@dataclass(frozen=True, kw_only=True)
class SpareEstimate:
    """How many nodes to keep free, and how the number was calculated."""

    nodes: int
    spares: int
    away: float  # fraction of time that a node is unavailable
    enough: float  # probability that this many spares suffice
    sentence: str


def estimate_spares(
    nodes: int, *, failures_per_node_day: float, days_away: float, confidence: float = 0.99
) -> SpareEstimate:
    """The smallest number of spares that suffices with this confidence, if nodes fail independently.

    A node that fails r times a day and is unavailable for d days each time is unavailable with probability
    p = r·d / (1 + r·d). The number of nodes that are unavailable at the same time is binomial.
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
        f"{count} spares for {nodes} nodes: each node is unavailable {away:.3%} of the time, and at most {count} are "
        f"unavailable at once {enough:.1%} of the time."
    )
    return SpareEstimate(nodes=nodes, spares=count, away=away, enough=enough, sentence=sentence)


def _validate_spare_inputs(nodes: int, rate: float, days: float, confidence: float) -> None:
    if not 0 <= nodes <= MAX_TEST_NODES:
        raise InvalidField("nodes", f"{nodes} is not between 0 and {MAX_TEST_NODES}")
    for name, value in (("failures_per_node_day", rate), ("days_away", days)):
        if not (math.isfinite(value) and value >= 0):
            raise InvalidField(name, f"{value} is not a number of 0 or more")
    if not 0 < confidence < 1:
        raise InvalidField("confidence", f"{confidence} is not between 0 and 1")


def _binomial_probability(nodes: int, away: int, p: float) -> float:
    """The probability that exactly this many are unavailable. Uses logarithms: (1 - p) ** thousands underflows to 0."""
    if p <= 0:
        return 1.0 if away == 0 else 0.0
    ways = math.lgamma(nodes + 1) - math.lgamma(away + 1) - math.lgamma(nodes - away + 1)
    return math.exp(ways + away * math.log(p) + (nodes - away) * math.log1p(-p))
