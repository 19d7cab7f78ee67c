"""Requests early turns of the loops. Turns run every second anyway; this only reduces latency.

The request is stored in the cluster's row, so it survives a broker outage, and a running turn checks it before
finishing. Tasks are sent by name, because `jobs` must not import the scheduler.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial

from celery import current_app
from django.db import Error, connections, transaction
from django.db.models.functions import Now
from kombu.exceptions import OperationalError

from jobs.models import Cluster

log = logging.getLogger(__name__)

DEBOUNCE_S = 0.2  # a turn costs more than the submissions that request it


def request_turn(cluster_id: int) -> None:
    """Request an early scheduling turn of the cluster."""
    Cluster.objects.filter(pk=cluster_id).update(turn_requested_at=Now())
    # After the commit, because a turn that starts earlier would not see the change
    transaction.on_commit(partial(_send_turn_task, cluster_id), robust=True)


def request_diagnoses() -> None:
    """Start the diagnosis loop early after attempts have ended. The loop finds failed attempts itself."""
    transaction.on_commit(partial(_send_task, "failures.diagnose"), robust=True)


def request_bulk_actions() -> None:
    """Start a worker for bulk actions. It waits in its queue, because its work has no other trigger within seconds."""
    transaction.on_commit(partial(_send_task, "jobs.bulk_actions", expires=None), robust=True)


def _send_turn_task(cluster_id: int) -> None:
    _send_task("scheduling.turn", cluster_id)


def _send_task(name: str, *ids: int, expires: int | None = 10) -> None:
    try:
        # No retry and a short expiry: the periodic turn follows anyway, and a broker outage must not block the caller
        current_app.send_task(name, list(ids), retry=False, expires=expires)
    except (OperationalError, OSError) as error:
        log.info("task %s %s could not be sent: %s", name, ids, error)


class TurnDebouncer:
    """Debounces turn requests: hundreds of submissions per second result in a few database updates, and callers never
    block.

    Its thread starts with the first request and ends after a quiet period. If the process dies before a request is
    passed on, the next periodic turn follows within a second.
    """

    def __init__(
        self, send: Callable[[int], None] = request_turn, pause_s: float = DEBOUNCE_S, quiet_s: float = 5.0
    ) -> None:
        self.send, self.pause_s, self.quiet_s = send, pause_s, quiet_s
        self.pending: set[int] = set()
        self.changed = threading.Condition()
        self.thread: threading.Thread | None = None

    def request(self, cluster_id: int) -> None:
        with self.changed:
            self.pending.add(cluster_id)
            self.changed.notify()
            # Started on demand, so that processes without submissions have no additional thread
            if self.thread is None:
                self.thread = threading.Thread(target=self._flush_until_quiet, name="turn-debouncer", daemon=True)
                self.thread.start()

    def _flush_until_quiet(self) -> None:
        while cluster_ids := self._next_batch():
            try:
                for cluster_id in cluster_ids:
                    self.send(cluster_id)
            except Error as error:
                log.info("a request for a scheduling turn was lost: %s", error)
            finally:
                connections.close_all()  # returns the connections to the pool
            time.sleep(self.pause_s)  # requests that arrive meanwhile share the next round

    def _next_batch(self) -> set[int]:
        with self.changed:
            self.changed.wait_for(lambda: self.pending, self.quiet_s)
            batch, self.pending = self.pending, set()
            if not batch:
                self.thread = None
            return batch


turn_debouncer = TurnDebouncer()
