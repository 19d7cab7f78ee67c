"""Ask a cluster less often while it does not answer in time, so that it costs the workers little.

A call that fails after more than `LATE_S` has occupied a worker for that long. From then on the endpoint is left alone:
for 2 s, then 4 s, 8 s, up to a minute, each a little longer or shorter by chance. When that time is over, exactly one
worker tries it, with a short deadline. A call that fails at once (connection refused, an error as the answer) costs
nothing and lengthens no wait; a turn that meets no other failure ends all this, as any answer does.

Failure story: The state is one row in the database, for all workers. A worker that dies while it tries leaves a row
whose time of the next try is `CLAIM` ahead; then another worker tries. A row that is lost, or left behind by a restored
database, costs one late call or one minute. A row counts for one address: who changes the address starts anew, and a
person who tests the connection deletes it. Times are the database's, so clocks of workers do not matter.
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
from scheduling.backends.base import BackendError, ClusterUnreachable
from scheduling.models import ClusterEndpoint, OpenCircuit

LATE_FAILURE_S = 2.0  # a failure after less than this cost no more than an answer would have
PROBE_TIMEOUT_S = 3.0  # the deadline of a try
FIRST_RETRY_DELAY, MAX_RETRY_DELAY = timedelta(seconds=2), timedelta(minutes=1)
PROBE_CLAIM = timedelta(seconds=20)  # longer than a try and the call after it take

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
    TRY = "try"  # by this worker alone, briefly
    WAIT = "wait"


def is_open(cluster: Cluster, endpoint: ClusterEndpoint) -> bool:
    """Whether it is left alone just now; for callers that do not try it themselves."""
    where = {"cluster": cluster, "endpoint": endpoint, "address": _endpoint_address(cluster, endpoint)}
    return OpenCircuit.objects.filter(**where).exists()


def request_admission(cluster: Cluster, endpoint: ClusterEndpoint) -> Admission:
    """Whether this worker may call it now. TRY is given to one worker at a time."""
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
    """A person wants to know now."""
    OpenCircuit.objects.filter(cluster=cluster).delete()


def record_log_storage_state(silence: Callable[[str], str | None] = storage.unresponsive_reason) -> None:
    """For the pages of clusters: which log storage did not answer this process. Each process backs off by itself."""
    for cluster in Cluster.objects.exclude(log_root=""):
        why = silence(cluster.log_root)
        if why:
            record_timeout(cluster, ClusterEndpoint.LOGS, why)
        elif why is not None:
            record_answer(cluster, ClusterEndpoint.LOGS)


def open_circuits(cluster: Cluster) -> list[OpenCircuit]:
    """Of the addresses that the cluster has now."""
    rows = OpenCircuit.objects.filter(cluster=cluster).order_by("endpoint")
    return [row for row in rows if row.address == _endpoint_address(cluster, ClusterEndpoint(row.endpoint))]


def _endpoint_address(cluster: Cluster, endpoint: ClusterEndpoint) -> str:
    match endpoint:
        case ClusterEndpoint.CONTROL:
            return cluster.address
        case ClusterEndpoint.TELEMETRY:
            return cluster.metrics_address
        case ClusterEndpoint.LOGS:
            return cluster.log_root


class CircuitGuardedBackend:
    """A backend that is not called again in this turn once a call to it failed late: `late` says how.

    What is not called any more was surely not done, so it is Unreachable.
    """

    def __init__(self, backend: Any, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._backend, self._monotonic = backend, monotonic
        self.late = ""

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
        def guarded_call(*words: Any, **names: Any) -> Any:
            if self.late:
                raise ClusterUnreachable(self.late)
            began = self._monotonic()
            try:
                return getattr(self._backend, name)(*words, **names)
            except BackendError as error:
                self._record_if_late(began, error)
                raise

        return guarded_call

    def _record_if_late(self, began: float, error: BackendError) -> None:
        if self._monotonic() - began > LATE_FAILURE_S:
            self.late = str(error)
