"""Corrections of the GPU indices of one node."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.loops.observe.observations import HeldGpus, index_corrections

HALF = 500


def corrected(held, of_cluster):
    """What the attempts hold after the corrections."""
    after = {attempt: list(one.indices) for attempt, one in held.items()}
    for attempt, old, new in index_corrections(held, of_cluster):
        after[attempt][held[attempt].indices.index(old)] = new
    return {attempt: sorted(indices) for attempt, indices in after.items()}


def whole(**held):
    return {name: HeldGpus(indices) for name, indices in held.items()}


CASES = {
    "two attempts swap": (whole(a=[0], b=[1]), {"a": [1], "b": [0]}, {"a": [1], "b": [0]}),
    "three attempts in a cycle": (
        whole(a=[0, 1], b=[2, 3], c=[4, 5]),
        {"a": [2, 3], "b": [4, 5], "c": [0, 1]},
        {"a": [2, 3], "b": [4, 5], "c": [0, 1]},
    ),
    "the other one has not started": (whole(a=[0], b=[1]), {"a": [1]}, {"a": [1], "b": [0]}),
    "a cycle of which one is not known": (
        whole(a=[0], b=[1], c=[2]),
        {"a": [1], "b": [2]},
        {"a": [1], "b": [2], "c": [0]},
    ),
    "a GPU that is free": (whole(a=[0], b=[1]), {"a": [5]}, {"a": [5], "b": [1]}),
    "another number of GPUs": (whole(a=[0, 1], b=[2]), {"a": [2]}, {"a": [0, 1], "b": [2]}),
    "two attempts with the same GPU": (whole(a=[0], b=[1]), {"a": [2], "b": [2]}, {"a": [0], "b": [1]}),
    "shares of one GPU move together": (
        {"a": HeldGpus([0]), "b": HeldGpus([1], HALF), "c": HeldGpus([1], HALF)},
        {"a": [1]},
        {"a": [1], "b": [0], "c": [0]},
    ),
    "shares that fit stay": (
        {"a": HeldGpus([0], HALF), "b": HeldGpus([1], HALF)},
        {"a": [1]},
        {"a": [1], "b": [1]},
    ),
}


@pytest.mark.parametrize(("held", "of_cluster", "after"), CASES.values(), ids=CASES)
def test_attempts_hold_what_the_cluster_gave_them(held, of_cluster, after):
    assert corrected(held, of_cluster) == after


@given(st.permutations(range(8)), st.permutations(range(8)), st.sets(st.integers(0, 3)))
def test_reports_about_any_of_the_attempts_are_always_followed(promised, actual, known):
    held = {n: HeldGpus(promised[2 * n : 2 * n + 2]) for n in range(4)}
    of_cluster = {n: actual[2 * n : 2 * n + 2] for n in known}

    after = corrected(held, of_cluster)

    assert sorted(index for indices in after.values() for index in indices) == list(range(8))
    assert all(after[n] == sorted(gpus) for n, gpus in of_cluster.items())
