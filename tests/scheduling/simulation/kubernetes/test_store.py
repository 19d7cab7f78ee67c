"""The store of objects: versions, history, and what must be written to disk."""

from __future__ import annotations

import json

import pytest

from scheduling.simulation.kubernetes.objects import ObjectKey
from scheduling.simulation.kubernetes.store import ChangeKind, ObjectStore, VersionExpired


def key(name: str, namespace: str = "default", resource: str = "pods") -> ObjectKey:
    return ObjectKey(resource, namespace, name)


def pod(name: str, **spec) -> dict:
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec}


def test_every_change_gets_the_next_version():
    store = ObjectStore(version=7)

    created = store.put(key("a"), pod("a"))
    changed = store.put(key("a"), pod("a", nodeName="kalos-001"))

    assert [created["metadata"]["resourceVersion"], changed["metadata"]["resourceVersion"]] == ["8", "9"]
    assert store.version == 9


def test_put_without_a_difference_changes_nothing():
    store = ObjectStore()
    created = store.put(key("a"), pod("a"))

    assert store.put(key("a"), pod("a")) is created
    assert store.version == 2


def test_objects_are_ordered_by_namespace_and_name():
    store = ObjectStore()
    for name, namespace in (("b", "team-b"), ("z", "team-a"), ("a", "team-b")):
        store.put(key(name, namespace), {"metadata": {"name": name, "namespace": namespace}})

    assert [found.object["metadata"]["name"] for found in store.objects("pods")] == ["z", "a", "b"]
    assert [found.object["metadata"]["name"] for found in store.objects("pods", "team-b")] == ["a", "b"]


def test_changes_after_a_version_include_deletions():
    store = ObjectStore()
    store.put(key("a"), pod("a"))
    version = store.version
    store.put(key("a"), pod("a", x=1))
    store.delete(key("a"))

    changes = store.changes_after("pods", version)

    assert [change.kind for change in changes] == [ChangeKind.MODIFIED, ChangeKind.DELETED]
    assert changes[1].stored.object["metadata"]["resourceVersion"] == str(store.version)


def test_objects_at_an_earlier_version_are_reconstructed():
    store = ObjectStore()
    store.put(key("a"), pod("a"))
    store.put(key("b"), pod("b"))
    version = store.version
    store.delete(key("a"))
    store.put(key("b"), pod("b", x=1))
    store.put(key("c"), pod("c"))

    earlier = [found.object for found in store.objects_at("pods", "default", version)]

    assert [(one["metadata"]["name"], one["spec"]) for one in earlier] == [("a", {}), ("b", {})]


def test_compaction_expires_earlier_versions():
    store = ObjectStore()
    store.put(key("a"), pod("a"))
    version = store.version
    store.put(key("b"), pod("b"))

    store.compact()

    with pytest.raises(VersionExpired, match="too old resource version: 2 "):
        store.changes_after("pods", version)
    assert list(store.changes_after("pods", store.version)) == []


def test_history_is_limited():
    store = ObjectStore(most_history=10)
    for number in range(50):
        store.put(key("a"), pod("a", x=number))

    assert len(store.changes_after("pods", store.version - 10)) == 10
    with pytest.raises(VersionExpired):
        store.changes_after("pods", 1)


def test_store_of_a_restarted_server_expires_versions_of_the_one_before():
    before = ObjectStore()
    before.put(key("a"), pod("a"))
    objects = [(key("a"), before.get(key("a")))]

    after = ObjectStore(objects, version=100)

    assert [found.object for found in after.objects("pods")] == [before.get(key("a"))]
    with pytest.raises(VersionExpired):
        after.changes_after("pods", before.version)


def test_changes_for_the_disk_are_the_newest_states_and_deletions():
    store = ObjectStore(volatile=frozenset({"leases"}))
    store.put(key("a"), pod("a"))
    store.put(key("a"), pod("a", x=1))
    store.put(key("b"), pod("b"))
    store.delete(key("b"))
    store.put(key("l", resource="leases"), pod("l"))

    changes = store.take_changes()

    assert {one.name: json.loads(found.text)["spec"] for one, found in changes.objects.items()} == {"a": {"x": 1}}
    assert changes.deleted == (key("b"),)
    assert not store.take_changes()
