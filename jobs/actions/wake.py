"""Wake the loops of a cluster. A hint: a turn comes every second anyway, this one comes at once.

The wish is kept in the row, so it survives a broker that is away, and a turn that is under way sees it at its end and
goes on instead of leaving it to the next. The message names the task, because `jobs` knows nothing of schedulers.
"""

from __future__ import annotations

import logging
import threading
import time
from functools import partial

from celery import current_app
from django.db import Error, connections, transaction
from django.db.models.functions import Now
from kombu.exceptions import OperationalError

from jobs.models import Cluster

log = logging.getLogger(__name__)

DEBOUNCE_S = 0.2  # a turn costs the workers more than the submissions it is for cost the web


def request_turn(cluster_id: int) -> None:
    Cluster.objects.filter(pk=cluster_id).update(wanted_at=Now())
    transaction.on_commit(partial(_send_turn_task, cluster_id), robust=True)


def request_diagnoses() -> None:
    """Attempts ended. Who failed is found by looking, so this says only that looking is worth while."""
    transaction.on_commit(partial(_send_task, "failures.diagnose"), robust=True)


def _send_turn_task(cluster_id: int) -> None:
    _send_task("scheduling.turn", cluster_id)


def _send_task(name: str, *ids: int) -> None:
    try:
        current_app.send_task(name, list(ids), retry=False, expires=10)
    except (OperationalError, OSError) as error:
        log.info("nobody could be woken for %s %s: %s", name, ids, error)


class TurnDebouncer:
    """Rung by many, heard once: hundreds of submissions a second become a few wishes, and nobody waits for them.

    Its thread begins with the first ring and ends when it is quiet for a while. If the process dies before it has
    passed a ring on, the next beat of the loops comes a second later.
    """

    def __init__(self, pause_s: float = DEBOUNCE_S, quiet_s: float = 5.0) -> None:
        self.pause_s, self.quiet_s = pause_s, quiet_s
        self.rung: set[int] = set()
        self.changed = threading.Condition()
        self.thread: threading.Thread | None = None

    def request(self, cluster_id: int) -> None:
        with self.changed:
            self.rung.add(cluster_id)
            self.changed.notify()
            if self.thread is None:
                self.thread = threading.Thread(target=self._flush_until_quiet, name="bell", daemon=True)
                self.thread.start()

    def _flush_until_quiet(self) -> None:
        while rung := self._next_batch():
            try:
                for cluster_id in rung:
                    request_turn(cluster_id)
            except Error as error:
                log.info("a wish for a turn was lost: %s", error)
            finally:
                connections.close_all()  # back to the pool
            time.sleep(self.pause_s)  # those who come meanwhile share the next round

    def _next_batch(self) -> set[int]:
        with self.changed:
            self.changed.wait_for(lambda: self.rung, self.quiet_s)
            rung, self.rung = self.rung, set()
            if not rung:
                self.thread = None
            return rung


turn_debouncer = TurnDebouncer()
