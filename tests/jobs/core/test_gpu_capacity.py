"""GPU counts of a cluster and their bar."""

from itertools import pairwise

import pytest

from jobs.core.gpu_capacity import Capacity, NodeLoad, sum_capacity, total_capacity


def load(gpus=8, held=0, *, answers=True, is_schedulable=True):
    return NodeLoad(gpus=gpus, held=held, answers=answers, is_schedulable=is_schedulable)


def test_healthy_node_has_allocated_and_free_gpus():
    assert sum_capacity([load(held=3)]) == Capacity(allocated=3, free=5)


def test_held_gpus_of_a_drained_node_are_allocated_and_the_others_drained():
    assert sum_capacity([load(held=3, is_schedulable=False)]) == Capacity(allocated=3, drained=5)


def test_all_gpus_of_an_unresponsive_node_are_down():
    assert sum_capacity([load(held=3, answers=False, is_schedulable=False)]) == Capacity(down=8)


def test_several_clusters_have_their_capacity_together():
    both = total_capacity([Capacity(allocated=8, free=8), Capacity(allocated=4, drained=2, down=2)])

    assert (both, both.used_percent) == (Capacity(allocated=12, free=8, drained=2, down=2), 50)


@pytest.mark.parametrize("held", [0, 5, 8, 11])
def test_parts_sum_to_the_total(held):
    whole = sum_capacity([load(held=held), load(7, held, is_schedulable=False), load(3, held, answers=False)])

    assert whole.total == 18
    assert sum(part.gpus for part in whole.parts) == 18
    assert sum(part.share for part in whole.parts) == pytest.approx(100)


def test_each_part_starts_where_the_previous_one_ends():
    parts = Capacity(allocated=1, free=1, drained=1).parts

    for left, right in pairwise(parts):
        assert right.start == pytest.approx(left.start + left.share)


def test_empty_cluster_has_zero_percentages():
    assert Capacity().used_percent == 0
    assert [part.share for part in Capacity().parts] == [0, 0, 0, 0]
