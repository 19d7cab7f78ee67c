"""Reads a page of telemetry, unless the circuit of the exporter is open.

Failure story: An exporter that hangs opens its circuit for everything that reads it, so it blocks no worker for long.
One that refuses connections is asked again each time; each worker process logs this when it begins, when it ends, and
once a minute in between.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from jobs.models import Cluster
from scheduling.backends.base import ClusterUnreachable
from scheduling.clusters import circuit_breaker
from scheduling.clusters.circuit_breaker import LATE_FAILURE_S, PROBE_TIMEOUT_S, Admission
from scheduling.models import ClusterEndpoint

log = logging.getLogger(__name__)

TELEMETRY_TIMEOUT_S = 5.0
WARN_EVERY_S = 60.0
_warned_at: dict[int, float] = {}  # by cluster whose telemetry fails: the last warning of this process

Page = TypeVar("Page")
ReadTelemetry = Callable[..., Page]  # address, timeout_s=; raises ClusterUnreachable


def telemetry_page(
    cluster: Cluster, read: ReadTelemetry[Page], monotonic: Callable[[], float] = time.monotonic
) -> Page | None:
    """Return the page of the cluster; None if there is none now."""
    admission = circuit_breaker.request_admission(cluster, ClusterEndpoint.TELEMETRY)
    if admission == Admission.WAIT:
        return None
    began, timeout_s = monotonic(), PROBE_TIMEOUT_S if admission == Admission.TRY else TELEMETRY_TIMEOUT_S
    try:
        page = read(cluster.metrics_address, timeout_s=timeout_s)
    except ClusterUnreachable as error:
        _warn(cluster, error, began)
        if monotonic() - began > LATE_FAILURE_S:
            circuit_breaker.record_timeout(cluster, ClusterEndpoint.TELEMETRY, str(error))
        return None
    if _warned_at.pop(cluster.pk, None) is not None:
        log.warning("cluster %s has telemetry again", cluster)
    if admission == Admission.TRY:
        circuit_breaker.record_answer(cluster, ClusterEndpoint.TELEMETRY)
    return page


def _warn(cluster: Cluster, error: ClusterUnreachable, now_s: float) -> None:
    """Log the failure, unless this process did so within the last minute."""
    last_s = _warned_at.get(cluster.pk)
    if last_s is None or now_s - last_s >= WARN_EVERY_S:
        _warned_at[cluster.pk] = now_s
        log.warning("no telemetry of cluster %s: %s", cluster, error)
