"""Requests early runs of loops. They run every second or two anyway; this only reduces latency.

The request is stored in the loop's row, so a loop that is running runs once more. Loops are requested by name, because
`jobs` must not import the scheduler.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial

from django.db import Error, connections, transaction

from acmeweb.common import wakeups
from jobs.models import Loop

log = logging.getLogger(__name__)

DEBOUNCE_S = 0.2  # a turn costs more than the submissions that request it


def request_turn(cluster_id: int) -> None:
    """Request an early scheduling turn of the cluster after the commit: an earlier one would not see the change."""
    transaction.on_commit(partial(request_loop, "turn", cluster_id), robust=True)


def request_diagnoses() -> None:
    """Request an early diagnosis after attempts have ended. The loop finds failed attempts itself."""
    transaction.on_commit(partial(request_loop, "diagnosis"), robust=True)


def request_recovery() -> None:
    """Request an early recovery turn after a verdict or a user's decision."""
    transaction.on_commit(partial(request_loop, "recovery"), robust=True)


def request_bulk_actions() -> None:
    transaction.on_commit(partial(request_loop, "bulk actions"), robust=True)


def request_loop(name: str, cluster_id: int | None = None) -> None:
    """Make a loop due now. Call it outside of transactions: processes skip a loop whose row is locked."""
    Loop.request(name, cluster_id)
    wakeups.wake(name)


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
