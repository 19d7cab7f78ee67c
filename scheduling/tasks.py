"""Celery tasks of the loops. Each task takes ids and calls one loop function."""

from __future__ import annotations

import logging
import os
import socket
import uuid
from datetime import timedelta

from celery import shared_task

from failures.loops.follow import follow_once
from failures.loops.stacks import stacks_once
from jobs.actions.one_row import skip_row_on_error
from jobs.actions.retention import delete_expired_web_state
from jobs.models import Cluster, clock
from scheduling.backends import power_page, telemetry
from scheduling.backends.base import BackendError
from scheduling.clusters import circuit_breaker
from scheduling.clusters.connections import connect
from scheduling.clusters.node_clocks import set_clocks
from scheduling.loops import campaigns as campaign_loop
from scheduling.loops import evaluation_rules as rules
from scheduling.loops import pod_logs, simulations
from scheduling.loops.cluster_minutes import delete_old_minutes, record_minutes_once
from scheduling.loops.history import remember_with_lease
from scheduling.loops.ledger import update_ledger_metrics_once
from scheduling.loops.ledger_periods import store_periods_with_lease
from scheduling.loops.observe import outcomes
from scheduling.loops.power import energy
from scheduling.loops.power.caps import cap_with_lease, delete_old_caps
from scheduling.loops.recovery import decide_and_recover_once
from scheduling.loops.run_time_trees import train_with_lease
from scheduling.loops.sleep.manage import clusters_with_sleep, delete_old_sleeps, sleep_with_lease
from scheduling.loops.sleep.webhooks import call_sleep_webhooks_once, clusters_with_due_webhooks
from scheduling.loops.staging import advance_stagings_once
from scheduling.loops.start_estimates import estimate_with_lease
from scheduling.loops.sweep import request_overdue_turns
from scheduling.loops.telemetry import read_telemetry_once, roll_up_and_expire_once
from scheduling.loops.turn import run_turns
from scheduling.models import ClusterEndpoint, Lease
from scheduling.queries.power.caps import clusters_with_caps

log = logging.getLogger(__name__)

CAMPAIGNS_LEASE = timedelta(minutes=2)
OUTCOMES_LEASE = timedelta(minutes=1)
POD_LOGS_LEASE = timedelta(minutes=1)

log_memories: dict[int, pod_logs.CopyMemory] = {}  # of this process, by cluster

LEASE_HOLDER = f"{socket.gethostname()}:{uuid.uuid4().hex[:8]}"


@shared_task(name="scheduling.turns")
def queue_all_turns() -> None:
    for cluster_id in Cluster.objects.values_list("pk", flat=True):
        run_cluster_turns.apply_async([cluster_id], expires=5)


@shared_task(name="scheduling.turn")
def run_cluster_turns(cluster_id: int) -> int:
    return run_turns(cluster_id, f"{LEASE_HOLDER}:{os.getpid()}", connect)


@shared_task(name="scheduling.outcomes")
def queue_outcome_searches() -> None:
    for cluster_id in outcomes.clusters_with_missing_attempts():
        find_cluster_outcomes.apply_async([cluster_id], expires=10)


@shared_task(name="scheduling.unknown_outcomes")
def queue_unknown_outcome_searches() -> None:
    for cluster_id in outcomes.clusters_with_unknown_outcomes():
        find_cluster_unknown_outcomes.apply_async([cluster_id], expires=60)


@shared_task(name="scheduling.outcomes_of")
def find_cluster_outcomes(cluster_id: int) -> int:
    return _find_outcomes_with_lease(cluster_id, again=False)


@shared_task(name="scheduling.unknown_outcomes_of")
def find_cluster_unknown_outcomes(cluster_id: int) -> int:
    return _find_outcomes_with_lease(cluster_id, again=True)


