"""One turn of a cluster's loop: send commands, sync, decide, send commands.

Eligible rows     Clusters whose lease is free. Any worker may run any turn that is due.
What a turn does  `apply_maintenances_once` drains and resumes the nodes of maintenance windows.
                  `send_commands_once` sends due commands.
                  `sync_cluster_once` applies the cluster's report; then and at the end of the turn, jobs that need
                  more than their submission make their next steps on the cluster (`Backend.advance_jobs`).
                  `advance_pair_tests_once` makes the next step of pair tests.
                  `evict_from_drained_nodes_once` evicts jobs from drained nodes.
                  `enforce_time_limits_once` ends jobs that exceed their time limit.
                  `schedule_once` starts waiting jobs or records why they wait; `send_commands_once` runs again.
                  A cluster that does not respond in time is not called for a while (`circuit_breaker`).
Failure story     Killed while holding the lease: the worker's database session is gone, so the next turn takes over the
                  lease and the dead worker's commands. A machine that lost its network keeps the lease until it
                  expires. Suspended past the end of the lease: each transaction checks the term and fails; claimed
                  commands stay claimed until the claim expires. Cluster unreachable: nothing is known, so nothing is
                  decided; the pages show the cluster and since when. Internal error: the turn ends, the cluster's page
                  shows the error, and the next turn retries. Killed anywhere else: see the modules; each step is
                  repeatable.

No transaction is open during calls to the cluster or during the policy's computation.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import cast

from django.db import Error
from django.db.models.functions import Coalesce, Now

from acmeweb.common import live, metrics_store
from acmeweb.common.errors import EndsTurn, InvalidField, TimeLimitExceeded
from jobs.models import Cluster, ClusterMode, clock
from scheduling.backends.base import Backend, BackendError
from scheduling.clusters import circuit_breaker, connections
from scheduling.clusters.circuit_breaker import LATE_FAILURE_S, PROBE_TIMEOUT_S, Admission, CircuitGuardedBackend
from scheduling.engine.placements import PLACEMENTS
from scheduling.engine.policies import LIVE_POLICIES, LivePolicy, configured_policy
from scheduling.engine.settings import MissingLibrary
from scheduling.loops.commands import claims
from scheduling.loops.commands.send import send_commands_once
from scheduling.loops.drains import evict_from_drained_nodes_once
from scheduling.loops.maintenance import apply_maintenances_once
from scheduling.loops.observe.sync import sync_cluster_once
from scheduling.loops.pair_tests import advance_pair_tests_once
from scheduling.loops.schedule import schedule_once
from scheduling.loops.time_limits import enforce_time_limits_once
from scheduling.models import ClusterEndpoint, Lease

log = logging.getLogger(__name__)

TURN_LEASE = timedelta(seconds=30)


class ClusterConfigError(Exception):
    """The cluster's row has an invalid setting. The cluster's page shows the message."""


class LeaseLost(EndsTurn):
    """Another worker may run this cluster's loop now, so this turn must end."""


@dataclass(frozen=True, kw_only=True)
class TurnLease:
    """The lease of this turn."""

    name: str
    term: int

    def check_held(self) -> None:
        if not Lease.holds_term(self.name, self.term):
            raise LeaseLost(f"{self.name}: term {self.term} has ended")

    def renew(self) -> None:
        if not Lease.renew(self.name, self.term, TURN_LEASE):
            raise LeaseLost(f"{self.name}: term {self.term} has ended")


Connect = Callable[[Cluster], Backend]
Ping = Callable[[Cluster, float], None]


def run_turn(
    cluster_id: int,
    holder: str,
    connect: Connect,
    ping: Ping = connections.ping,
    monotonic: Callable[[], float] = time.monotonic,
) -> bool:
    """Run one turn under the cluster's lease. Return False if another worker holds it, or the cluster is not called.

    `ping` probes, with a timeout in seconds, a cluster whose circuit is open.
    """
    name = f"cluster:{cluster_id}"
    acquired = Lease.take(name, holder, TURN_LEASE)
    if acquired is None:
        return False
    lease = TurnLease(name=name, term=acquired.term)
    try:
        # A worker that is only suspended may still send its commands, so they are only released if it is dead
        if acquired.alone:
            claims.release_claims(cluster_id, clock.now())
        cluster = Cluster.objects.get(pk=cluster_id)
        if not _may_call_cluster(cluster, ping, monotonic):
            return False
        run_turn_once(cluster, connect, lease, clock.now())
        return True
    except LeaseLost as error:
        log.warning("%s", error)
        return False
    finally:
        with suppress(Error):  # it would hide why the turn ended; the lease then expires
            Lease.release(name, acquired.term)


