"""The Celery app: work with a beginning and an end that a user requested. Loops run in processes of their own
(`acmeweb.loops`).

Every Django process loads it (apps.py), because a process that requests work needs the broker.
"""

import os
from typing import Any

from celery import Celery
from celery.signals import celeryd_init, task_postrun, worker_process_init
from kombu import Exchange, Queue

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "acmeweb.settings")

from acmeweb.startup import discard_connections, freeze_loaded_modules, require_secret_key

QUEUE = "requests"

app = Celery("acme", set_as_current=True)
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["scheduling.whatif"])
app.conf.task_default_queue = QUEUE
app.conf.task_queues = [Queue(QUEUE, Exchange(QUEUE), routing_key=QUEUE)]


@celeryd_init.connect
def check_secret_key(**_: Any) -> None:
    require_secret_key()


@worker_process_init.connect
def freeze_loaded_objects(**_: Any) -> None:
    freeze_loaded_modules()


@task_postrun.connect
def start_clean(**_: Any) -> None:
    """A task that was interrupted inside a transaction leaves a connection that refuses to be used again."""
    discard_connections()
