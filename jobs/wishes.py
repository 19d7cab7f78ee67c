"""Wake the loops of a cluster. A hint: a turn comes every second anyway, this one comes at once.

The wish is kept in the row, so it survives a broker that is away, and a turn that is under way sees it at its end and
goes on instead of leaving it to the next. The message names the task, because `jobs` knows nothing of schedulers.
"""

from __future__ import annotations

import logging
from functools import partial

from celery import current_app
from django.db import transaction
from django.db.models.functions import Now
from kombu.exceptions import OperationalError

from jobs.models import Cluster

log = logging.getLogger(__name__)


def want_turn(cluster_id: int) -> None:
    Cluster.objects.filter(pk=cluster_id).update(wanted_at=Now())
    transaction.on_commit(partial(_send, cluster_id), robust=True)


def want_diagnoses() -> None:
    """Attempts ended. Who failed is found by looking, so this says only that looking is worth while."""
    transaction.on_commit(partial(_send_task, "failures.diagnose"), robust=True)


def _send(cluster_id: int) -> None:
    _send_task("scheduling.turn", cluster_id)


def _send_task(name: str, *ids: int) -> None:
    try:
        current_app.send_task(name, list(ids), retry=False, expires=10)
    except (OperationalError, OSError) as error:
        log.info("nobody could be woken for %s %s: %s", name, ids, error)
