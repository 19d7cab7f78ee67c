"""Every timeline keeps the contract of `ResourceTimeline`: it answers like a table of free GPUs by step and node."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.engine.cluster import NodeView, ResourceRequest
from scheduling.engine.resources import ALL_NODES, NodeResources, members
from scheduling.engine.turns.exact_timeline import ExactTimeline
from scheduling.engine.turns.gpu_only_timeline import STEPS_PER_BLOCK, GpuOnlyTimeline
from scheduling.engine.turns.timeline import PlannedShare
from tests.properties import examples

NODES, GPUS = 6, 4
CLOSED = 5  # this node accepts no jobs
REQUESTS = [ResourceRequest(gpus=gpus, cpus=0) for gpus in range(GPUS + 2)]
node_sets = st.integers(0, (1 << NODES) - 1)
free_by_node = st.lists(st.sampled_from([0, 2, GPUS, GPUS]), min_size=NODES, max_size=NODES)
some_steps = st.lists(free_by_node, min_size=2, max_size=3 * STEPS_PER_BLOCK)


class FreeTable:
    """The free GPUs as a table: slow, short and obviously correct."""

    def __init__(self, steps):
        self.steps = [list(free) for free in steps]

    def usable_nodes(self):
        return ((1 << NODES) - 1) & ~(1 << CLOSED)

    def fitting_nodes(self, step, request):
        gpus = REQUESTS[request].gpus
        fitting = sum(1 << node for node, free in enumerate(self.steps[step]) if free >= gpus)
        return fitting & self.usable_nodes()

    def fitting_throughout(self, first, last, request, among):
        for step in range(first, last):
            among &= self.fitting_nodes(step, request)
        return among

    def take(self, first, last, places):
        for step in range(first, last):
            for node, gpus in places:
                self.steps[step][node] -= gpus

    def resources(self, step):
        nodes = [
            NodeView(id=n, name=f"n{n}", gpus=GPUS, free_gpus=tuple(range(free)), free_cpus=0, free_memory_mb=0)
            for n, free in enumerate(self.steps[step])
        ]
        resources = NodeResources(nodes)
        resources.close(CLOSED)
        return resources


def run_random_operations(timeline, table, data):
    """Take shares, split and drop steps as a plan does, in the timeline and the table alike."""
    for _ in range(data.draw(st.integers(0, 12), label="operations")):
        count = len(table.steps)
        match data.draw(st.sampled_from(["take", "take", "take", "split", "drop"])):
            case "take":
                first, last = drawn_range(data, count)
                gpus = data.draw(st.integers(1, GPUS))
                fitting = members(table.fitting_throughout(first, last, gpus, data.draw(node_sets)))
                places = tuple((node, gpus) for node in fitting)
                timeline.take(first, last, PlannedShare(places, REQUESTS[gpus]))
                table.take(first, last, places)
            case "split":
                at = data.draw(st.integers(1, count))
                timeline.split_step(at)
                table.steps.insert(at, list(table.steps[at - 1]))
            case "drop":
                dropped = data.draw(st.integers(0, count - 1))
                timeline.drop_steps(dropped)
                del table.steps[:dropped]


def drawn_range(data, count):
    first = data.draw(st.integers(0, count - 1))
    return first, data.draw(st.integers(first + 1, count))


def timeline_and_table(kind, steps, data):
    table = FreeTable(steps)
    timeline = kind((table.resources(step) for step in range(len(steps))), REQUESTS)
    run_random_operations(timeline, table, data)
    return timeline, table


timelines = pytest.mark.parametrize("kind", [ExactTimeline, GpuOnlyTimeline])


@timelines
@given(steps=some_steps, data=st.data())
@examples(150)
def test_timeline_answers_like_a_table_of_free_gpus(kind, steps, data):
    timeline, table = timeline_and_table(kind, steps, data)

    for step in range(len(table.steps)):
        assert timeline.usable_nodes(step) == table.usable_nodes()
        assert timeline.resources_at(step).by_free == table.resources(step).by_free
        for request in range(len(REQUESTS)):
            assert timeline.fitting_nodes(step, request) == table.fitting_nodes(step, request)


@timelines
@given(steps=some_steps, data=st.data())
@examples(60)
def test_search_for_a_start_skips_only_starts_that_fail(kind, steps, data):
    timeline, table = timeline_and_table(kind, steps, data)
    among = data.draw(node_sets) & table.usable_nodes()
    last = data.draw(st.integers(1, len(table.steps)))

    for first, request, min_nodes in product(range(last), range(len(REQUESTS)), (1, 2, 3)):
        nodes, until = timeline.nodes_fitting_throughout(first, last, request, min_nodes, among)

        assert nodes == table.fitting_throughout(first, min(until + 1, last), request, among)
        if until == last:
            assert nodes.bit_count() >= min_nodes
            continue
        assert nodes.bit_count() < min_nodes
        assert until == first or table.fitting_throughout(first, until, request, among).bit_count() >= min_nodes
        then = timeline.next_start(first, until, request, min_nodes, among)
        assert then > first
        for start in range(first, min(then, len(table.steps))):
            assert table.fitting_throughout(start, max(start, until) + 1, request, among).bit_count() < min_nodes


@timelines
@given(steps=some_steps, data=st.data())
@examples(100)
def test_step_equals_resources_with_the_released_shares(kind, steps, data):
    timeline, table = timeline_and_table(kind, steps, data)
    step = data.draw(st.integers(0, len(table.steps) - 1))
    before = table.resources(step)
    gpus = data.draw(st.integers(1, GPUS))
    places = tuple((node, gpus) for node in members(table.fitting_nodes(step, gpus) & data.draw(node_sets)))
    share = PlannedShare(places, REQUESTS[gpus])
    timeline.take(step, step + 1, share)

    assert timeline.equals(step, before, [share])
    assert timeline.equals(step, before, []) == (not places)


@timelines
def test_timeline_keeps_no_reference_to_the_resources_it_is_made_of(kind):
    resources = FreeTable([[GPUS] * NODES]).resources(0)
    timeline = kind([resources], REQUESTS)

    resources.take(((0, GPUS),), REQUESTS[GPUS])
    resources.close(1)

    assert timeline.fitting_nodes(0, GPUS) == timeline.usable_nodes(0) == ALL_NODES & ~(1 << CLOSED) & (1 << NODES) - 1
