"""Samples of one node are aggregated to one value per GPU."""

from datetime import UTC, datetime

import pytest

from jobs.core.telemetry_math import aggregate_per_gpu, interval_start

ROWS = [[10, 80, None], [20, None], [60, 70, None, 5]]


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("gpu_util", [30, 75, None, 5]),
        ("gpu_temperature_c", [60, 80, None, 5]),
        ("xid", [60, 70, None, 5]),
    ],
)
def test_column_is_aggregated_in_its_own_way(column, values):
    assert aggregate_per_gpu(column, ROWS) == values


def test_no_samples_give_no_values():
    assert aggregate_per_gpu("gpu_util", []) == []


def test_interval_contains_the_time():
    at = datetime(2026, 1, 1, 12, 7, 31, tzinfo=UTC)

    assert interval_start(at, 300) == datetime(2026, 1, 1, 12, 5, tzinfo=UTC)
    assert interval_start(interval_start(at, 300), 300) == datetime(2026, 1, 1, 12, 5, tzinfo=UTC)
