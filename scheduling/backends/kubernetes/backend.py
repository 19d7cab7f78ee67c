"""Kubernetes as a backend: nodes, and one job for each top-level owner of pods that hold or request GPUs.

Reading is `following`, writing is `driving`. Only attempts that this installation submitted are changed, and nodes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from jobs.core.backend_job import BackendJob
from jobs.core.cluster_kinds import KUBERNETES, MANIFEST_COMMAND

from ..base import (
    AccountingUnavailable,
    BackendError,
    BackendNode,
    BackendTraits,
    ClusterListing,
    ClusterUnreachable,
    LogUpdate,
    PingReply,
    SubmitRequest,
)
from .api_client import ApiClient
from .containers.attempt_containers import AttemptContainers
from .containers.log_messages import state_in_log
from .discovery import server_version
from .driving.driver import AttemptDriver
from .following import ClusterFollower
from .jobs import JobCache
from .nodes import backend_node
from .ownership import OwnerMapping
from .pod_template import PodTemplate

# Each pod runs the script, so each is a rank already
RANK_LAUNCHER = """\
if [ -n "$NODE_RANK" ] && [ "$NNODES" = "$ranks" ]; then
  program | RANK="$NODE_RANK" WORLD_SIZE="$ranks" python3 - "$@"
  exit $?
