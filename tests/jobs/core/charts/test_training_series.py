"""Throughput between reports, and the steps that a restart repeats."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from jobs.core.charts.training_series import TokenCount, repeated_from_steps, tokens_per_second

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def counts(*values):
    return [TokenCount(at=NOON + timedelta(seconds=at), tokens=tokens) for at, tokens in values]


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        ([], []),
        ([(0, 100)], [None]),
        ([(0, 100), (10, 1100), (30, 1100)], [None, 100.0, 0.0]),
        ([(0, 100), (10, None), (20, 300)], [None, None, None]),
        ([(0, 500), (10, 100), (20, 300)], [None, None, 20.0]),
        ([(0, 100), (0, 300)], [None, None]),
    ],
)
def test_throughput_is_known_only_between_two_growing_token_counts(reported, expected):
    assert tokens_per_second(counts(*reported)) == expected


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([], []),
        ([[1, 2, 3]], [None]),
        ([[1, 2, 3], [4, 5]], [None, None]),
        ([[1, 5, 9], [6, 7, 12]], [6, None]),
        ([[1, 5, 9], [], [6, 8]], [6, None, None]),
        ([[1, 5, 9], [6, 8], [3, 4]], [3, 3, None]),
        ([[1, 5, 9], [0, 4]], [0, None]),
    ],
)
def test_a_restart_repeats_the_steps_after_its_checkpoint(steps, expected):
    assert repeated_from_steps(steps) == expected
