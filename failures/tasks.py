"""Celery's side of the loops: one function called."""

from __future__ import annotations

from celery import shared_task

from failures import actions
from failures.diagnosis import compress, scan
from failures.loops import consult, diagnose, follow, learn, notify
from jobs import clock


@shared_task(name="failures.diagnose")
def diagnose_lately() -> int:
    # Compiled once a process, before somebody waits for it
    scan.shipped()
    compress.shipped_filters()
    return diagnose.diagnose_once(clock.now())


@shared_task(name="failures.sweep")
def diagnose_ever() -> int:
    """Attempts whose end we learned of late: a cluster was away for days, or all workers were."""
    done = diagnose.diagnose_once(clock.now(), since=diagnose.EVER)
    actions.resolve_recovered(clock.now())
    return done


@shared_task(name="failures.follow")
def follow_logs() -> int:
    return follow.follow_once(clock.now())


@shared_task(name="failures.notify")
def notify_lately() -> int:
    return notify.notify_once(clock.now())


@shared_task(name="failures.learn")
def learn_lately() -> int:
    return learn.learn_once(clock.now())


# The budget of time ends it long before. Longer than a message may stay unconfirmed: taken at once, woken by beat
@shared_task(name="failures.consult", soft_time_limit=None, time_limit=1300, acks_late=False)
def consult_model() -> int:
    return consult.consult_once(clock.now())