fi
"""


def connection_advice(message: str) -> str:
    """Advice for the usual cause of this error message."""
    words = message.lower()
    if "http 401" in words:
        return "The credentials were rejected. Check that the token or certificate is current and of this cluster."
    if "http 403" in words or "forbidden" in words:
        return f"Acme may not read this. Grant it: {MANIFEST_COMMAND}"
    if "certificate" in words or "ssl" in words:
        return "Check certificate-authority(-data) and tls-server-name in the kubeconfig."
    if "kubeconfig" in words or "plugin" in words or "token" in words:
        return "Correct the kubeconfig file, for example with the one that kubernetes_manifest describes."
    if "json" in words or "http 404" in words:
        return "Another program listens at this address. Check the server in the kubeconfig."
    return "Check that kubectl with the same kubeconfig works from this machine."


KUBERNETES_TRAITS = BackendTraits(
    supports_images=True,
    rank_launcher=RANK_LAUNCHER,
    writes_logs=KUBERNETES.writes_logs,
    powers_nodes=KUBERNETES.powers_nodes,
    state_in_log=state_in_log,
    connection_advice=connection_advice,
)


class KubernetesBackend:
    """Each operation ends within the time of its `api`. Operations of several threads wait for each other."""

    def __init__(
        self,
        api: ApiClient,
        *,
        owners: OwnerMapping | None = None,
        template: PodTemplate | None = None,
        installation: str = "",
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        template = template or PodTemplate()
        self.traits = replace(KUBERNETES_TRAITS, no_jobs_reason=template.denial)
        self._api = api
        self._lock = threading.Lock()
        namespaces = template.own_namespaces
        self._cluster = ClusterFollower(self._api, owners or OwnerMapping(), namespaces, monotonic, now)
        self._driver = AttemptDriver(
            *(self._api, self._cluster, self._lock),
            template=template,
            installation=installation,
            monotonic=monotonic,
            now=now,
        )
        self._containers = AttemptContainers(
            *(self._api, self._cluster, self._driver, self._lock), monotonic=monotonic, now=now
        )
        self._node_listing: tuple[object, ClusterListing[BackendNode]] | None = None
        self._job_listing: tuple[object, ClusterListing[BackendJob]] | None = None
        self._jobs = JobCache()

    def ping(self) -> PingReply:
        with self._lock:
            deadline = self._api.new_deadline()
            self._api.refresh_credentials()
            version = server_version(self._api.get("/version", deadline))
            self._api.current_version(deadline)
            return PingReply(product=f"kubernetes {version}", api="v1")

    def nodes(self) -> ClusterListing[BackendNode]:
        with self._lock:
            self._cluster.follow_nodes_and_pods(self._api.new_deadline())
            state = (self._cluster.nodes.cache.changes.count, self._cluster.pods.cache.changes.count)
            if self._node_listing is None or self._node_listing[0] != state:
                self._node_listing = (state, self._new_node_listing())
            return self._node_listing[1]

    def jobs(self) -> ClusterListing[BackendJob]:
        with self._lock:
            deadline = self._api.new_deadline()
            self._cluster.follow_all(deadline)
            late = self._driver.late_uids(deadline)
            reasons = {**self._cluster.quota_reasons(), **self._driver.wait_reasons()}
            state = (self._cluster.changes(), late, reasons)
            if self._job_listing is None or self._job_listing[0] != state:
                self._job_listing = (state, self._new_job_listing(reasons, late))
            return self._job_listing[1]

    def current_jobs(self, keys: Collection[str]) -> ClusterListing[BackendJob]:
        with self._lock:
            deadline = self._api.new_deadline()
            self._cluster.follow_all(deadline)
            self._cluster.read_attempts(keys, deadline)
        listing = self.jobs()
        return ClusterListing((job for job in listing if job.key in keys), listing.unreadable)

    def find(self, key: str) -> BackendJob | None:
        listing = self.jobs()
        ours = [job for job in listing if job.key == key]
        if not ours:  # the events that show it may be late
            ours = listing = self.current_jobs([key])
        if not ours and listing.hides_job("", key):
            raise ClusterUnreachable(f"{self._api.server}: an unreadable object may be the job with key {key}")
        return max(ours, key=lambda job: job.submitted_at or datetime.min.replace(tzinfo=UTC), default=None)

    def accounting_jobs(self, backend_id: str) -> Sequence[BackendJob]:
        raise AccountingUnavailable("Kubernetes keeps no record of deleted objects")

    def accounting_jobs_since(self, since: datetime) -> Sequence[BackendJob]:
        raise AccountingUnavailable("Kubernetes keeps no record of deleted objects")

    def submit(self, request: SubmitRequest) -> str:
        return self._driver.submit(request)

    def submit_all(self, requests: Sequence[SubmitRequest]) -> Sequence[str | BackendError]:
        return self._driver.submit_all(requests)

    def cancel(self, backend_id: str) -> None:
        self._driver.cancel(backend_id)

    def signal(self, backend_id: str, name: str, *, shell: bool) -> None:
        self._containers.signal(backend_id, name, shell=shell)

    def evict(self, backend_id: str) -> None:
        self._driver.evict(backend_id)

    def advance_jobs(self) -> None:
        self._driver.advance()

    def new_log_lines(self, backend_id: str, positions: Mapping[str, str]) -> LogUpdate:
        return self._containers.new_log_lines(backend_id, positions)

    def drain(self, node: str, reason: str) -> None:
        self._driver.drain(node, reason)

    def resume(self, node: str) -> None:
        self._driver.resume(node)

    def power_down(self, node: str) -> None:
        self._driver.power_down(node)

    def power_up(self, node: str) -> None:
        self._driver.power_up(node)

    def close(self) -> None:
        self._cluster.stop()
        self._containers.close()
        self._driver.close()
        self._api.close()

    # Listings from the caches

    def _new_node_listing(self) -> ClusterListing[BackendNode]:
        pods, nodes = self._cluster.pods_by_node.update(), self._cluster.nodes.cache
        rows = [
            backend_node(report, [pod for pod in pods.get(report.name, {}).values() if pod.is_live])
            for report in nodes.objects.values()
        ]
        return ClusterListing(rows, nodes.unreadable)

    def _new_job_listing(self, reasons: Mapping[str, str], late: frozenset[str]) -> ClusterListing[BackendJob]:
        workloads, lost = self._cluster.workloads(), self._cluster.lost_nodes()
        self._cluster.update_groups()
        parts = [collection.cache.unreadable for collection in self._cluster.workload_collections()]
        unreadable = [*self._cluster.pods.cache.unreadable, *(row for rows in parts for row in rows)]
        return ClusterListing(self._jobs.jobs(self._cluster.groups, workloads, reasons, lost, late), unreadable)
