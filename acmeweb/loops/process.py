"""One process of a group of loops: claim the loop that has been due longest, run it, store how it went.

Failure story     Killed at any instruction: the claim ends with the process's database session, the next process that
                  claims the loop counts an abandoned run, and the loop's own failure story says what it finds. A run
                  that exceeds its time limit is interrupted, and the process ends: whatever the interruption left
                  behind, such as a connection inside a transaction, ends with it, and the parent forks another. If the
                  interruption does not arrive, because the run hangs in a library, the process writes where it hangs
                  and exits `HARD_LIMIT_S` later. Database away: the process tries again every second. Valkey away:
                  requests for early runs are noticed up to `MAX_WAIT_S` late.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import TracebackType

from django.db import Error, connection

from acmeweb.common.env import ROOT
from acmeweb.common.wakeups import WakeupListener
from acmeweb.loops.table import GROUPS, LoopGroup, PeriodicLoop
from acmeweb.startup import discard_connections
from jobs.core.turn_errors import TimeLimitExceeded
from jobs.models import ClaimedLoop, Cluster, Loop, LoopFailure, clock

log = logging.getLogger(__name__)

HARD_LIMIT_S = 15.0
MAX_WAIT_S = 5.0  # a new cluster, or a request without a wake-up, is noticed this late
STANDBY_S = 1.0  # the other processes of a group look this much later, so that usually one of them looks
DATABASE_RETRY_S = 1.0


def holder() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


class LoopProcess:
    """Runs the loops of a group until one of its runs may have left the process in an unknown state."""

    def __init__(self, group: LoopGroup, number: int = 1, wait: Callable[[float], None] | None = None) -> None:
        self.standby_s = STANDBY_S * (number - 1)
        self.loops = {loop.name: loop for loop in group.loops}
        self.limits = {name: loop.limit + timedelta(seconds=2 * HARD_LIMIT_S) for name, loop in self.loops.items()}
        self.wait = wait or WakeupListener(group.names).wait
        self.errors = ErrorCollector()
        self.add_missing_at = 0.0

    def serve(self) -> None:
        logging.getLogger().addHandler(self.errors)
        while True:
            try:
                claim = Loop.claim_due(self.limits, holder())
                if claim is None:
                    self.wait(self._seconds_until_due())
                elif not self.run(claim):
                    return
            except Error as error:
                log.warning("The schedule of the loops cannot be read or written: %s", error)
                discard_connections()
                time.sleep(DATABASE_RETRY_S)

    def _seconds_until_due(self) -> float:
        if time.monotonic() >= self.add_missing_at:
            add_missing_loops()
            self.add_missing_at = time.monotonic() + MAX_WAIT_S
        seconds = Loop.seconds_until_due(list(self.loops))
        return MAX_WAIT_S if seconds is None else min(MAX_WAIT_S, max(0.0, seconds) + self.standby_s)

    def run(self, claim: ClaimedLoop) -> bool:
        """Run a claimed loop. Return whether the process may run another one."""
        loop = self.loops[claim.name]
        self.errors.take()
        failure, is_clean, depth = "", True, len(connection.atomic_blocks)
        try:
            with time_limit(loop.limit):
                run_loop(loop, claim.cluster_id)
        except TimeLimitExceeded:
            failure, is_clean = f"It took longer than {loop.limit.total_seconds():g} s and was stopped.", False
            log.warning("Loop %s: %s", claim.name, failure)
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"[:2000]
            log.exception("Loop %s failed", claim.name)
        if not is_clean or len(connection.atomic_blocks) != depth:
            discard_connections()
            is_clean = False
        if connection.errors_occurred:
            connection.close_if_unusable_or_obsolete()
        self._store_end(claim, loop, failure)
        return is_clean

    def _store_end(self, claim: ClaimedLoop, loop: PeriodicLoop, failure: str) -> None:
        if not Loop.finish(claim, loop.every, failure):
            log.warning("Loop %s took so long that another process has claimed it", claim.name)
        if claim.abandoned_at:
            LoopFailure.count_one(
                claim.id, "abandoned", f"The process ended in the run of {claim.abandoned_at:%H:%M:%S}."
            )
        if failure.startswith("It took longer"):
            LoopFailure.count_one(claim.id, "time limit", failure)
        for signature, message in self.errors.take():
            LoopFailure.count_one(claim.id, signature, message)


def run_loop(loop: PeriodicLoop, cluster_id: int | None) -> None:
    """Run a loop once, if there is work for it."""
    if loop.run is not None:
        loop.run(clock.now())
    elif loop.run_of_cluster is not None and (loop.clusters is None or cluster_id in loop.clusters()):
        cluster = Cluster.objects.filter(pk=cluster_id).first()  # it may have been deleted just now
        if cluster is not None:
            loop.run_of_cluster(cluster, clock.now())


def add_missing_loops() -> None:
    loops = [loop for group in GROUPS for loop in group.loops]
    Loop.add_missing(
        of_clusters=[loop.name for loop in loops if loop.run is None],
        global_=[loop.name for loop in loops if loop.run is not None],
    )


@contextmanager
def time_limit(limit: timedelta) -> Iterator[None]:
    """Raise TimeLimitExceeded in the block after this time. If that is not possible, exit the process."""
    seconds = limit.total_seconds()
    signal.signal(signal.SIGALRM, _raise_time_limit)
    faulthandler.dump_traceback_later(seconds + HARD_LIMIT_S, exit=True)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()


def _raise_time_limit(_number: int, _frame: object) -> None:
    raise TimeLimitExceeded


class ErrorCollector(logging.Handler):
    """Collects the errors that a run logs, also those that it handles, such as the error of one row."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.collected: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            self.collected.append((f"{record.name}: {record.msg}", record.getMessage()))
        else:
            signature = f"{type(error).__name__} in {_place(error.__traceback__)}"
            self.collected.append((signature, f"{record.getMessage()}: {error}"))

    def take(self) -> list[tuple[str, str]]:
        collected, self.collected = self.collected[:100], []
        return collected


def _place(trace: TracebackType | None) -> str:
    """Return the innermost function of our own in a traceback."""
    frames = traceback.extract_tb(trace)
    own = [frame for frame in frames if frame.filename.startswith(f"{ROOT}/") and "/.venv/" not in frame.filename]
    frame = (own or frames)[-1] if frames else None
    return f"{Path(frame.filename).name}:{frame.name}" if frame else "unknown"
