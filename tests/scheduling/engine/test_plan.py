"""The plan behind conservative backfilling: node sets give the same reservations as exact resources."""

import math

from hypothesis import given
from hypothesis import strategies as st

from scheduling.engine.cluster import NodeView, ResourceRequest
from scheduling.engine.engine import Engine
from scheduling.engine.job import EngineJob
from scheduling.engine.placement import consolidate
from scheduling.engine.policies.conservative import ConservativeRules
from scheduling.engine.resources import NodeResources
from scheduling.engine.turns.exact_timeline import ExactTimeline
from scheduling.engine.turns.gpu_only_timeline import GpuOnlyTimeline
from scheduling.engine.turns.plan import ReservationPlan
from tests.properties import examples

NODES, GPUS = 9, 4

needs = st.one_of(
    st.builds(ResourceRequest, gpus=st.integers(0, GPUS), cpus=st.just(0)),
    st.builds(ResourceRequest, nodes=st.integers(2, 5), gpus=st.integers(1, GPUS), cpus=st.just(0)),
    st.builds(
        ResourceRequest, nodes=st.integers(1, 3), gpus=st.just(GPUS), rest=st.integers(1, GPUS - 1), cpus=st.just(0)
    ),
)
takes = st.one_of(st.integers(0, 60).map(float), st.just(math.inf))
held = st.lists(st.tuples(st.integers(0, NODES - 1), st.integers(1, GPUS), takes), max_size=24)
asked = st.lists(st.tuples(needs, takes), min_size=1, max_size=60)


def looks_closer(room, need, among):
    """Gives the same results as the default, but the plan does not know that node sets are sufficient for it."""
    return consolidate(room, need, among)


def plan(holders, placement):
    free = [GPUS] * NODES
    nodes = [NodeView(id=n, name=f"n{n}", gpus=GPUS, free_gpus=(), free_cpus=0, free_memory_mb=0) for n in range(NODES)]
    room = NodeResources(nodes)
    engine = Engine(room, ConservativeRules(), placement=placement)
    running = []
    for node, gpus, takes_s in holders:
        if gpus <= free[node]:
            free[node] -= gpus
            running.append((node, ResourceRequest(gpus=gpus, cpus=0), takes_s))
    for node, left in enumerate(free):
        room.give(((node, left),), ResourceRequest(gpus=left, cpus=0))
    for number, (node, need, takes_s) in enumerate(running, 1000):
        engine.adopt(
            [(EngineJob(number, engine.request_group(need), 0.0, takes_s, takes_s), ((node, need.gpus),))], 0.0
        )
    return engine, ReservationPlan(engine, 0.0)


@given(holders=held, jobs=asked)
@examples(200)
def test_node_sets_give_the_same_reservations_as_exact_resources(holders, jobs):
    starts = []
    for placement, kind in ((consolidate, GpuOnlyTimeline), (looks_closer, ExactTimeline)):
        engine, made = plan(holders, placement)
        assert isinstance(made.timeline, kind)
        waiting = [
            EngineJob(number, engine.request_group(need), 0.0, takes, takes)
            for number, (need, takes) in enumerate(jobs)
        ]
        begins = [made.reserve(job) for job in waiting]
        places = [made.starts[job][1].places if job in made.starts else None for job in waiting]
        starts.append((begins, places, made.times, [made.timeline.usable_nodes(at) for at in range(len(made.times))]))

    assert starts[0] == starts[1]


@given(holders=held, jobs=asked, until=st.integers(0, 40))
@examples(100)
def test_node_sets_give_the_same_reservations_after_time_has_passed(holders, jobs, until):
    starts = []
    for placement in (consolidate, looks_closer):
        engine, made = plan(holders, placement)
        waiting = [
            EngineJob(number, engine.request_group(need), 0.0, takes, takes)
            for number, (need, takes) in enumerate(jobs)
        ]
        half = len(waiting) // 2
        begins = [made.reserve(job) for job in waiting[:half]]
        made.advance_to(max(at for at in made.times if at <= until))
        begins += [made.reserve(job) for job in waiting[half:]]
        starts.append((begins, [made.starts[job][1].places for job in waiting if job in made.starts], made.times))

    assert starts[0] == starts[1]
