"""Placements: their invariants, and the purpose of each."""

import dataclasses
from collections import Counter
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.core.lifecycle import JobKind
from scheduling.engine.cluster import ClusterSnapshot, NodeView, QuotaView, ResourceRequest, RunningJob, WaitingJob
from scheduling.engine.engine import Engine
from scheduling.engine.job import EngineJob
from scheduling.engine.placement import consolidate
from scheduling.engine.placements import PLACEMENTS, PlacementContext
from scheduling.engine.placements.cells import CellPlacement
from scheduling.engine.placements.exact import ExactPlacement, solve_placements
from scheduling.engine.placements.gradient import Fragmentation, GradientPlacement
from scheduling.engine.placements.tune import TunePlacement, cpu_memory_grants
from scheduling.engine.policies import LIVE_POLICIES, POLICY_RULES
from scheduling.engine.resources import ALL_NODES, NodeResources, members
from tests.make import NOON
from tests.properties import examples

GPUS = 8


def node(number, *, free=GPUS, leaf="l", pod="p", nic="ib", cpus=64, memory_mb=512):
    return NodeView(
        id=number, name=f"n{number}", gpus=GPUS, free_gpus=tuple(range(free)), free_cpus=cpus,
        free_memory_mb=memory_mb, leaf=leaf, pod=pod, nic_type=nic,
    )  # fmt: skip


def room(*free, leaf_size=0, **fields):
    leaf = (lambda n: f"l{n // leaf_size:02}") if leaf_size else (lambda n: "l")
    return NodeResources([node(n, free=left, leaf=leaf(n), **fields) for n, left in enumerate(free)])


nodes = st.builds(
    node,
    st.integers(0, 99),
    free=st.integers(0, GPUS),
    leaf=st.sampled_from(["a", "b", "c"]),
    pod=st.sampled_from(["p", "q"]),
    nic=st.sampled_from(["ib", "roce"]),
    cpus=st.integers(0, 64),
    memory_mb=st.integers(0, 512),
)
rooms = st.lists(nodes, min_size=1, max_size=9).map(NodeResources)
narrow = st.builds(ResourceRequest, gpus=st.integers(0, GPUS), cpus=st.integers(0, 32), memory_mb=st.integers(0, 256))
gangs = st.builds(
    ResourceRequest,
    nodes=st.integers(2, 4),
    gpus=st.integers(1, GPUS),
    rest=st.integers(0, 3),
    cpus=st.sampled_from([0, 0, 8]),
).map(lambda need: dataclasses.replace(need, rest=min(need.rest, need.gpus)))
needs = narrow | gangs


def made(name):
    usual = {ResourceRequest(gpus=1): 5.0, ResourceRequest(gpus=4, cpus=16): 2.0, ResourceRequest(gpus=8): 1.0}
    return PLACEMENTS[name](PlacementContext(typical_requests=usual, guarantees={"a": 1}, elastic=True))


@pytest.mark.parametrize("name", PLACEMENTS)
@given(room=rooms, need=needs, among=st.integers(0, 511) | st.just(ALL_NODES))
@examples(40)
def test_placement_is_free_complete_and_on_allowed_nodes(name, room, need, among):
    before = list(room.free)

    places = made(name)(room, need, among)

    assert room.free == before  # a placement takes nothing
    if places is None:
        return
    assert len(dict(places)) == len(places)
    assert sum(gpus for _, gpus in places) == need.total_gpus
    for number, gpus in places:
        assert among >> number & 1
        assert gpus <= room.free[number]
        if name != "tune":
            assert need.cpus <= room.cpus[number]
            assert need.memory_mb <= room.memory_mb[number]
    if name != "pack":
        shares = Counter(gpus for _, gpus in places)
        assert shares == Counter([need.gpus] * need.nodes + [need.rest] * bool(need.rest))


@pytest.mark.parametrize("name", [name for name in PLACEMENTS if name not in ("cells", "tune")])
@given(room=rooms, need=needs)
@examples(40)
def test_every_placement_places_what_consolidate_places(name, room, need):
    if consolidate(room, need) is not None:
        assert made(name)(room, need, ALL_NODES) is not None


# topology