def _may_call_cluster(cluster: Cluster, ping: Ping, monotonic: Callable[[], float]) -> bool:
    """Return whether the turn may call the cluster. If the circuit is open and a probe is due, ping the cluster first.

    A ping that fails at once is not a timeout: the turn continues and records the error.
    """
    admission = circuit_breaker.request_admission(cluster, ClusterEndpoint.CONTROL)
    if admission != Admission.TRY:
        return admission == Admission.FREE
    began = monotonic()
    try:
        ping(cluster, PROBE_TIMEOUT_S)
    except BackendError as error:
        if monotonic() - began <= LATE_FAILURE_S:
            return True
        circuit_breaker.record_timeout(cluster, ClusterEndpoint.CONTROL, str(error))
        _record_trouble(cluster, str(error))
        return False
    return True


def run_turn_once(cluster: Cluster, connect: Connect, lease: TurnLease, now: datetime) -> None:
    guarded: CircuitGuardedBackend | None = None
    try:
        apply_maintenances_once(cluster, now)
        policy = _policy(cluster)
        guarded = CircuitGuardedBackend(connect(cluster))
        _run_turn_steps(cluster, policy, cast(Backend, guarded), lease, now)
        if reason := guarded.traits.no_jobs_reason:
            _record_trouble(cluster, f"No job starts. {reason}")
        else:
            _clear_trouble(cluster)
    except (BackendError, ClusterConfigError, MissingLibrary) as error:
        _record_trouble(cluster, str(error))
    except EndsTurn:
        raise
    except TimeLimitExceeded:
        _record_turn_failure(cluster, "it took too long and was stopped")
        raise
    except Exception as error:
        _record_turn_failure(cluster, f"{type(error).__name__}: {error}")
        raise
    finally:
        _update_circuit(cluster, guarded)


def _run_turn_steps(cluster: Cluster, policy: LivePolicy, backend: Backend, lease: TurnLease, now: datetime) -> None:
    send_commands_once(cluster, backend, now)
    lease.renew()
    looked_at = clock.now()
    sync_cluster_once(cluster, backend, looked_at)
    lease.renew()
    _advance_jobs(cluster, backend)
    advance_pair_tests_once(cluster, backend, clock.now())
    stopped = evict_from_drained_nodes_once(cluster, clock.now()) + enforce_time_limits_once(cluster, clock.now())
    started = 0
    if not backend.traits.no_jobs_reason:
        with metrics_store.measure_duration("schedule_cycle", cluster.name):
            started = schedule_once(cluster, policy, clock.now(), lease.check_held)
    if stopped + started:
        lease.renew()
        send_commands_once(cluster, backend, clock.now(), looked_at)
        _advance_jobs(cluster, backend)


def _advance_jobs(cluster: Cluster, backend: Backend) -> None:
    if cluster.mode == ClusterMode.DRIVE:
        backend.advance_jobs()


def _update_circuit(cluster: Cluster, guarded: CircuitGuardedBackend | None) -> None:
    """Open or close the circuit. Database errors are ignored; the next turn updates the circuit."""
    with suppress(Error):
        if guarded is not None and guarded.late:
            circuit_breaker.record_timeout(cluster, ClusterEndpoint.CONTROL, guarded.late)
        elif guarded is not None:
            circuit_breaker.record_answer(cluster, ClusterEndpoint.CONTROL)


def _policy(cluster: Cluster) -> LivePolicy:
    if cluster.policy not in LIVE_POLICIES:
        raise ClusterConfigError(f"policy: {cluster.policy!r} is not one of {', '.join(LIVE_POLICIES)}")
    if cluster.placement not in PLACEMENTS:
        raise ClusterConfigError(f"placement: {cluster.placement!r} is not one of {', '.join(PLACEMENTS)}")
    try:
        return configured_policy(cluster.policy, cluster.policy_settings)
    except InvalidField as error:
        raise ClusterConfigError(f"policy_settings: {error}") from None


def _record_turn_failure(cluster: Cluster, why: str) -> None:
    """Record an internal error, unless the database itself fails."""
    with suppress(Error):
        _record_trouble(cluster, f"The scheduling turn failed: {why}"[:2000])


def _record_trouble(cluster: Cluster, last_error: str) -> None:
    columns = {"last_error": last_error, "error_since": Coalesce("error_since", Now())}
    if Cluster.objects.filter(pk=cluster.pk).exclude(last_error=last_error).update(**columns):
        log.warning("cluster %s: %s", cluster, last_error)
        live.publish_on_commit("nodes")


def _clear_trouble(cluster: Cluster) -> None:
    if cluster.last_error:
        Cluster.objects.filter(pk=cluster.pk).update(last_error="", error_since=None)
        live.publish_on_commit("nodes")
