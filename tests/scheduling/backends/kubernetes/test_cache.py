"""Applying lists and events."""

from datetime import UTC, datetime, timedelta
from functools import partial
from operator import attrgetter

import pytest

from scheduling.backends.kubernetes.cache import (
    KEEP_VANISHED,
    CacheIndex,
    ObjectCache,
    WatchFailed,
)
from scheduling.backends.kubernetes.ownership import OwnerMapping
from scheduling.backends.kubernetes.pods import read_pod
from tests.scheduling.backends.kubernetes.objects import pod

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def cache():
    return ObjectCache(partial(read_pod, owners=OwnerMapping()), "job", keep_vanished=True)


def list_all(cache, *items, version="5", now=NOW):
    cache.replace_all([cache.reduce(item) for item in items], version, now)


def event(kind, item):
    return {"type": kind, "object": item}


def names(objects):
    return sorted(seen.name for seen in objects.values())


def test_events_change_the_listed_objects(cache):
    list_all(cache, pod("a"), pod("b"))

    cache.apply(event("ADDED", pod("c")), NOW)
    cache.apply(event("MODIFIED", pod("a", on="n1")), NOW)
    cache.apply(event("DELETED", pod("b")), NOW)

    assert names(cache.objects) == ["a", "c"]
    assert cache.objects["uid-a"].node == "n1"
    assert (names(cache.vanished), cache.vanished["uid-b"].gone_at) == (["b"], NOW)


def test_equal_objects_stay_the_same_when_they_are_listed_again(cache):
    list_all(cache, pod("a"), pod("b"))
    before, changes = dict(cache.objects), cache.changes.count

    list_all(cache, pod("a"), pod("b", on="n1"), version="6")
    cache.apply(event("MODIFIED", pod("a")), NOW)

    assert cache.objects["uid-a"] is before["uid-a"]
    assert cache.objects["uid-b"].node == "n1"
    assert cache.changes.since(changes) == {"uid-b"}


def test_event_that_comes_twice_changes_nothing(cache):
    list_all(cache, pod("a"))
    gone = event("DELETED", pod("a"))

    cache.apply(gone, NOW)
    cache.apply(gone, NOW + timedelta(minutes=1))

    assert (names(cache.objects), names(cache.vanished)) == ([], ["a"])


def test_bookmark_moves_the_version_and_changes_nothing(cache):
    list_all(cache, pod("a"))
    before = cache.changes.count

    cache.apply(event("BOOKMARK", {"metadata": {"resourceVersion": "900"}}), NOW)

    assert (cache.resource_version, cache.changes.count, names(cache.objects)) == ("900", before, ["a"])


def test_new_list_notices_what_vanished_meanwhile(cache):
    list_all(cache, pod("a"), pod("b"))

    list_all(cache, pod("b"), version="50")

    assert (names(cache.objects), names(cache.vanished), cache.resource_version) == (["b"], ["a"], "50")


def test_object_with_the_same_name_is_another_object(cache):
    list_all(cache, pod("a"))

    cache.apply(event("DELETED", pod("a")), NOW)
    cache.apply(event("ADDED", pod("a", uid="uid-again")), NOW)

    assert (list(cache.objects), list(cache.vanished)) == (["uid-again"], ["uid-a"])


@pytest.mark.parametrize(
    "wrong",
    [
        {"type": "ERROR", "object": {"code": 410, "message": "too old resource version"}},
        {"type": "ERROR", "object": {"code": 500, "message": "etcd"}},
        {"type": "ERROR"},
        {"type": "ADDED", "object": {"metadata": {}}},
        {"type": "PARTY", "object": pod()},
        [],
        None,
    ],
    ids=["expired", "failed", "empty", "no version", "unknown", "list", "null"],
)
def test_error_event_changes_nothing(cache, wrong):
    list_all(cache, pod("a"))

    with pytest.raises(WatchFailed):
        cache.apply(wrong, NOW)

    assert (cache.resource_version, names(cache.objects)) == ("5", ["a"])


def test_object_that_becomes_unreadable_is_neither_there_nor_gone(cache):
    list_all(cache, pod("a"))

    cache.apply(event("MODIFIED", pod("a", namespace="")), NOW)

    assert (cache.objects, cache.vanished) == ({}, {})
    (row,) = cache.unreadable
    assert (row.kind, row.sentence) == ("job", "a: metadata.namespace is missing")
    assert row.may_match("any id", "")
    cache.apply(event("MODIFIED", pod("a")), NOW)
    assert (names(cache.objects), cache.unreadable) == (["a"], ())


def test_vanished_objects_are_forgotten_after_a_while(cache):
    list_all(cache, pod("a"), pod("b"))
    cache.apply(event("DELETED", pod("a")), NOW)

    cache.apply(event("DELETED", pod("b")), NOW + KEEP_VANISHED)

    assert names(cache.vanished) == ["b"]


# --- an index


def by_node(index):
    return {node: sorted(found.name for found in pods.values()) for node, pods in index.update().items()}


def test_index_follows_the_cache(cache):
    index = CacheIndex(cache, attrgetter("node"))
    list_all(cache, pod("a"), pod("b", on="n1"))
    assert by_node(index) == {"": ["a"], "n1": ["b"]}
    count = index.changes.count

    cache.apply(event("MODIFIED", pod("a", on="n2")), NOW)
    cache.apply(event("DELETED", pod("b", on="n1")), NOW)

    assert by_node(index) == {"n1": ["b"], "n2": ["a"]}  # what vanished is still known
    assert index.changes.since(count) == {"", "n1", "n2"}


def test_index_forgets_what_the_cache_forgets(cache):
    index = CacheIndex(cache, attrgetter("node"))
    list_all(cache, pod("a", on="n1"), pod("b", on="n2"))
    by_node(index)

    cache.apply(event("DELETED", pod("a", on="n1")), NOW)
    cache.apply(event("DELETED", pod("b", on="n2")), NOW + KEEP_VANISHED)

    assert by_node(index) == {"n2": ["b"]}


def test_events_and_lists_that_are_older_than_an_object_that_was_read_do_not_change_it(cache):
    first, second = pod("a"), pod("a", on="n1")
    list_all(cache, pod("b"))

    cache.put(second)
    cache.apply(event("ADDED", first), NOW)
    list_all(cache, first, version="6")

    assert cache.objects["uid-a"].node == "n1"


def test_restored_backup_replaces_newer_objects(cache):
    first, second = pod("a"), pod("a", on="n1")
    list_all(cache, second)

    cache.forget_versions()
    list_all(cache, first, version="2")

    assert cache.objects["uid-a"].node == ""