@given(room=rooms, need=gangs.map(lambda need: dataclasses.replace(need, rest=0)))
@examples(80)
def test_gang_is_placed_as_close_together_as_possible(room, need):
    places = consolidate(room, need)

    fitting = room.fitting_nodes(need)
    assert (places is None) == (fitting.bit_count() < need.nodes)
    if places is None:
        return
    taken = sum(1 << number for number, _ in places)
    for groups in room.nearness:
        if any((group & fitting).bit_count() >= need.nodes for group in groups):
            assert any(not taken & ~group for group in groups)
            break


def test_gang_keeps_to_one_type_of_network_card():
    cards = ["ib", "roce", "ib", "roce", "roce"]
    mixed = NodeResources([node(n, leaf=f"l{n}", nic=nic) for n, nic in enumerate(cards)])

    assert [number for number, _ in consolidate(mixed, ResourceRequest(nodes=3, gpus=8))] == [1, 3, 4]


def test_gang_crosses_network_types_if_no_type_holds_it():
    mixed = NodeResources([node(n, leaf=f"l{n}", nic=nic) for n, nic in enumerate(["ib", "roce", "ib", "roce"])])

    assert len(consolidate(mixed, ResourceRequest(nodes=3, gpus=8))) == 3


def test_remainder_stays_near_its_gang():
    near = room(*[8] * 6, leaf_size=3)

    places = consolidate(near, ResourceRequest(nodes=2, gpus=8, rest=4))

    assert {number // 3 for number, _ in places} == {0}


# cells

VCS = {"a": 3, "b": 2}
steps = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "", ""]),
        st.sampled_from([(1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (3, 8)]),
        st.integers(0, 10),
    ),
    max_size=25,
)


def need_of(pool, shape):
    return ResourceRequest(nodes=shape[0], gpus=shape[1], pool=pool)


@pytest.mark.parametrize("leaf_size", [0, 2, 3])
@given(steps=steps)
@examples(50)
def test_guaranteed_nodes_are_always_available(leaf_size, steps):
    place, held = CellPlacement(VCS), []
    here = room(*[8] * 6, leaf_size=leaf_size)
    for pool, shape, leaver in steps:
        need = need_of(pool, shape)
        if (places := place(here, need, ALL_NODES)) is not None:
            here.take(places, need)
            held.append((places, need))
        elif held:
            here.give(*held.pop(leaver % len(held)))
        claim_everything(here.copy(), place)


def claim_everything(here, place):
    """All virtual clusters take their remaining whole nodes at once."""
    for pool, promised in VCS.items():
        need = need_of(pool, (1, 8))
        for _ in range(promised - here.bound.get(pool, 0).bit_count()):
            places = place(here, need, ALL_NODES)
            assert places is not None, f"{pool} does not find its {promised} nodes"
            here.take(places, need)


