"""Samples that NumPy writes in the binary format of COPY."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest

from jobs.models import Resolution, Sample, bulk_copy
from scheduling.simulation.demo.history.sample_copy import COLUMNS, GPU_COLUMNS, HEADER, TRAILER, sample_rows
from tests import make

NAN = float("nan")


def copied(numbers, values):
    """The samples of a node, in the order of time."""
    node = make.node()
    with bulk_copy.copy_into(Sample._meta.db_table, COLUMNS, "(FORMAT binary)") as copy:
        copy.write(HEADER)
        copy.write(sample_rows(node.pk, Resolution.FIVE_MINUTES, make.NOON, np.array(numbers, dtype=int), values))
        copy.write(TRAILER)
    return list(Sample.objects.filter(node=node, resolution=Resolution.FIVE_MINUTES).order_by("at"))


def columns_of(row):
    return [getattr(row, name) for name in GPU_COLUMNS]


@pytest.mark.django_db
def test_rows_have_the_values_of_their_intervals():
    values = [np.array([[column, 0.5], [column, 1.5], [column, 2.5]]) for column in range(5)]

    first, last = copied([0, 2], values)

    assert (first.at, last.at) == (make.NOON, make.NOON + timedelta(minutes=10))
    assert columns_of(first) == [[column, 0.5] for column in range(5)]
    assert columns_of(last) == [[column, 2.5] for column in range(5)]
    assert (first.gpu_energy_mj, first.node_power_w, first.counted) == ([], None, {})


@pytest.mark.django_db
def test_gpu_without_reading_is_null():
    values = [np.array([[1.0, 2.0], [3.0, 4.0]]) for _ in range(5)]
    values[0][1, 0] = values[3][1, 0] = values[3][1, 1] = NAN

    whole, broken = copied([0, 1], values)

    assert columns_of(whole) == [[1.0, 2.0]] * 5
    assert columns_of(broken) == [[None, 4.0], [3.0, 4.0], [3.0, 4.0], [None, None], [3.0, 4.0]]


@pytest.mark.django_db
def test_node_that_was_down_all_the_time_has_no_rows():
    assert copied([], [np.zeros((3, 8))] * 5) == []
