"""A line of a few pixels: within its box, the newest at the right, without what is no number."""

import math

import pytest

from jobs.core import sparkline


def points(values):
    return [tuple(map(float, pair.split(","))) for pair in sparkline.sparkline_points(values).split()]


def test_the_lowest_is_at_the_bottom_and_the_highest_at_the_top():
    assert points([1, 3, 2]) == [(0, 20), (50, 0), (100, 10)]


@pytest.mark.parametrize("values", [[], [1], [None, 2], [math.nan, math.inf, 1]])
def test_less_than_two_numbers_are_no_line(values):
    assert sparkline.sparkline_points(values) == ""


def test_what_is_no_number_leaves_its_place_free():
    assert points([1, math.nan, None, 2]) == [(0, 20), (100, 0)]


def test_a_flat_line_is_flat():
    assert {y for _, y in points([5, 5, 5])} == {20}


def test_a_long_series_is_thinned_and_keeps_its_end():
    found = points([float(number) for number in range(1000)])

    assert len(found) == sparkline.MAX_POINTS
    assert found[-1] == (100, 0)
