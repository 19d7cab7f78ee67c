"""Sparklines: scaling, gaps and reduction of long series."""

import math

import pytest

from jobs.core.charts import sparkline


def points(values):
    return [tuple(map(float, pair.split(","))) for pair in sparkline.sparkline_points(values).split()]


def test_lowest_value_is_at_the_bottom_and_highest_at_the_top():
    assert points([1, 3, 2]) == [(0, 20), (50, 0), (100, 10)]


@pytest.mark.parametrize("values", [[], [1], [None, 2], [math.nan, math.inf, 1]])
def test_fewer_than_two_values_draw_no_line(values):
    assert sparkline.sparkline_points(values) == ""


def test_missing_values_leave_a_gap():
    assert points([1, math.nan, None, 2]) == [(0, 20), (100, 0)]


@pytest.mark.parametrize(("values", "heights"), [([90, 92], [11, 9]), ([5, 5], [10, 10]), ([0, 50], [20, 0])])
def test_small_changes_look_small_beside_the_least_range(values, heights):
    drawn = sparkline.sparkline_points(values, least_range=20).split()

    assert [float(pair.split(",")[1]) for pair in drawn] == heights


def test_constant_series_is_a_horizontal_line():
    assert {y for _, y in points([5, 5, 5])} == {20}


def test_long_series_is_reduced_and_keeps_its_last_value():
    drawn = points([float(number) for number in range(1000)])

    assert len(drawn) == sparkline.MAX_POINTS
    assert drawn[-1] == (100, 0)
