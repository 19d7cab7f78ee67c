"""Celery tasks: each calls one turn of a loop."""

from __future__ import annotations

from celery import shared_task

from failures.actions import incidents as incident_actions
from failures.loops import consult, diagnose, learn, notify
from failures.loops.burn_in import burn_in_once
from failures.loops.node_health import node_health_once
from failures.loops.slow_steps import slow_steps_once
from failures.loops.watch import watch_once
from jobs.models import clock


@shared_task(name="failures.diagnose")
def diagnose_recent_failures() -> int:
    return diagnose.diagnose_once(clock.now())


@shared_task(name="failures.sweep")
def diagnose_missed_failures() -> int:
    """Diagnoses attempts whose end became known late, for example after an outage of the cluster or of all workers."""
    done = diagnose.diagnose_once(clock.now(), since=diagnose.ALL_FAILURES)
    incident_actions.resolve_settled_incidents(clock.now())
    return done


@shared_task(name="failures.watch")
def find_hangs_and_loss_spikes() -> int:
    return watch_once(clock.now())


@shared_task(name="failures.slow_steps")
def find_slow_steps() -> int:
    return slow_steps_once(clock.now())


@shared_task(name="failures.node_health")
def check_node_health() -> int:
    return node_health_once(clock.now())


@shared_task(name="failures.burn_in")
def advance_burn_ins() -> int:
    return burn_in_once(clock.now())


@shared_task(name="failures.notify")
def send_incident_notices() -> int:
    return notify.notify_once(clock.now())


@shared_task(name="failures.learn")
def learn_from_diagnoses() -> int:
    return learn.learn_once(clock.now())


# The time budget of the loop ends it much earlier. The limit exceeds the acknowledgment timeout of the broker, so the
# message is acknowledged at once; a lost turn is repeated by the schedule
@shared_task(name="failures.consult", soft_time_limit=None, time_limit=1300, acks_late=False)
def consult_model() -> int:
    return consult.consult_once(clock.now())
