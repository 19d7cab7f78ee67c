"""GPU shares: what is left of each GPU, and where a share is placed."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.zoo_systems.placements import BestFitPlacement, RandomPlacement
from jobs.core.gpu_shares import WHOLE_GPU
from scheduling.engine.cluster import ResourceRequest
from scheduling.engine.placement import consolidate, pack, spread
from scheduling.engine.placements.gradient import Fragmentation, GradientPlacement
from scheduling.engine.resources import ALL_NODES, NodeResources
from tests.properties import examples
from tests.scheduling.engine.test_placements import node, room

TYPICAL = {ResourceRequest(gpus=8, cpus=0): 1, ResourceRequest(gpu_milli=500, cpus=0): 1}
PLACE = {
    "consolidate": consolidate,
    "pack": pack,
    "spread": spread,
    "gradient": GradientPlacement(TYPICAL),
    "random": RandomPlacement(Random(1)),
    "best-fit": BestFitPlacement(),
}


def share(thousandths):
    return ResourceRequest(gpu_milli=thousandths, cpus=0)


def left_in(resources):
    shared = (free for left in resources.shared.values() for free in left if free < WHOLE_GPU)
    return resources.free_gpus * WHOLE_GPU + sum(shared)


def hold(resources, *amounts, node=0):
    """Let shares of these amounts hold GPUs of their own."""
    for position, amount in enumerate(amounts):
        resources.take(((node, position),), share(amount))
    return resources


requests = st.lists(
    st.builds(share, st.integers(1, 999)) | st.builds(ResourceRequest, gpus=st.integers(1, 4), cpus=st.just(0)),
    max_size=30,
)


@given(free=st.lists(st.integers(0, 8), min_size=1, max_size=4), needs=requests, name=st.sampled_from(sorted(PLACE)))
@examples(200)
def test_no_gpu_is_given_twice_and_everything_comes_back(free, needs, name):
    resources = room(*free)
    held = []
    for need in needs:
        before = left_in(resources)
        if places := PLACE[name](resources, need, ALL_NODES):
            resources.take(places, need)
            held.append((places, need))
            assert left_in(resources) == before - need.gpus * WHOLE_GPU - need.gpu_milli
        assert all(0 <= left <= WHOLE_GPU for shared in resources.shared.values() for left in shared)
        assert all(count >= 0 for count in resources.free)

    for places, need in held:
        resources.give(places, need)

    assert resources.free == free
    assert left_in(resources) == sum(free) * WHOLE_GPU


@pytest.mark.parametrize("name", PLACE)
def test_share_is_placed_exactly_where_it_fits(name):
    resources = hold(room(1), 600)

    assert PLACE[name](resources, share(400), ALL_NODES) == ((0, 0),)
    assert PLACE[name](resources, share(401), ALL_NODES) is None
    assert PLACE[name](resources, ResourceRequest(gpus=1, cpus=0), ALL_NODES) is None


def test_consolidate_fills_the_gpu_with_the_least_left():
    resources = hold(room(8), 300, 600)

    assert consolidate(resources, share(400)) == ((0, 1),)
    assert consolidate(resources, share(700)) == ((0, 0),)
    assert consolidate(resources, share(701)) == ((0, 2),)


def test_spread_opens_another_gpu_on_the_emptiest_node():
    resources = hold(room(8, 6), 300)

    assert spread(resources, share(100)) == ((0, 1),)


def test_gpu_that_is_wholly_free_again_serves_whole_jobs_and_later_shares():
    resources = hold(room(1), 300)
    resources.give(((0, 0),), share(300))

    assert consolidate(resources, ResourceRequest(gpus=1, cpus=0)) == ((0, 1),)
    assert consolidate(resources, share(999)) == ((0, 0),)


def test_shared_gpus_of_a_closed_node_are_not_used():
    resources = hold(room(1, 1), 300)
    resources.close(0)

    assert consolidate(resources, share(300)) == ((1, 0),)


def test_a_copy_is_independent():
    resources = hold(room(1), 300)
    hold(resources.copy(), 500)

    assert resources.shared == {0: [700]}


def test_gradient_keeps_a_node_whole_for_the_job_that_needs_it():
    resources = hold(room(8, 8), 500)

    assert GradientPlacement(TYPICAL)(resources, share(500), ALL_NODES) == ((0, 0),)
    assert GradientPlacement(TYPICAL)(resources, share(600), ALL_NODES) == ((0, 1),)


@pytest.mark.parametrize(("gres", "nodes"), [("mps", 0b10), ("shard", 0b01), ("", 0b11)])
def test_share_that_names_its_resource_gets_no_other(gres, nodes):
    resources = NodeResources([node(0), replace(node(1), share_gres="mps", shares_one_gpu=True)])

    assert resources.matching_nodes(replace(share(500), share_gres=gres)) == nodes


def test_fragmentation_of_shared_gpus():
    usual = Fragmentation({ResourceRequest(gpus=1, cpus=0): 1, share(300): 1})

    # What is left on shared GPUs is lost for whole GPUs, and a rest of less than 0.3 GPUs for shares too
    assert usual.of((1, (200, 400), 0, 0)) == pytest.approx(0.5 * 0.6 + 0.5 * 0.2)
    assert usual.of((0, (200, 250), 0, 0)) == pytest.approx(0.45)


@pytest.mark.parametrize("name", sorted(PLACE))
def test_node_with_mps_shares_one_gpu_at_a_time(name):
    """Slurm uses no other GPU with MPS until the last share of the first one has ended."""
    resources = NodeResources([replace(node(0, free=2), shares_one_gpu=True)])
    place, half, small = PLACE[name], share(500), share(200)

    first = place(resources, half, ALL_NODES)
    resources.take(first, half)
    resources.take(place(resources, half, ALL_NODES), half)

    assert resources.fitting_nodes(small) == 0 and place(resources, small, ALL_NODES) is None
    assert not resources.has_free(((0, 1),), small)
    assert place(resources, ResourceRequest(gpus=1, cpus=0), ALL_NODES) == ((0, 1),)
    resources.give(first, half)
    assert place(resources, small, ALL_NODES) == first
    resources.give(first, half)
    assert place(resources, small, ALL_NODES) is not None