def _find_outcomes_with_lease(cluster_id: int, *, again: bool) -> int:
    """Search for outcomes of a cluster's attempts. The lease only saves work: each write checks the attempt's state."""
    with Lease.held(f"outcomes:{cluster_id}", LEASE_HOLDER, OUTCOMES_LEASE) as lease:
        cluster = Cluster.objects.get(pk=cluster_id)
        if not lease or circuit_breaker.is_open(cluster, ClusterEndpoint.CONTROL):
            return 0
        return outcomes.find_outcomes_once(cluster, connect(cluster), clock.now(), again=again)


@shared_task(name="scheduling.pod_logs")
def queue_log_copies() -> None:
    for cluster_id in pod_logs.clusters_with_pending_logs():
        copy_cluster_logs.apply_async([cluster_id], expires=4)


@shared_task(name="scheduling.pod_logs_of")
def copy_cluster_logs(cluster_id: int) -> int:
    """Copy the logs of a cluster's jobs. The lease only saves work: a second writer of a log is refused."""
    with Lease.held(f"pod logs:{cluster_id}", LEASE_HOLDER, POD_LOGS_LEASE) as lease:
        cluster = Cluster.objects.get(pk=cluster_id)
        if not lease or circuit_breaker.is_open(cluster, ClusterEndpoint.CONTROL):
            return 0
        memory = log_memories.setdefault(cluster_id, pod_logs.CopyMemory())
        try:
            return pod_logs.copy_logs_once(cluster, connect(cluster), clock.now(), memory)
        except BackendError as error:  # turns report it on the cluster's page
            log.info("the logs of cluster %s cannot be copied now: %s", cluster, error)
            return 0


@shared_task(name="scheduling.estimates")
def queue_estimates() -> None:
    for cluster_id in Cluster.objects.values_list("pk", flat=True):
        estimate.apply_async([cluster_id], expires=30)


@shared_task(name="scheduling.estimate")
def estimate(cluster_id: int) -> int:
    return estimate_with_lease(cluster_id, f"{LEASE_HOLDER}:{os.getpid()}")


@shared_task(name="scheduling.sleeps")
def queue_sleep_turns() -> None:
    for cluster_id in clusters_with_sleep():
        manage_cluster_sleep.apply_async([cluster_id], expires=10)


@shared_task(name="scheduling.sleep")
def manage_cluster_sleep(cluster_id: int) -> int:
    return sleep_with_lease(cluster_id, f"{LEASE_HOLDER}:{os.getpid()}")


@shared_task(name="scheduling.sleep_webhooks")
def call_sleep_webhooks() -> int:
    rows = Cluster.objects.in_bulk(due := clusters_with_due_webhooks(clock.now()))
    return sum(call_sleep_webhooks_once(rows[cluster_id], clock.now()) for cluster_id in due)


@shared_task(name="scheduling.histories")
def queue_history_updates() -> None:
    for cluster_id in Cluster.objects.values_list("pk", flat=True):
        update_history.apply_async([cluster_id], expires=10)


@shared_task(name="scheduling.history")
def update_history(cluster_id: int) -> int:
    return remember_with_lease(cluster_id, f"{LEASE_HOLDER}:{os.getpid()}")


@shared_task(name="scheduling.trainings")
def queue_trainings() -> None:
    for cluster_id in Cluster.objects.values_list("pk", flat=True):
        train_trees.apply_async([cluster_id], expires=600)


@shared_task(name="scheduling.train", soft_time_limit=540, time_limit=570, acks_late=False)
def train_trees(cluster_id: int) -> bool:
    return train_with_lease(cluster_id, f"{LEASE_HOLDER}:{os.getpid()}")


@shared_task(name="scheduling.samples")
def queue_telemetry_reads() -> None:
    """Queue one task per cluster, so that an exporter that hangs does not delay the samples of other clusters."""
    for cluster_id in Cluster.objects.exclude(metrics_address="").values_list("pk", flat=True):
        read_cluster_telemetry.apply_async([cluster_id], expires=15)


