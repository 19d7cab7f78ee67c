"""Which borrowers stop for a claim: by CPUs and memory, and where a placement needs more than the fewest nodes."""

import pytest

from scheduling.engine.cluster import ResourceRequest
from scheduling.engine.engine import Engine, EngineJob
from scheduling.engine.placement import consolidate
from scheduling.engine.policies.acme import AcmeRules
from scheduling.engine.resources import NodeResources
from tests.make import NOON
from tests.scheduling.engine.test_acme_policy import MINUTE, decide, runs, started, stopped
from tests.scheduling.engine.test_engine import node, waiting


def lost(minutes):
    """When a borrower saved that loses this many minutes of work."""
    return NOON - minutes * MINUTE


def need(gpus=1, cpus=0, memory_mb=0, **fields):
    return ResourceRequest(gpus=gpus, cpus=cpus, memory_mb=memory_mb, **fields)


# --- CPUs and memory


@pytest.mark.parametrize("resource", ["cpus", "memory_mb"])
@pytest.mark.parametrize(
    ("held", "wanted", "victims"),
    [
        ((100, 600), 700, [8, 9]),  # both are needed
        ((100, 600), 600, [9]),  # the cheaper one is spared in the end
        ((100, 600), 400, [9]),
        ((100, 600), 100, [8]),  # exactly what the cheaper one holds
        ((100, 600), 101, [9]),
    ],
)
def test_borrowers_stop_for_the_resource_that_is_short(resource, held, wanted, victims):
    full = node(1, free=4, **({"free_cpus": 0} if resource == "cpus" else {"free_memory_mb": 0}))
    running = [
        runs(8, {1: 1}, saved_at=lost(1), **{resource: held[0]}),
        runs(9, {1: 1}, saved_at=lost(30), **{resource: held[1]}),
    ]

    decisions = decide([full], waiting(1, need=need(**{resource: wanted})), running=running)

    assert sorted(stopped(decisions)) == victims


def test_borrower_that_frees_gpus_but_no_memory_is_spared():
    full = node(1, free=1, free_memory_mb=0)
    running = [runs(8, {1: 5}, saved_at=lost(1)), runs(9, {1: 2}, saved_at=lost(50), memory_mb=300)]

    assert stopped(decide([full], waiting(1, need=need(3, memory_mb=300)), running=running)) == [9]
    assert sorted(stopped(decide([full], waiting(1, need=need(4, memory_mb=300)), running=running))) == [8, 9]


def test_borrowers_stop_on_the_node_whose_memory_suffices():
    nodes = [node(1, free=0, free_memory_mb=100), node(2, free=0, free_memory_mb=900)]
    running = [runs(8, {1: 8}, saved_at=lost(1)), runs(9, {2: 8}, saved_at=lost(50))]

    assert stopped(decide(nodes, waiting(1, need=need(8, memory_mb=500)), running=running)) == [9]


def test_no_borrower_stops_if_owners_hold_the_memory():
    full = node(1, free=0, free_memory_mb=100)

    decisions = decide([full], waiting(1, need=need(8, memory_mb=500)), running=[runs(8, {1: 8})])

    assert (stopped(decisions), started(decisions)) == ([], [])


# --- gangs and other placements


@pytest.mark.parametrize("placement", ["pack", "spread", "consolidate"])
def test_cheapest_of_equal_nodes_is_cleared_under_every_placement(placement):
    nodes = [node(n, free=0) for n in (1, 2, 3)]
    running = [runs(7 + n, {n: 8}, saved_at=lost(minutes)) for n, minutes in ((1, 30), (2, 5), (3, 20))]

    one = decide(nodes, waiting(1, gpus=8), running=running, placement=placement)
    two = decide(nodes, waiting(1, nodes=2, gpus=8), running=running, placement=placement)

    assert (stopped(one), sorted(stopped(two))) == ([9], [9, 10])


def test_gang_with_a_remainder_stops_the_cheapest_borrower_for_each_share():
    nodes = [node(n, free=0) for n in (1, 2)]
    running = [
        runs(8, {1: 8}, saved_at=lost(5)),
        runs(9, {2: 4}, saved_at=lost(9)),
        runs(10, {2: 4}, saved_at=lost(50)),
    ]

    assert sorted(stopped(decide(nodes, waiting(1, need=need(8, nodes=1, rest=4)), running=running))) == [8, 9]


def test_borrower_on_several_nodes_spares_those_that_it_makes_unnecessary():
    nodes = [node(n, free=0) for n in (1, 2)]
    wide, narrow = runs(8, {1: 8, 2: 4}, saved_at=lost(30)), runs(9, {2: 4}, saved_at=lost(1))

    assert sorted(stopped(decide(nodes, waiting(1, nodes=2, gpus=4), running=[wide, narrow]))) == [8]


def test_offers_of_a_node_are_renewed_after_a_claim_in_the_same_turn():
    nodes = [node(n, free=0) for n in (1, 2)]
    running = [runs(8, {1: 8}, saved_at=lost(5)), runs(9, {2: 8}, saved_at=lost(50))]

    decisions = decide(nodes, waiting(1, gpus=8), waiting(2, gpus=8), waiting(3, gpus=8), running=running)

    assert {stop.job_id: stop.for_job for stop in decisions.stops} == {8: 1, 9: 2}


def needs_two_nodes(resources, need, among):
    """A placement that insists on a choice between two nodes."""
    return consolidate(resources, need, among) if resources.fitting_nodes(need, among).bit_count() > 1 else None


def test_placement_that_needs_more_nodes_gets_more_victims():
    engine = Engine(NodeResources([node(n) for n in (1, 2, 3)]), AcmeRules(), placement=needs_two_nodes)
    whole = ResourceRequest(gpus=8)
    lent = engine.request_group(whole, owner=waiting(7, preemptible=True))
    borrowers = [EngineJob(number, lent, 0.0, 60.0, 60.0) for number in range(3)]
    for number, job in enumerate(borrowers):
        engine.begin(job, ((number, 8),), float(number))
    owner = EngineJob(9, engine.request_group(whole), 0.0, 60.0, 60.0)

    engine.started_jobs.clear()
    engine.submit(owner, 10.0)
    engine.decide(10.0)

    assert [job.number for job in engine.started_jobs] == [9]
    assert len(engine.stopped_jobs) == 2 and all(job.preempted_by is owner for job in engine.stopped_jobs)
