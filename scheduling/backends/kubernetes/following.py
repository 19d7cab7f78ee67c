"""What Acme follows of a cluster: nodes, pods, all kinds of owners that the cluster serves, and its own ConfigMaps.

A look makes one small request, which shows that the API server and its storage respond, and applies what the watches
have brought since the last look.

Watches may lag, each process has its own, and nothing shows how far behind one is. What a cache shows as ended, failed
or deleted has happened. What it shows as running, waiting or missing may be over: whoever acts on that reads the
objects first (`read_attempts`, `_read_lost_nodes`), and so do other processes that know more.
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar
from urllib.parse import quote

from acmeweb.common.http_client import RequestDeadline

from ..base import ClusterUnreachable
from .api_client import ApiClient
from .api_errors import FORBIDDEN, NOT_FOUND, ApiRefusal
from .cache import CacheIndex, ObjectCache
from .changes import ChangeReader
from .collection import FollowedCollection
from .discovery import (
    ATTEMPT_KINDS,
    QUOTA_GROUP,
    QUOTA_KIND,
    WORKLOAD_KINDS,
    ServedResource,
    served_group_versions,
    served_resources,
)
from .fields import text_at
from .groups import GroupCache
from .nodes import NodeReport, read_node
from .ownership import KEY_LABEL, OwnerMapping
from .pods import Pod, read_pod
from .workloads import QuotaWait, Workload, read_quota_wait, read_workload

T = TypeVar("T")

DISCOVER_EVERY_S = 300.0  # operators of the cluster may install further kinds of workloads
RESTORED_AFTER_S = 60.0  # longer than a cache or a lagging server answers from the past
NODES, PODS = "/api/v1/nodes", "/api/v1/pods"
KEYS_PER_REQUEST = 50
READ_LOST_EVERY_S = 5.0
LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


def config_maps_path(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps"


class ClusterFollower:
    """Not for several threads at once. `own_namespaces` are those in which Acme runs attempts."""

    def __init__(
        self,
        api: ApiClient,
        owners: OwnerMapping,
        own_namespaces: Iterable[str],
        monotonic: Callable[[], float],
        now: Callable[[], datetime],
    ) -> None:
        self._api, self._owners, self._monotonic, self._now = api, owners, monotonic, now
        self._own_namespaces = tuple(own_namespaces)
        self.nodes: FollowedCollection[NodeReport] = FollowedCollection(api, NODES, ObjectCache(read_node, "node"))
        pods: ObjectCache[Pod] = ObjectCache(partial(read_pod, owners=owners), "job", keep_vanished=True)
        self.pods = FollowedCollection(api, PODS, pods)
        self.config_maps = {config_maps_path(name): self._new_config_maps(name) for name in self._own_namespaces}
        self._workloads: dict[ServedResource, FollowedCollection[Workload]] = {}
        self._quota_waits: dict[ServedResource, FollowedCollection[QuotaWait]] = {}
        self._discover_at = monotonic()
        self._lost_nodes: tuple[object, frozenset[str]] = (None, frozenset())  # with the changes as of then
        self._lost_until: dict[str, float] = {}  # lost nodes that were read, and when they must be read again
        self._older_since: float | None = None  # since when the storage says an older version than what was read
        self.pods_by_node = CacheIndex(self.pods.cache, attrgetter("node"))
        self.groups, self._group_reader = GroupCache(), ChangeReader()
        self.api_groups: Mapping[str, Sequence[str]] = {}  # API group → versions, as discovered

    def _new_config_maps(self, namespace: str) -> FollowedCollection[Workload]:
        path = config_maps_path(namespace)
        reduce = partial(read_workload, kind="ConfigMap", collection=path, owners=self._owners)
        cache: ObjectCache[Workload] = ObjectCache(reduce, "job", keep_vanished=True)
        return FollowedCollection(self._api, path, cache, selector=KEY_LABEL)

    def follow_nodes_and_pods(self, deadline: RequestDeadline) -> None:
        self._api.refresh_credentials()
        self._check_version(self._api.current_version(deadline))
        for collection in (self.nodes, self.pods):
            collection.catch_up(deadline, self._now())
        self._read_lost_nodes(deadline)

    def follow_all(self, deadline: RequestDeadline) -> None:
        self.follow_nodes_and_pods(deadline)
        for own in self.config_maps.values():
            self._follow_config_maps(own, deadline)
        if self._monotonic() >= self._discover_at:
            self._discover(deadline)
            self._discover_at = self._monotonic() + DISCOVER_EVERY_S
        self._follow_allowed(self._workloads, deadline)
        self._follow_allowed(self._quota_waits, deadline)

    def _follow_config_maps(self, own: FollowedCollection[Workload], deadline: RequestDeadline) -> None:
        """Where Acme only observes, it may not list them, and has none. Attempts that were seen are never dropped."""
        try:
            own.catch_up(deadline, self._now())
        except ApiRefusal as error:
            if error.status not in (NOT_FOUND, FORBIDDEN) or own.cache.resource_version:
                raise

    def collections(self) -> Iterable[FollowedCollection[Any]]:
        yield self.nodes
        yield self.pods
        yield from self.config_maps.values()
        yield from self._workloads.values()
        yield from self._quota_waits.values()

    def changes(self) -> tuple[int, ...]:
        """Different whenever something that is followed may have changed."""
        return tuple(collection.cache.changes.count for collection in self.collections())

    def workload_collections(self) -> list[FollowedCollection[Workload]]:
        return [*self.config_maps.values(), *self._workloads.values()]

    def workloads(self) -> Mapping[str, Workload]:
        """By uid, with those that vanished recently."""
        caches = [collection.cache for collection in self.workload_collections()]
        return ChainMap(*[found for cache in caches for found in (cache.objects, cache.vanished) if found])

    def all_pods(self) -> Mapping[str, Pod]:
        """By uid, with those that vanished recently."""
        return ChainMap(self.pods.cache.objects, self.pods.cache.vanished)

    def update_groups(self) -> None:
        """Apply what changed to `groups`."""
        logs = [self.pods.cache.changes, *(collection.cache.changes for collection in self.workload_collections())]
        with self._group_reader.changes(logs) as changed:
            self.groups.update(self.all_pods(), self.workloads(), changed)

    def quota_reasons(self) -> dict[str, str]:
        waits = [wait for collection in self._quota_waits.values() for wait in collection.cache.objects.values()]
        return {uid: wait.reason for wait in waits if wait.reason for uid in wait.for_uids}

    def expect_version(self, path: str, version: str) -> None:
        """The next look at this collection, or at the namespace's part of one, must include this version."""
        whole = re.sub("/namespaces/[^/]+", "", path)
        for collection in self.collections():
            if collection.path in (path, whole):
                collection.expect_version(version)

    def lost_nodes(self) -> frozenset[str]:
        """Nodes of pods that do not respond or were deleted."""
        state = (self.nodes.cache.changes.count, self.pods.cache.changes.count)
        if self._lost_nodes[0] != state:
            usable = {report.name for report in self.nodes.cache.objects.values() if report.is_ready}
            self._lost_nodes = (state, frozenset(self.pods_by_node.update().keys() - usable - {""}))
        return self._lost_nodes[1]

    def _read_lost_nodes(self, deadline: RequestDeadline) -> None:
        """Read the nodes of live pods that the cache shows as lost: attempts end because of that."""
        now, pods = self._monotonic(), self.pods_by_node.update()
        self._lost_until = {name: at for name, at in self._lost_until.items() if now < at}
        for name in self.lost_nodes():
            if name not in self._lost_until and any(pod.is_live for pod in pods[name].values()):
                self._read_node(name, deadline)
                self._lost_until[name] = now + READ_LOST_EVERY_S

    def _read_node(self, name: str, deadline: RequestDeadline) -> None:
        try:
            self.nodes.cache.put(self._api.get(f"{NODES}/{quote(name, safe='')}", deadline))
        except ApiRefusal as error:
            if error.status != NOT_FOUND:
                raise

    def read_attempts(self, keys: Iterable[str], deadline: RequestDeadline, kind: str = "") -> set[str]:
        """Read the objects of attempts into the caches, past the watches. Return their uids. `kind` is that of their
        owners; empty: any.
        """
        usable = sorted(key for key in set(keys) if LABEL_VALUE.fullmatch(key))
        uids: set[str] = set()
        for first in range(0, len(usable), KEYS_PER_REQUEST):
            selector = f"{KEY_LABEL} in ({','.join(usable[first : first + KEYS_PER_REQUEST])})"
            for namespace in self._own_namespaces:
                for collection in self._attempt_collections(kind, namespace):
                    uids |= self._read_selected(collection, namespace, selector, deadline)
        return uids

    def _attempt_collections(self, kind: str, namespace: str) -> list[FollowedCollection[Any]]:
        """Those in which attempts with owners of this kind have objects."""
        own = self.config_maps[config_maps_path(namespace)]
        config_maps = [own] if kind in ("", "ConfigMap") and own.cache.resource_version else []
        owners = [
            collection
            for resource, collection in self._workloads.items()
            if resource.kind in ATTEMPT_KINDS.get(resource.group, ()) and kind not in ("Pod", "ConfigMap")
        ]
        return [*config_maps, *owners, self.pods]

    def _read_selected(
        self, collection: FollowedCollection[Any], namespace: str, selector: str, deadline: RequestDeadline
    ) -> set[str]:
        base, _, plural = collection.path.rpartition("/")
        path = collection.path if "/namespaces/" in base else f"{base}/namespaces/{quote(namespace, safe='')}/{plural}"
        page, uids = "", set()
        while True:
            items, page, _ = self._api.list_page(path, deadline, page, selector)
            for item in items:
                collection.cache.put(item)
                uids.add(text_at(item, "metadata", "uid"))
            if not page:
                return uids

    def stop(self) -> None:
        for collection in self.collections():
            collection.stop()

    def _check_version(self, current: str) -> None:
        """Raises ClusterUnreachable while the storage says an older version than what was read. A server that repeats
        old responses does so for seconds; if it lasts, the storage was restored from a backup, and is listed again.
        """
        newer = [collection for collection in self.collections() if collection.is_newer_than(current)]
        if not newer:
            self._older_since = None
            return
        if self._older_since is None:
            self._older_since = self._monotonic()
        if self._monotonic() - self._older_since < RESTORED_AFTER_S:
            raise ClusterUnreachable(f"{self._api.server}: its state is older than in an earlier response")
        for collection in newer:
            collection.list_restored()

    def _follow_allowed(
        self, collections: dict[ServedResource, FollowedCollection[T]], deadline: RequestDeadline
    ) -> None:
        """Pods name their owners, so a kind that Acme may not list, or that was removed, costs details only."""
        for resource, collection in list(collections.items()):
            try:
                collection.catch_up(deadline, self._now())
            except ApiRefusal as error:
                if error.status not in (NOT_FOUND, FORBIDDEN):
                    raise
                collection.stop()
                del collections[resource]

    def _discover(self, deadline: RequestDeadline) -> None:
        groups = self.api_groups = served_group_versions(self._api.get("/apis", deadline))
        for group, kinds in WORKLOAD_KINDS.items():
            for resource in self._served(group, kinds, groups.get(group, []), deadline):
                if resource not in self._workloads:
                    self._workloads[resource] = self._new_workloads(resource)
        for resource in self._served(QUOTA_GROUP, (QUOTA_KIND,), groups.get(QUOTA_GROUP, []), deadline):
            if resource not in self._quota_waits:
                cache: ObjectCache[QuotaWait] = ObjectCache(read_quota_wait, "job")
                self._quota_waits[resource] = FollowedCollection(self._api, resource.path, cache)

    def _new_workloads(self, resource: ServedResource) -> FollowedCollection[Workload]:
        reduce = partial(read_workload, kind=resource.kind, collection=resource.path, owners=self._owners)
        cache: ObjectCache[Workload] = ObjectCache(reduce, "job", keep_vanished=True)
        return FollowedCollection(self._api, resource.path, cache)

    def _served(
        self, group: str, kinds: Sequence[str], versions: Sequence[str], deadline: RequestDeadline
    ) -> Iterable[ServedResource]:
        """Each kind once, in the first version that serves it."""
        found: dict[str, ServedResource] = {}
        for version in versions:
            missing = set(kinds) - set(found)
            if not missing:
                break
            answer = self._api.get(f"/apis/{group}/{version}", deadline)
            found |= {resource.kind: resource for resource in served_resources(group, version, answer, missing)}
        return found.values()
