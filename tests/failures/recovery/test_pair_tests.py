"""Pair tests: two rounds find every faulty node and accuse no good one."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acmeweb.common.errors import InvalidField
from failures.recovery.rules.pair_tests import (
    MAX_TEST_NODES,
    GroupResult,
    estimate_spares,
    first_round_groups,
    pair_test_verdict,
    second_round_waves,
)


def ran(worlds, broken):
    return [GroupResult(nodes=world, passed=not set(world) & broken) for world in worlds]


def both_rounds(nodes, broken, known_good=()):
    first = ran(first_round_groups(nodes, known_good), broken)
    second = [one for wave in second_round_waves(nodes, first, known_good) for one in ran(wave, broken)]
    return pair_test_verdict(nodes, first, second, known_good)


def names(count):
    return [f"n{number}" for number in range(count)]


@pytest.mark.parametrize("count", range(2, 9))
def test_verdict_is_right_for_every_combination_of_faulty_nodes(count):
    """All subsets of up to eight nodes: with one good world all is found, without one nothing is claimed."""
    nodes = names(count)
    for broken in (set(some) for k in range(count + 1) for some in combinations(nodes, k)):
        verdict = both_rounds(nodes, broken)

        assert not verdict.faulty - broken and not verdict.good & broken
        if any(not set(world) & broken for world in first_round_groups(nodes)):
            assert verdict.faulty == broken and not verdict.unjudged
        else:
            assert set(verdict.unjudged) == set(nodes)
            assert set(verdict.unjudged.values()) == {"no partner is known to be good"}


@given(st.integers(1, 60), st.data())
def test_known_good_partner_finds_every_faulty_node(count, data):
    broken = data.draw(st.sets(st.sampled_from(names(count))))

    verdict = both_rounds(names(count), broken, known_good={"spare"})

    assert verdict.faulty == broken and verdict.good == set(names(count)) - broken


@given(st.integers(2, 200))
def test_round_one_uses_each_node_once_in_pairs_and_at_most_one_triple(count):
    worlds = first_round_groups(names(count))

    assert sorted(node for world in worlds for node in world) == sorted(names(count))
    assert sorted(len(world) for world in worlds)[:-1] == [2] * (len(worlds) - 1)
    assert len(worlds[-1]) == 2 + count % 2


def test_number_of_nodes_in_one_test_is_limited():
    assert len(first_round_groups(names(MAX_TEST_NODES))) == MAX_TEST_NODES // 2
    with pytest.raises(InvalidField, match="100001 exceed the limit of 100000"):
        first_round_groups(names(MAX_TEST_NODES + 1))


@given(st.integers(2, 40), st.data())
def test_wave_of_round_two_uses_each_node_at_most_once(count, data):
    broken = data.draw(st.sets(st.sampled_from(names(count))))

    for wave in second_round_waves(names(count), ran(first_round_groups(names(count)), broken)):
        busy = [node for world in wave for node in world]
        assert len(busy) == len(set(busy))


@given(st.integers(2, 30), st.data())
def test_every_node_gets_exactly_one_verdict_if_tests_did_not_run(count, data):
    nodes, answer = names(count), st.sampled_from([True, False, None])
    first = [GroupResult(nodes=world, passed=data.draw(answer)) for world in first_round_groups(nodes)]
    waves = second_round_waves(nodes, first)
    second = [GroupResult(nodes=world, passed=data.draw(answer)) for wave in waves for world in wave]

    verdict = pair_test_verdict(nodes, first, second)

    assert len(verdict.good) + len(verdict.faulty) + len(verdict.unjudged) == count
    assert verdict.good | verdict.faulty | set(verdict.unjudged) == set(nodes)


def test_group_that_never_ran_accuses_no_node():
    verdict = pair_test_verdict(["a", "b"], [GroupResult(nodes=("a", "b"), passed=None)], [])

    assert not verdict.faulty and "did not run" in verdict.unjudged["a"]


def test_nodes_that_fail_only_together_are_good_and_their_link_is_named():
    first = [GroupResult(nodes=("a", "b"), passed=False), GroupResult(nodes=("c", "d"), passed=True)]
    second = [GroupResult(nodes=("a", "c"), passed=True), GroupResult(nodes=("b", "d"), passed=True)]

    verdict = pair_test_verdict("abcd", first, second)

    assert verdict.good == set("abcd") and verdict.links == (("a", "b"),)
    assert "the link between a and b failed" in verdict.sentence


def test_single_node_needs_a_partner():
    assert first_round_groups(["a"]) == () and first_round_groups(["a"], ["a"]) == ()
    assert first_round_groups(["a"], ["s"])[0] == ("a", "s")


def test_failure_with_an_unknown_partner_accuses_neither():
    first = [GroupResult(nodes=("a", "b"), passed=False)]

    assert not pair_test_verdict("ab", first, [GroupResult(nodes=("a", "b"), passed=False)]).faulty


# --- spares


def test_four_spares_suffice_for_a_thousand_reliable_nodes():
    """One failure in 1,000 node-days that takes a day each: about one node of 1,024 is away at any moment."""
    estimate = estimate_spares(1024, failures_per_node_day=0.001, days_away=1, confidence=0.99)

    assert estimate.spares == 4 and estimate.enough >= 0.99 and "4 spares for 1024 nodes" in estimate.sentence


@given(st.integers(0, 3000), st.floats(0, 0.2), st.floats(0, 10), st.floats(0.5, 0.999))
def test_number_of_spares_is_the_smallest_that_suffices(nodes, rate, days, confidence):
    estimate = estimate_spares(nodes, failures_per_node_day=rate, days_away=days, confidence=confidence)

    assert 0 <= estimate.spares <= nodes
    assert estimate.enough >= confidence - 1e-6 or estimate.spares == nodes


@given(st.integers(0, 500), st.floats(0, 0.05), st.floats(0, 5))
def test_more_failures_never_need_fewer_spares(nodes, rate, days):
    calm = estimate_spares(nodes, failures_per_node_day=rate, days_away=days)

    assert estimate_spares(nodes, failures_per_node_day=rate * 2, days_away=days).spares >= calm.spares


@pytest.mark.parametrize(
    ("given_", "field"),
    [
        ({"nodes": -1}, "nodes"),
        ({"failures_per_node_day": float("nan")}, "failures_per_node_day"),
        ({"days_away": -2.0}, "days_away"),
        ({"confidence": 1.0}, "confidence"),
    ],
)
def test_invalid_input_is_rejected_with_the_name_of_the_parameter(given_, field):
    usual = {"nodes": 4, "failures_per_node_day": 0.1, "days_away": 1.0, "confidence": 0.99} | given_

    with pytest.raises(InvalidField, match=f"^{field}:"):
        estimate_spares(usual.pop("nodes"), **usual)
