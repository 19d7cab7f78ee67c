"""Celery's side of the loops: ids in, one loop function called."""

from __future__ import annotations

import logging
import os
import socket
import uuid
from datetime import timedelta

from celery import shared_task

from jobs import clock
from jobs.models import Cluster
from jobs.retention import forget_visits
from scheduling import circuit_breaker
from scheduling.backends import telemetry
from scheduling.connections import connect
from scheduling.loops import evaluate, outcomes, simulate
from scheduling.loops import evaluation_rules as rules
from scheduling.loops.account import account_once
from scheduling.loops.care import care_once
from scheduling.loops.estimate import estimates
from scheduling.loops.health import health_once
from scheduling.loops.minute import forget_once, minute_once
from scheduling.loops.recover import recover_once
from scheduling.loops.sample import measure_once, sweep_once
from scheduling.loops.slow import slow_once
from scheduling.loops.stacks import stacks_once
from scheduling.loops.staging import stage_once
from scheduling.loops.sweep import wake_overdue
from scheduling.loops.turn import turns
from scheduling.loops.watch import watch_once
from scheduling.models import Endpoint, Lease

log = logging.getLogger(__name__)

CAMPAIGNS_LEASE = timedelta(minutes=2)
OUTCOMES_LEASE = timedelta(minutes=1)

HOLDER = f"{socket.gethostname()}:{uuid.uuid4().hex[:8]}"


@shared_task(name="scheduling.turns")
def wake_all() -> None:
    for cluster_id in Cluster.objects.values_list("pk", flat=True):
        turn.apply_async([cluster_id], expires=5)


@shared_task(name="scheduling.turn")
def turn(cluster_id: int) -> int:
    return turns(cluster_id, f"{HOLDER}:{os.getpid()}", connect)


@shared_task(name="scheduling.outcomes")
def find_outcomes() -> None:
    for cluster_id in outcomes.wanted():
        find_outcomes_of.apply_async([cluster_id], expires=10)


@shared_task(name="scheduling.outcomes_again")
def find_unknown_outcomes() -> None:
    for cluster_id in outcomes.wanted_again():
        find_unknown_outcomes_of.apply_async([cluster_id], expires=60)


@shared_task(name="scheduling.outcomes_of")
def find_outcomes_of(cluster_id: int) -> int:
    return _find_outcomes(cluster_id, again=False)


@shared_task(name="scheduling.outcomes_again_of")
def find_unknown_outcomes_of(cluster_id: int) -> int:
    return _find_outcomes(cluster_id, again=True)


def _find_outcomes(cluster_id: int, *, again: bool) -> int:
    """One at a time saves effort; each result is guarded by what the attempt looked like."""
    name = f"outcomes:{cluster_id}"
    if (taken := Lease.take(name, HOLDER, OUTCOMES_LEASE)) is None:
        return 0
    try:
        cluster = Cluster.objects.get(pk=cluster_id)
        if circuit_breaker.is_open(cluster, Endpoint.CONTROL):
            return 0
        return outcomes.outcomes_once(cluster, connect(cluster), clock.now(), again=again)
    finally:
        Lease.give_back(name, taken.term)


@shared_task(name="scheduling.estimates")
def estimate_all() -> None:
    for cluster_id in Cluster.objects.values_list("pk", flat=True):
        estimate.apply_async([cluster_id], expires=30)


@shared_task(name="scheduling.estimate")
def estimate(cluster_id: int) -> int:
    return estimates(cluster_id, f"{HOLDER}:{os.getpid()}")


@shared_task(name="scheduling.samples")
def sample_all() -> None:
    """Each cluster by itself: an exporter that hangs delays the samples of no other cluster."""
    for cluster_id in Cluster.objects.exclude(metrics_address="").values_list("pk", flat=True):
        sample.apply_async([cluster_id], expires=15)


@shared_task(name="scheduling.sample")
def sample(cluster_id: int) -> int:
    return measure_once(Cluster.objects.get(pk=cluster_id), telemetry.read)


@shared_task(name="scheduling.minutes")
def minutes() -> int:
    return minute_once(clock.now())


@shared_task(name="scheduling.recover")
def recover() -> int:
    """What the ranks of a hang have answered is read before it is decided about."""
    return stacks_once(clock.now()) + recover_once(clock.now())


@shared_task(name="scheduling.accounts")
def accounts() -> int:
    return account_once(clock.now())


@shared_task(name="scheduling.watch")
def watch() -> int:
    done = watch_once(clock.now())
    circuit_breaker.note_log_storage()
    return done


@shared_task(name="scheduling.slow")
def slow() -> int:
    return slow_once(clock.now())


@shared_task(name="scheduling.health")
def health() -> int:
    return health_once(clock.now())


@shared_task(name="scheduling.care")
def care() -> int:
    return care_once(clock.now())


@shared_task(name="scheduling.sweep")
def sweep() -> int:
    wake_overdue(clock.now())
    forget_once(clock.now())
    forget_visits(clock.now())
    return sweep_once(clock.now())


@shared_task(name="scheduling.campaigns")
def campaigns() -> int:
    """One at a time saves effort; what each turn changes is guarded by the campaign's own count of turns."""
    if not evaluate.wanted() or (taken := Lease.take("campaigns", HOLDER, CAMPAIGNS_LEASE)) is None:
        return 0
    try:
        return stage_once(clock.now()) + evaluate.evaluate_once(clock.now())
    finally:
        Lease.give_back("campaigns", taken.term)


@shared_task(name="scheduling.evaluation_rules")
def evaluation_rules() -> int:
    """One at a time, beside the coordinator: a directory may take long to list."""
    now = clock.now()
    if not rules.wanted(now) or (taken := Lease.take("evaluation rules", HOLDER, CAMPAIGNS_LEASE)) is None:
        return 0
    try:
        return rules.rules_once(now)
    finally:
        Lease.give_back("evaluation rules", taken.term)


@shared_task(name="scheduling.simulations")
def wake_simulator() -> None:
    """Beat asks too, so that no lost message leaves a simulation waiting."""
    if simulate.wanted(clock.now()):
        simulation.apply_async(expires=10)
    simulate.forget_once(clock.now())


# Longer than a message may stay unconfirmed: taken at once, and woken again by beat if its worker dies
@shared_task(name="scheduling.simulation", soft_time_limit=600, time_limit=630, acks_late=False)
def simulation() -> str:
    """The next one that waits, whoever asked for it."""
    return str(simulate.simulate_once(clock.now) or "")
