"""Kubernetes as a backend: nodes, and one job for each top-level owner of pods that hold or request GPUs.

Acme only observes these clusters: everything that would change one is rejected. A look makes one small request, which
shows that the API server and its storage respond, and applies what the watches have brought since the last look.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from jobs.core.lifecycle import State

from ..base import (
    AccountingUnavailable,
    BackendError,
    BackendJob,
    BackendNode,
    BackendTraits,
    ClusterListing,
    ClusterUnreachable,
    LogUpdate,
    PingReply,
    RequestRejected,
    SubmitRequest,
)
from ..http_client import RequestDeadline
from .access import ReadFile, parse_address
from .advice import connection_advice
from .api_client import ApiClient, ApiRefusal
from .cache import ObjectCache
from .collection import FollowedCollection
from .discovery import (
    QUOTA_GROUP,
    QUOTA_KIND,
    WORKLOAD_KINDS,
    ServedResource,
    served_group_versions,
    served_resources,
    server_version,
)
from .jobs import group_job, workload_groups
from .nodes import NodeReport, backend_node, read_node
from .ownership import OwnerMapping
from .pod_template import PodTemplate
from .pods import Pod, read_pod
from .workloads import QuotaWait, Workload, read_quota_wait, read_workload

T = TypeVar("T")

DISCOVER_EVERY_S = 300.0  # operators of the cluster may install further kinds of workloads
NOT_SERVED, FORBIDDEN = 404, 403
OBSERVED_ONLY = "Acme only observes Kubernetes clusters and changes nothing on them"


def _no_state_in_log(tail: str) -> State | None:
    """Kubernetes writes nothing to the log of a pod."""
    return None


KUBERNETES_TRAITS = BackendTraits(
    supports_images=False,  # of jobs that Acme submits, which it does not do here
    rank_launcher="",
    writes_logs=False,
    state_in_log=_no_state_in_log,
    connection_advice=connection_advice,
)


class KubernetesBackend:
    """Each operation ends within `timeout_s`. Operations of several threads wait for each other."""

    traits = KUBERNETES_TRAITS

    def __init__(
        self,
        address: str,
        *,
        read_file: ReadFile,
        owners: OwnerMapping | None = None,
        template: PodTemplate | None = None,
        timeout_s: float = 10.0,
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._owners, self._monotonic, self._now = owners or OwnerMapping(), monotonic, now
        self._template = template or PodTemplate()
        self._api = ApiClient(parse_address(address), read_file, timeout_s)
        self._lock = threading.Lock()
        self._nodes = FollowedCollection(self._api, "/api/v1/nodes", ObjectCache(read_node, "node"))
        pods: ObjectCache[Pod] = ObjectCache(partial(read_pod, owners=self._owners), "job", keep_vanished=True)
        self._pods = FollowedCollection(self._api, "/api/v1/pods", pods)
        self._workloads: dict[ServedResource, FollowedCollection[Workload]] = {}
        self._quota_waits: dict[ServedResource, FollowedCollection[QuotaWait]] = {}
        self._discover_at = monotonic()
        self._node_listing: tuple[object, ClusterListing[BackendNode]] | None = None
        self._job_listing: tuple[object, ClusterListing[BackendJob]] | None = None

    def ping(self) -> PingReply:
        with self._lock:
            deadline = self._api.new_deadline()
            self._api.refresh_credentials()
            version = server_version(self._api.get("/version", deadline))
            self._api.current_version(deadline)
            return PingReply(product=f"kubernetes {version}", api="v1")

    def nodes(self) -> ClusterListing[BackendNode]:
        with self._lock:
            self._follow([self._nodes, self._pods])
            state = (self._nodes.cache.changes, self._pods.cache.changes)
            if self._node_listing is None or self._node_listing[0] != state:
                self._node_listing = (state, self._new_node_listing())
            return self._node_listing[1]

    def jobs(self) -> ClusterListing[BackendJob]:
        with self._lock:
            self._follow([self._nodes, self._pods])
            self._follow_workloads(self._api.new_deadline())
            state = tuple(collection.cache.changes for collection in self._all_collections())
            if self._job_listing is None or self._job_listing[0] != state:
                self._job_listing = (state, self._new_job_listing())
            return self._job_listing[1]

    def find(self, key: str) -> BackendJob | None:
        listing = self.jobs()
        ours = [job for job in listing if job.key == key]
        if not ours and listing.hides_job("", key):
            raise ClusterUnreachable(f"{self._api.server}: an unreadable object may be the job with key {key}")
        return max(ours, key=lambda job: job.submitted_at or datetime.min.replace(tzinfo=UTC), default=None)

    def accounting_jobs(self, backend_id: str) -> Sequence[BackendJob]:
        raise AccountingUnavailable("Kubernetes keeps no record of deleted objects")

    def accounting_jobs_since(self, since: datetime) -> Sequence[BackendJob]:
        raise AccountingUnavailable("Kubernetes keeps no record of deleted objects")

    def submit(self, request: SubmitRequest) -> str:
        raise RequestRejected(OBSERVED_ONLY)

    def submit_all(self, requests: Sequence[SubmitRequest]) -> Sequence[str | BackendError]:
        return [RequestRejected(OBSERVED_ONLY) for _ in requests]

    def cancel(self, backend_id: str) -> None:
        raise RequestRejected(OBSERVED_ONLY)

    def signal(self, backend_id: str, name: str, *, shell: bool) -> None:
        raise RequestRejected(OBSERVED_ONLY)

    def evict(self, backend_id: str) -> None:
        raise RequestRejected(OBSERVED_ONLY)

    def advance_jobs(self) -> None:
        """Nothing to do: Acme submits no jobs here."""

    def new_log_lines(self, backend_id: str, positions: Mapping[str, str]) -> LogUpdate:
        raise RequestRejected(OBSERVED_ONLY)

    def drain(self, node: str, reason: str) -> None:
        raise RequestRejected(OBSERVED_ONLY)

    def resume(self, node: str) -> None:
        raise RequestRejected(OBSERVED_ONLY)

    def close(self) -> None:
        for collection in self._all_collections():
            collection.stop()
        self._api.close()

    # Following the cluster

    def _all_collections(self) -> Iterable[FollowedCollection[Any]]:
        yield self._nodes
        yield self._pods
        yield from self._workloads.values()
        yield from self._quota_waits.values()

    def _follow(self, collections: Iterable[FollowedCollection[Any]]) -> None:
        deadline = self._api.new_deadline()
        self._api.refresh_credentials()
        self._check_version(self._api.current_version(deadline))
        for collection in collections:
            collection.catch_up(deadline, self._now())

    def _check_version(self, current: str) -> None:
        """List everything again if the storage is older than what was read: it was restored from a backup."""
        for collection in self._all_collections():
            known = collection.cache.resource_version
            if known.isdigit() and current.isdigit() and int(current) < int(known):
                collection.list_again()

    def _follow_workloads(self, deadline: RequestDeadline) -> None:
        if self._monotonic() >= self._discover_at:
            self._discover(deadline)
            self._discover_at = self._monotonic() + DISCOVER_EVERY_S
        self._follow_allowed(self._workloads, deadline)
        self._follow_allowed(self._quota_waits, deadline)

    def _follow_allowed(
        self, collections: dict[ServedResource, FollowedCollection[T]], deadline: RequestDeadline
    ) -> None:
        """Pods name their owners, so a kind that Acme may not list, or that was removed, costs details only."""
        for resource, collection in list(collections.items()):
            try:
                collection.catch_up(deadline, self._now())
            except ApiRefusal as error:
                if error.status not in (NOT_SERVED, FORBIDDEN):
                    raise
                collection.stop()
                del collections[resource]

    def _discover(self, deadline: RequestDeadline) -> None:
        groups = served_group_versions(self._api.get("/apis", deadline))
        for group, kinds in WORKLOAD_KINDS.items():
            for resource in self._served(group, kinds, groups.get(group, []), deadline):
                if resource not in self._workloads:
                    self._workloads[resource] = self._new_workloads(resource)
        for resource in self._served(QUOTA_GROUP, (QUOTA_KIND,), groups.get(QUOTA_GROUP, []), deadline):
            if resource not in self._quota_waits:
                cache: ObjectCache[QuotaWait] = ObjectCache(read_quota_wait, "job")
                self._quota_waits[resource] = FollowedCollection(self._api, resource.path, cache)

    def _new_workloads(self, resource: ServedResource) -> FollowedCollection[Workload]:
        reduce = partial(read_workload, kind=resource.kind, owners=self._owners)
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

    # Listings from the caches

    def _new_node_listing(self) -> ClusterListing[BackendNode]:
        held: dict[str, int] = defaultdict(int)
        for pod in self._pods.cache.objects.values():
            if pod.holds_gpus:
                held[pod.node] += pod.gpus
        reports = self._nodes.cache.objects.values()
        nodes = [backend_node(report, held[report.name], held[report.name] > 0) for report in reports]
        return ClusterListing(nodes, self._nodes.cache.unreadable)

    def _new_job_listing(self) -> ClusterListing[BackendJob]:
        caches = [collection.cache for collection in self._workloads.values()]
        workloads = {uid: part for cache in caches for uid, part in (cache.objects | cache.vanished).items()}
        pods = [*self._pods.cache.objects.values(), *self._pods.cache.vanished.values()]
        waits = self._quota_reasons()
        lost = _lost_nodes(self._nodes.cache.objects.values(), pods)
        groups = workload_groups(pods, workloads).values()
        unreadable = [*self._pods.cache.unreadable, *(row for cache in caches for row in cache.unreadable)]
        return ClusterListing((group_job(group, workloads, waits, lost) for group in groups), unreadable)

    def _quota_reasons(self) -> Mapping[str, str]:
        waits = [wait for collection in self._quota_waits.values() for wait in collection.cache.objects.values()]
        return {uid: wait.reason for wait in waits if wait.reason for uid in wait.for_uids}


def _lost_nodes(reports: Iterable[NodeReport], pods: Iterable[Pod]) -> frozenset[str]:
    """Nodes of pods that do not respond or were deleted."""
    usable = {report.name for report in reports if report.usable}
    return frozenset({pod.node for pod in pods if pod.node} - usable)