@shared_task(name="scheduling.sample")
def read_cluster_telemetry(cluster_id: int) -> int:
    return read_telemetry_once(Cluster.objects.get(pk=cluster_id), telemetry.read_exporter)


@shared_task(name="scheduling.power_caps")
def queue_power_caps() -> None:
    for cluster_id in clusters_with_caps():
        cap_cluster_power.apply_async([cluster_id], expires=2)


@shared_task(name="scheduling.power_cap")
def cap_cluster_power(cluster_id: int) -> int:
    return cap_with_lease(cluster_id, f"{LEASE_HOLDER}:{os.getpid()}", set_clocks, power_page.read_power)


@shared_task(name="scheduling.energy")
def count_energy() -> int:
    steps = 0
    for cluster_id in energy.clusters_with_telemetry():
        with skip_row_on_error(f"the energy of cluster {cluster_id}"):
            steps += energy.count_energy_once(Cluster.objects.get(pk=cluster_id), clock.now())
    return steps


@shared_task(name="scheduling.minutes")
def record_cluster_minutes() -> int:
    return record_minutes_once(clock.now())


@shared_task(name="scheduling.recover")
def recover() -> int:
    """Read the stack dumps of hanging jobs, then decide on recoveries, which may depend on the dumps."""
    return stacks_once(clock.now()) + decide_and_recover_once(clock.now())


@shared_task(name="scheduling.accounts")
def update_ledger_metrics() -> int:
    return update_ledger_metrics_once(clock.now())


@shared_task(name="scheduling.ledger_periods")
def store_ledger_periods() -> int:
    return store_periods_with_lease(clock.now(), f"{LEASE_HOLDER}:{os.getpid()}")


@shared_task(name="scheduling.follow")
def follow_logs() -> int:
    """Follow the logs, then record which log storage did not respond to this process."""
    followed = follow_once(clock.now())
    circuit_breaker.record_log_storage_state()
    return followed


@shared_task(name="scheduling.sweep")
def sweep() -> int:
    request_overdue_turns(clock.now())
    delete_old_minutes(clock.now())
    delete_old_sleeps(clock.now())
    energy.delete_old_energy(clock.now())
    delete_old_caps(clock.now())
    delete_expired_web_state(clock.now())
    pod_logs.delete_old_logs_once(clock.now())
    return roll_up_and_expire_once(clock.now())


@shared_task(name="scheduling.campaigns")
def campaigns() -> int:
    """Coordinate all campaigns. The lease only saves work: each change checks the campaign's turn counter."""
    if not campaign_loop.has_campaign_work():
        return 0
    with Lease.held("campaigns", LEASE_HOLDER, CAMPAIGNS_LEASE) as lease:
        if not lease:
            return 0
        return advance_stagings_once(clock.now()) + campaign_loop.coordinate_campaigns_once(clock.now())


@shared_task(name="scheduling.evaluation_rules")
def evaluation_rules() -> int:
    """Check the evaluation rules. A separate task, because listing a directory may take long."""
    now = clock.now()
    if not rules.has_due_rules(now):
        return 0
    with Lease.held("evaluation rules", LEASE_HOLDER, CAMPAIGNS_LEASE) as lease:
        return rules.check_rules_once(now) if lease else 0


@shared_task(name="scheduling.simulations")
def queue_simulation_worker() -> None:
    """Start a worker if a simulation waits. Celery beat calls this too, in case a wake-up message was lost."""
    if simulations.has_free_simulation(clock.now()):
        run_next_simulation.apply_async(expires=10)
    simulations.delete_old_simulations(clock.now())


# A replay runs longer than a message may stay unacknowledged, so the message is acknowledged early. If the worker dies,
# beat starts another one.
@shared_task(name="scheduling.simulation", soft_time_limit=600, time_limit=630, acks_late=False)
def run_next_simulation() -> str:
    """Run the next waiting simulation."""
    return str(simulations.run_simulation_once(clock.now) or "")
