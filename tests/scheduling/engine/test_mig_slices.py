"""MIG slices: which nodes and slices a request may get, and why it waits."""

from dataclasses import replace

import pytest

from scheduling.core.free_capacity import free_capacity
from scheduling.engine.cluster import ClusterSnapshot, ResourceRequest, RunningJob
from scheduling.engine.placements import PLACEMENTS, PlacementContext
from scheduling.engine.policies import LIVE_POLICIES
from scheduling.engine.resources import ALL_NODES, NodeResources
from tests.make import NOON
from tests.scheduling.engine.test_engine import decide, node, waiting

MILLI = {"1g.10gb": 142, "1g.20gb": 142, "3g.40gb": 428}


def divided(number, *slices, free_gpus=2, **fields):
    """A node with two GPUs and these slices: (profile, whether it is free)."""
    return node(
        number,
        gpus=2,
        free_gpus=tuple(range(free_gpus)),
        shards_per_gpu=0,
        shared_gpus=tuple((2 + at, MILLI[profile] if free else 0) for at, (profile, free) in enumerate(slices)),
        mig_profiles=tuple(profile for profile, _ in slices),
        **fields,
    )


def slice_of(profile, **fields):
    return ResourceRequest(gpu_milli=MILLI[profile], mig_profile=profile, **{"cpus": 0, **fields})


@pytest.mark.parametrize("name", sorted(PLACEMENTS))
def test_slice_is_of_the_requested_profile(name):
    """Profiles with equal compute differ in memory, and a larger slice is no substitute."""
    nodes = [divided(1, ("1g.20gb", True), ("3g.40gb", True)), divided(2, ("1g.20gb", True), ("1g.10gb", True))]
    resources = NodeResources(nodes)
    need = slice_of("1g.10gb")
    place = PLACEMENTS[name](PlacementContext(typical_requests={need: 1}))

    places = place(resources, need, resources.matching_nodes(need))

    assert places == ((1, 1),)
    resources.take(places, need)
    assert place(resources, need, resources.matching_nodes(need)) is None
    assert resources.free == [2, 2]  # whole GPUs are not touched
    resources.give(places, need)
    assert place(resources, need, ALL_NODES & resources.matching_nodes(need)) == ((1, 1),)


def test_shares_and_whole_gpus_do_not_use_slices():
    resources = NodeResources([divided(1, ("1g.10gb", True), free_gpus=0)])

    assert resources.matching_nodes(ResourceRequest(gpu_milli=142, cpus=0)) == 0
    assert resources.fitting_nodes(ResourceRequest(gpus=1, cpus=0)) == 0


@pytest.mark.parametrize("policy", sorted(LIVE_POLICIES))
def test_slices_start_until_none_is_free(policy):
    view = divided(1, ("1g.10gb", True), ("1g.10gb", False), ("1g.10gb", True))
    jobs = tuple(waiting(number, need=slice_of("1g.10gb", cpus=1)) for number in (1, 2, 3))

    made = decide(policy, [view], *jobs)

    assert [(one.job_id, dict(one.places), one.gpu_milli) for one in made.starts] == [
        (1, {1: (2,)}, 0),
        (2, {1: (4,)}, 0),
    ]
    assert made.starts[0].why.startswith("A MIG slice 1g.10gb was free")
    (left,) = made.waits
    assert left.why == "It needs a MIG slice 1g.10gb; no node has one free (0 of 3 slices 1g.10gb free in total)."


def test_waiting_slice_names_what_its_node_lacks():
    view = divided(1, ("1g.10gb", True), free_cpus=3)

    made = decide("fifo", [view], waiting(1, need=slice_of("1g.10gb", cpus=4)))

    assert made.waits[0].why == (
        "It needs a MIG slice 1g.10gb; no node has one free with 4 CPUs (1 of 1 slices 1g.10gb free in total)."
    )


@pytest.mark.parametrize("policy", sorted(LIVE_POLICIES))
def test_slice_of_a_running_job_comes_back_at_its_end(policy):
    """Policies that plan ahead release the slice at the same position."""
    view = divided(1, ("1g.10gb", False), ("3g.40gb", True))
    held = RunningJob(
        id=7, name="held", team="a", kind="evaluation", gpus=0, priority=0, places={1: 0}, gpu_milli=142, shared_gpu=2,
        started_at=NOON, cpus=1,
    )  # fmt: skip
    job = waiting(1, need=slice_of("1g.10gb", cpus=1))

    made = decide(policy, [view], job, running=(held,))

    assert not made.starts and "MIG slice 1g.10gb" in made.waits[0].why


def test_free_capacity_counts_slices_of_the_profile():
    nodes = divided(1, ("1g.10gb", False), ("1g.10gb", True), ("3g.40gb", True)), node(2)
    picture = ClusterSnapshot(now=NOON, nodes=nodes)

    found = free_capacity(picture, slice_of("1g.10gb"))

    assert (found.nodes, found.gpus, found.free_gpus, found.fitting) == (1, 2, 1, 1)
    assert free_capacity(replace(picture, nodes=picture.nodes[1:]), slice_of("1g.10gb")).nodes == 0