@given(steps=steps)
@examples(40)
def test_guaranteed_leaf_stays_whole(steps):
    """`a` has a guaranteed leaf of three nodes and is the last to use it."""
    place = CellPlacement(VCS)
    here = room(*[8] * 6, leaf_size=3)
    for pool, shape, _ in steps:
        if pool != "a" and (places := place(here, need_of(pool, shape), ALL_NODES)) is not None:
            here.take(places, need_of(pool, shape))

    places = place(here, need_of("a", (3, 8)), ALL_NODES)

    assert places is not None
    assert len({number // 3 for number, _ in places}) == 1


def test_virtual_cluster_gets_no_more_than_its_nodes():
    place, here, need = CellPlacement({"a": 2}), room(*[8] * 4), need_of("a", (1, 8))
    for _ in range(2):
        here.take(place(here, need, ALL_NODES), need)

    assert place(here, need, ALL_NODES) is None
    assert place(here, need_of("", (1, 8)), ALL_NODES) is not None


def test_job_without_guarantee_uses_the_most_broken_leaf_first():
    place, here = CellPlacement({"a": 2}), room(8, 8, 8, 4, leaf_size=2)

    assert place(here, need_of("", (1, 8)), ALL_NODES) == ((2, 8),)


def test_plain_quotas_meet_scattered_nodes_where_cells_do_not():
    """The sharing anomaly: four small jobs of other teams leave no node whole with `spread`, and two with `cells`."""
    here, apart, place = room(*[8] * 4), room(*[8] * 4), CellPlacement({"a": 2})
    small = need_of("", (1, 1))
    for _ in range(4):
        here.take(place(here, small, ALL_NODES), small)
        apart.take(PLACEMENTS["spread"](PlacementContext())(apart, small, ALL_NODES), small)

    assert place(here, need_of("a", (2, 8)), ALL_NODES) is not None
    assert consolidate(apart, ResourceRequest(nodes=2, gpus=8)) is None


# fragmentation gradient


def test_fragmentation_is_what_typical_jobs_cannot_use():
    usual = Fragmentation({ResourceRequest(gpus=8): 1, ResourceRequest(gpus=1): 1, ResourceRequest(gpus=2, cpus=8): 2})

    assert usual.of((8, (), 64, 0)) == 0
    assert usual.of((4, (), 64, 0)) == pytest.approx(4 * 0.25)  # unusable for requests of 8 GPUs
    assert usual.of((4, (), 7, 0)) == pytest.approx(4 * 0.75)  # unusable for requests of 8 CPUs as well
    assert usual.of((0, (), 0, 0)) == 0


@given(room=rooms, need=narrow, usual=st.dictionaries(narrow, st.integers(1, 9), max_size=5))
@examples(80)
def test_no_other_node_increases_fragmentation_less(room, need, usual):
    place = GradientPlacement(usual)
    whole = Fragmentation(usual)

    places = place(room, need, ALL_NODES)

    def rise(number):
        before, after = whole.of_all_nodes(room), room.copy()
        after.take(((number, need.gpus),), need)
        return whole.of_all_nodes(after) - before

    if places:
        best = min(rise(number) for number in members(room.fitting_nodes(need)))
        assert rise(places[0][0]) == pytest.approx(best)


def test_gradient_keeps_nodes_whole_for_jobs_that_need_them():
    place = GradientPlacement({ResourceRequest(gpus=8): 1, ResourceRequest(gpus=1): 1})

    assert place(room(8, 3, 5), ResourceRequest(gpus=1), ALL_NODES) == ((1, 1),)


# Synergy-Tune


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 200)), max_size=4).filter(lambda j: sum(g for g, _ in j) <= 8)
)
@examples(80)
def test_grant_is_between_the_gpu_fraction_and_the_request(asked):
    grants = cpu_memory_grants(64, GPUS, asked)

    assert sum(grants) <= 64 + 1e-6
    for (held, want), got in zip(asked, grants, strict=True):
        assert min(want, 8 * held) - 1e-9 <= got <= want + 1e-9
    if sum(want for _, want in asked) >= 64:
        assert sum(grants) == pytest.approx(min(64, sum(want for _, want in asked)))


@given(room=rooms, need=narrow.filter(lambda need: need.gpus))
@examples(80)
def test_gpus_are_never_idle_for_lack_of_cpus(room, need):
    bare = ResourceRequest(gpus=need.gpus, cpus=0)

    assert (TunePlacement(elastic=True)(room, need, ALL_NODES) is None) == (consolidate(room, bare) is None)


def test_tune_prefers_the_fullest_node_that_fits_everything():
    here = NodeResources([node(0, free=2, cpus=4), node(1, free=4, cpus=40), node(2, free=4, cpus=20), node(3)])
    need = ResourceRequest(gpus=2, cpus=16)

    assert TunePlacement(elastic=True)(here, need, ALL_NODES) == ((2, 2),)
    assert TunePlacement(elastic=True)(here, dataclasses.replace(need, cpus=65), ALL_NODES) == ((0, 2),)
    assert TunePlacement(elastic=False)(here, dataclasses.replace(need, cpus=65), ALL_NODES) is None


# the solver


def turn(placement, jobs, *free, policy="fifo", **fields):
    engine = Engine(room(*free, **fields), POLICY_RULES[policy](), placement=placement)
    for number, need in enumerate(jobs):
        engine.submit(EngineJob(number, engine.request_group(need), 0, 10, 10), 0)
    engine.decide(0)
    return engine


