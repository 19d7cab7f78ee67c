"""What pods hold on each node, kept current."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import partial
from operator import attrgetter

from hypothesis import given
from hypothesis import strategies as st

from scheduling.backends.kubernetes.cache import CacheIndex, ObjectCache
from scheduling.backends.kubernetes.driving.capacity import NOTHING, CapacityInUse, FreeCapacity, PodRequests
from scheduling.backends.kubernetes.nodes import read_node
from scheduling.backends.kubernetes.ownership import OwnerMapping
from scheduling.backends.kubernetes.pods import read_pod
from tests.make import NOON
from tests.scheduling.backends.kubernetes.objects import ended_pod, node, pod

NODES = {name: read_node(node(name, gpus=8)) for name in ("n1", "n2")}


def new_cache():
    return ObjectCache(partial(read_pod, owners=OwnerMapping()), "job", keep_vanished=True)


def in_use(cache):
    return CapacityInUse(CacheIndex(cache, attrgetter("node")))


def seen(item, kind="MODIFIED"):
    return {"type": kind, "object": item}


pods = st.builds(
    lambda make, name, on, gpus: make(name, on=on, gpus=gpus),
    st.sampled_from((pod, ended_pod)),
    st.sampled_from("abc"),
    st.sampled_from(("", "n1", "n2")),
    st.integers(0, 4),
)
events = st.builds(seen, pods, st.sampled_from(("ADDED", "MODIFIED", "DELETED")))
lists = st.lists(pods, max_size=3, unique_by=lambda item: item["metadata"]["uid"])


@given(st.lists(st.one_of(events, lists), max_size=12))
def test_capacity_after_changes_equals_the_one_of_all_pods(history):
    cache = new_cache()
    current = in_use(cache)

    for number, change in enumerate(history):
        if isinstance(change, list):
            cache.replace_all([cache.reduce(item) for item in change], str(number), NOON + timedelta(minutes=number))
        else:
            cache.apply(change, NOON + timedelta(minutes=number))
        found = {name: held for name, held in current.update().items() if held != NOTHING}

        assert found == {name: held for name, held in in_use(cache).update().items() if held != NOTHING}


def test_capacity_that_was_given_out_does_not_change():
    cache = new_cache()
    current = in_use(cache)
    cache.apply(seen(pod("a", on="n1", gpus=5)), NOON)
    free = FreeCapacity(NODES, current.update())

    cache.apply(seen(pod("b", on="n1", gpus=3)), NOON)
    current.update()

    need = PodRequests(gpus=3, cpus=1, memory_mb=1)
    assert free.reserve("n1", need) == ""
    assert "GPUs free" in FreeCapacity(NODES, current.update()).reserve("n1", need)


def test_requests_add_up():
    one = PodRequests(gpus=2, cpus=0.5, memory_mb=3, mig_slices={"1g.10gb": 1})

    assert one + one == replace(one, gpus=4, cpus=1.0, memory_mb=6, mig_slices={"1g.10gb": 2})
