"""Reads a page of telemetry, unless the circuit of the exporter is open.

Failure story: An exporter that hangs opens its circuit for everything that reads it, so it blocks no worker for long.
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
        log.warning("no telemetry of cluster %s: %s", cluster, error)
        if monotonic() - began > LATE_FAILURE_S:
            circuit_breaker.record_timeout(cluster, ClusterEndpoint.TELEMETRY, str(error))
        return None
    if admission == Admission.TRY:
        circuit_breaker.record_answer(cluster, ClusterEndpoint.TELEMETRY)
    return page