def test_solver_moves_jobs_started_in_the_same_turn():
    """Greedy puts both narrow jobs on one node by their GPUs, so no node has 54 CPUs left."""
    greedy = turn(
        consolidate,
        [ResourceRequest(gpus=2, cpus=10), ResourceRequest(gpus=4, cpus=30), ResourceRequest(gpus=4, cpus=50)],
        6,
        8,
    )
    place = ExactPlacement()
    better = turn(
        place,
        [ResourceRequest(gpus=2, cpus=10), ResourceRequest(gpus=4, cpus=30), ResourceRequest(gpus=4, cpus=50)],
        6,
        8,
    )

    assert len(greedy.started_jobs) <= len(better.started_jobs) == 3
    assert better.resources.cpus == [64 - used for used in cpus_used(better)]


def cpus_used(engine):
    used = [0] * len(engine.resources.nodes)
    for job in engine.running.values():
        for number, _ in job.places:
            used[number] += job.group.need.cpus
    return used


@pytest.mark.parametrize("policy", ["fifo", "fifo-skip"])
@given(jobs=st.lists(narrow | gangs, max_size=6), free=st.lists(st.integers(0, 8), min_size=2, max_size=4))
@examples(25)
def test_solver_is_never_worse_than_greedy_and_never_overbooks(policy, jobs, free):
    greedy, exact = (turn(place, jobs, *free, policy=policy) for place in (consolidate, ExactPlacement()))

    if policy == "fifo":  # the same, and then perhaps more
        assert {job.number for job in greedy.started_jobs} <= {job.number for job in exact.started_jobs}
    for number, left in enumerate(exact.resources.free):
        assert left == free[number] - sum(dict(job.places).get(number, 0) for job in exact.running.values())
        assert left >= 0
    assert all(left >= 0 for left in exact.resources.cpus)


def test_solver_is_not_called_while_greedy_finds_a_place():
    place = ExactPlacement()

    turn(place, [ResourceRequest(gpus=4)] * 3, 8, 8)

    assert place.asked == 0


def test_solver_fills_the_most_gpus_if_not_all_fit():
    places = solve_placements(
        room(8, 4), [(ResourceRequest(gpus=8), ALL_NODES), (ResourceRequest(gpus=5), ALL_NODES)], all_of_them=False
    )

    assert places == [((0, 8),), None]


# live clusters


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_placement_works_on_live_clusters(placement):
    waiting_job = WaitingJob(
        id=1,
        name="j1",
        team="a",
        kind=JobKind.OTHER,
        need=ResourceRequest(nodes=2, gpus=8),
        priority=0,
        submitted_at=NOON,
    )
    held = RunningJob(
        id=2, name="j2", team="b", kind=JobKind.OTHER, gpus=4, priority=0, started_at=NOON - timedelta(hours=1),
        places={0: 4},
    )  # fmt: skip
    picture = ClusterSnapshot(
        now=NOON,
        nodes=(node(0, free=4), node(1), node(2)),
        waiting=(waiting_job,),
        running=(held,),
        quotas=(QuotaView(team="a", kind=None, gpus=16), QuotaView(team="b", kind=None, gpus=8)),
        placement=placement,
    )

    decided = LIVE_POLICIES["fifo"](picture)

    assert {node: len(gpus) for node, gpus in decided.starts[0].places.items()} == {1: 8, 2: 8}


def test_team_gets_the_nodes_of_its_quota_on_a_live_cluster():
    small = [
        WaitingJob(
            id=n, name=f"j{n}", team="b", kind=JobKind.OTHER, need=ResourceRequest(gpus=8), priority=0,
            submitted_at=NOON, preemptible=True,
        )
        for n in range(3)
    ]  # fmt: skip
    picture = ClusterSnapshot(
        now=NOON,
        nodes=(node(0), node(1), node(2)),
        waiting=tuple(small),
        quotas=(QuotaView(team="a", kind=None, gpus=16),),
        placement="cells",
    )

    assert len(LIVE_POLICIES["fifo-skip"](picture).starts) == 1
    assert len(LIVE_POLICIES["fifo-skip"](dataclasses.replace(picture, placement="consolidate")).starts) == 3
