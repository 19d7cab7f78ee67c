"""The Celery app of workers and beat. Beat only triggers the loops; the schedule has one line per loop.

Every Django process loads it (apps.py), because a process that triggers a loop needs the broker.
"""

import os
from typing import Any

from celery import Celery
from celery.signals import beat_init, celeryd_init, worker_process_init
from kombu import Exchange, Queue

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "acmeweb.settings")

from acmeweb.queues import TASK_ROUTES, WORKER_QUEUES
from acmeweb.startup import freeze_loaded_modules, require_secret_key

app = Celery("acme", set_as_current=True)
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()

# A worker without -Q serves all queues. The default queue `celery` is not among them and stays empty.
app.conf.task_queues = [Queue(one.name, Exchange(one.name), routing_key=one.name) for one in WORKER_QUEUES]
app.conf.task_routes = TASK_ROUTES

# A tick that no worker took within its interval is obsolete, because the next tick exists. So ticks expire.
app.conf.beat_schedule = {
    "turns": {"task": "scheduling.turns", "schedule": 1.0, "options": {"expires": 2}},
    "estimates": {"task": "scheduling.estimates", "schedule": 30.0, "options": {"expires": 30}},
    "histories": {"task": "scheduling.histories", "schedule": 10.0, "options": {"expires": 10}},
    "trainings": {"task": "scheduling.trainings", "schedule": 600.0, "options": {"expires": 600}},
    "samples": {"task": "scheduling.samples", "schedule": 15.0, "options": {"expires": 15}},
    # Three runs per minute, of which the first writes: one late run must not leave a gap
    "minutes": {"task": "scheduling.minutes", "schedule": 20.0, "options": {"expires": 20}},
    # As often as exporters measure; without caps it is two queries of small tables
    "power caps": {"task": "scheduling.power_caps", "schedule": 1.0, "options": {"expires": 2}},
    "energy": {"task": "scheduling.energy", "schedule": 60.0, "options": {"expires": 60}},
    "diagnoses": {"task": "failures.diagnose", "schedule": 1.0, "options": {"expires": 2}},
    "followed logs": {"task": "scheduling.follow", "schedule": 5.0, "options": {"expires": 5}},
    "pod logs": {"task": "scheduling.pod_logs", "schedule": 2.0, "options": {"expires": 2}},
    "outcomes": {"task": "scheduling.outcomes", "schedule": 2.0, "options": {"expires": 2}},
    "unknown outcomes": {"task": "scheduling.unknown_outcomes", "schedule": 60.0, "options": {"expires": 60}},
    "recoveries": {"task": "scheduling.recover", "schedule": 1.0, "options": {"expires": 2}},
    "watches": {"task": "failures.watch", "schedule": 15.0, "options": {"expires": 15}},
    "slow steps": {"task": "failures.slow_steps", "schedule": 60.0, "options": {"expires": 60}},
    "nodes' health": {"task": "failures.node_health", "schedule": 30.0, "options": {"expires": 30}},
    "burn-ins": {"task": "failures.burn_in", "schedule": 15.0, "options": {"expires": 15}},
    "sleeping nodes": {"task": "scheduling.sleeps", "schedule": 10.0, "options": {"expires": 10}},
    "sleep webhooks": {"task": "scheduling.sleep_webhooks", "schedule": 3.0, "options": {"expires": 3}},
    "notices": {"task": "failures.notify", "schedule": 5.0, "options": {"expires": 5}},
    "late diagnoses": {"task": "failures.sweep", "schedule": 300.0, "options": {"expires": 300}},
    "accounts": {"task": "scheduling.accounts", "schedule": 300.0, "options": {"expires": 300}},
    "ledger periods": {"task": "scheduling.ledger_periods", "schedule": 60.0, "options": {"expires": 60}},
    "simulations": {"task": "scheduling.simulations", "schedule": 5.0, "options": {"expires": 5}},
    "lessons": {"task": "failures.learn", "schedule": 60.0, "options": {"expires": 60}},
    "consultations": {"task": "failures.consult", "schedule": 15.0, "options": {"expires": 15}},
    "campaigns": {"task": "scheduling.campaigns", "schedule": 2.0, "options": {"expires": 2}},
    "evaluation rules": {"task": "scheduling.evaluation_rules", "schedule": 5.0, "options": {"expires": 5}},
    "sweep": {"task": "scheduling.sweep", "schedule": 300.0, "options": {"expires": 300}},
}


@celeryd_init.connect
@beat_init.connect
def check_secret_key(**_: Any) -> None:
    require_secret_key()


@worker_process_init.connect
def freeze_loaded_objects(**_: Any) -> None:
    freeze_loaded_modules()
