"""Circuit breaker: reduces the requests to an endpoint that does not respond in time, to save worker time.

A call that fails after more than `LATE_FAILURE_S` has blocked a worker for that long, and opens the circuit. The
endpoint is then not called for 2 s, 4 s, 8 s, up to a minute, each time with some random jitter. After each delay
exactly one worker probes it, with a short timeout. A call that fails at once (connection refused, an error response)
does not extend the delay. A response, or a turn without a late failure, closes the circuit.

Failure story: The state is one row in the database, shared by all workers. If a worker dies during a probe, another
worker probes after `PROBE_CLAIM`. A lost row, or an old row from a restored database, costs one late call or one
minute. A row applies to one address: a new address starts with a closed circuit, and a connection test by a user
deletes the row. Times are the database's, so the clocks of the workers do not matter.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import timedelta
from enum import StrEnum
from typing import Any

from django.db import connection

from jobs.logs import storage
from jobs.models import Cluster
from scheduling.backends.base import BackendError, BackendTraits, ClusterUnreachable
from scheduling.models import ClusterEndpoint, OpenCircuit

LATE_FAILURE_S = 2.0  # a faster failure costs no more than a response
PROBE_TIMEOUT_S = 3.0  # timeout of a probe
FIRST_RETRY_DELAY, MAX_RETRY_DELAY = timedelta(seconds=2), timedelta(minutes=1)
PROBE_CLAIM = timedelta(seconds=20)  # longer than a probe and the following call

CLAIM_PROBE_SQL = """
UPDATE scheduling_opencircuit SET retry_at = clock_timestamp() + %s
WHERE cluster_id = %s AND endpoint = %s AND address = %s AND retry_at <= clock_timestamp()
"""
RECORD_TIMEOUT_SQL = """
INSERT INTO scheduling_opencircuit AS o (cluster_id, endpoint, address, timeouts, since, retry_at, why)
VALUES (%(cluster)s, %(endpoint)s, %(address)s, 1, clock_timestamp(), clock_timestamp() + %(first)s, %(why)s)
ON CONFLICT (cluster_id, endpoint) DO UPDATE SET
    address = excluded.address, why = excluded.why,
    timeouts = CASE WHEN o.address = excluded.address THEN o.timeouts + 1 ELSE 1 END,
    since = CASE WHEN o.address = excluded.address THEN o.since ELSE excluded.since END,
    retry_at = clock_timestamp() + least(%(longest)s, %(first)s * CASE WHEN o.address = excluded.address
        THEN power(2, least(o.timeouts, 10)) ELSE 1 END) * %(jitter)s
"""


class Admission(StrEnum):
    FREE = "free"
    TRY = "try"  # this worker alone may probe
    WAIT = "wait"


def is_open(cluster: Cluster, endpoint: ClusterEndpoint) -> bool:
    """Whether the circuit is open. For callers that do not probe."""
    where = {"cluster": cluster, "endpoint": endpoint, "address": _endpoint_address(cluster, endpoint)}
    return OpenCircuit.objects.filter(**where).exists()


def request_admission(cluster: Cluster, endpoint: ClusterEndpoint) -> Admission:
    """Return whether this worker may call the endpoint now. Only one worker at a time gets TRY."""
    if not is_open(cluster, endpoint):
        return Admission.FREE
    with connection.cursor() as cursor:
        cursor.execute(CLAIM_PROBE_SQL, [PROBE_CLAIM, cluster.pk, endpoint, _endpoint_address(cluster, endpoint)])
        return Admission.TRY if cursor.rowcount else Admission.WAIT


def record_timeout(
    cluster: Cluster, endpoint: ClusterEndpoint, why: str, chance: Callable[[], float] = random.random
) -> None:
    values = {"cluster": cluster.pk, "endpoint": endpoint, "address": _endpoint_address(cluster, endpoint), "why": why}
    with connection.cursor() as cursor:
        cursor.execute(
            RECORD_TIMEOUT_SQL,
            values | {"first": FIRST_RETRY_DELAY, "longest": MAX_RETRY_DELAY, "jitter": 0.75 + chance() / 2},
        )


def record_answer(cluster: Cluster, endpoint: ClusterEndpoint) -> None:
    OpenCircuit.objects.filter(cluster=cluster, endpoint=endpoint).delete()


def reset_circuits(cluster: Cluster) -> None:
    """Close all circuits of a cluster, because a user requested an immediate retry."""
    OpenCircuit.objects.filter(cluster=cluster).delete()


def record_log_storage_state(silence: Callable[[str], str | None] = storage.unresponsive_reason) -> None:
    """Record which log storage does not respond to this process, for the cluster pages. The backoff itself is per
    process."""
    for cluster in Cluster.objects.all():
        why = silence(cluster.log_directory) if cluster.has_logs else None
        if why:
            record_timeout(cluster, ClusterEndpoint.LOGS, why)
        elif why is not None:
            record_answer(cluster, ClusterEndpoint.LOGS)


def open_circuits(cluster: Cluster) -> list[OpenCircuit]:
    """Return the open circuits for the current addresses of the cluster."""
    rows = OpenCircuit.objects.filter(cluster=cluster).order_by("endpoint")
    return [row for row in rows if row.address == _endpoint_address(cluster, ClusterEndpoint(row.endpoint))]


def _endpoint_address(cluster: Cluster, endpoint: ClusterEndpoint) -> str:
    match endpoint:
        case ClusterEndpoint.CONTROL:
            return cluster.address
        case ClusterEndpoint.TELEMETRY:
            return cluster.metrics_address
        case ClusterEndpoint.LOGS:
            return cluster.log_directory


class CircuitGuardedBackend:
    """Wraps a backend. After a late failure, described in `late`, it makes no more calls in this turn.

    The skipped calls raise ClusterUnreachable: they certainly had no effect.
    """

    def __init__(self, backend: Any, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._backend, self._monotonic = backend, monotonic
        self.late = ""

    @property
    def traits(self) -> BackendTraits:
        return self._backend.traits

    def submit_all(self, what: Any) -> Any:
        if self.late:
            return [ClusterUnreachable(self.late) for _ in what]
        began = self._monotonic()
        answers = self._backend.submit_all(what)
        for answer in answers:
            if isinstance(answer, BackendError):
                self._record_if_late(began, answer)
        return answers

    def __getattr__(self, name: str) -> Any:
        def guarded_call(*args: Any, **kwargs: Any) -> Any:
            if self.late:
                raise ClusterUnreachable(self.late)
            began = self._monotonic()
            try:
                return getattr(self._backend, name)(*args, **kwargs)
            except BackendError as error:
                self._record_if_late(began, error)
                raise

        return guarded_call

    def _record_if_late(self, began: float, error: BackendError) -> None:
        if self._monotonic() - began > LATE_FAILURE_S:
            self.late = str(error)
