"""One process of a group of loops: claim the loop that has been due longest, run it, store how it went.

Failure story     Killed at any instruction: the claim ends with the process's database session, the next process that
                  claims the loop counts an abandoned run, and the loop's own failure story says what it finds. A run
                  that exceeds its time limit is interrupted, and the process ends: whatever the interruption left
                  behind, such as a connection inside a transaction, ends with it, and the parent forks another. If the
                  interruption does not arrive, because the run hangs in a library, or if the end cannot be stored, the
                  process writes where it hangs and exits `HARD_LIMIT_S` later. Stopped by TERM: the present run ends
                  first. Database away: the process tries again every second. Valkey away: requests for early runs are
                  noticed up to `MAX_WAIT_S` late.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import socket
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import TracebackType

from django.db import Error, connection

from acmeweb.common.env import ROOT
from acmeweb.common.errors import TimeLimitExceeded
from acmeweb.common.wakeups import WakeupListener
from acmeweb.loops.table import GROUPS, LoopGroup, PeriodicLoop
from acmeweb.startup import discard_connections
from jobs.models import ClaimedLoop, Cluster, Loop, LoopFailure, LoopTimes, clock

log = logging.getLogger(__name__)

HARD_LIMIT_S = 15.0
MAX_WAIT_S = 5.0  # a new cluster, or a request without a wake-up, is noticed this late
STANDBY_S = 2.0  # the other processes of a group wait this much longer, so that usually one of them queries the table
DATABASE_RETRY_S = 1.0


def holder() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


class LoopProcess:
    """Runs the loops of a group until it is stopped, or one of its runs may have left it in an unknown state."""

    def __init__(self, group: LoopGroup, number: int = 1, wait: Callable[[float], None] | None = None) -> None:
        self.loops = {loop.name: loop for loop in group.loops}
        patience = timedelta(seconds=2 * HARD_LIMIT_S)
        self.times = {
            name: LoopTimes(every=loop.every, limit=loop.limit + patience) for name, loop in self.loops.items()
        }
        self.standby_s = STANDBY_S * (number - 1)
        self.wait = wait or WakeupListener(group.names).wait
        self.errors = ErrorCollector()
        self.add_missing_at = 0.0
        self.runs, self.stopping = False, False

    def serve(self) -> None:
        logging.getLogger().addHandler(self.errors)
        signal.signal(signal.SIGTERM, self._stop)
        while not self.stopping:
            try:
                claim = Loop.claim_due(self.times, holder())
                if claim is None:
                    self.wait(self._seconds_until_due())
                    continue
            except Error as error:
                log.warning("The schedule of the loops cannot be read: %s", error)
                discard_connections()
                time.sleep(DATABASE_RETRY_S)
                continue
            if not self.run(claim):
                return

    def _stop(self, _number: int, _frame: object) -> None:
        """Stop at once, or after the present run. Supervisor kills a process whose run takes long."""
        self.stopping = True
        if not self.runs:
            raise SystemExit(0)

    def _seconds_until_due(self) -> float:
        if time.monotonic() >= self.add_missing_at:
            add_missing_loops()
            self.add_missing_at = time.monotonic() + MAX_WAIT_S
        seconds = Loop.seconds_until_due(list(self.loops))
        return MAX_WAIT_S if seconds is None else min(MAX_WAIT_S, max(0.0, seconds) + self.standby_s)

    def run(self, claim: ClaimedLoop) -> bool:
        """Run a claimed loop and store how it ended. Return whether the process may run another one."""
        loop = self.loops[claim.name]
        self.runs = True
        faulthandler.dump_traceback_later(loop.limit.total_seconds() + HARD_LIMIT_S, exit=True)
        try:
            return self._run_and_store(claim, loop)
        except Error as error:
            log.warning("The end of loop %s could not be stored: %s", claim.name, error)
            return False
        finally:
            faulthandler.cancel_dump_traceback_later()
            self.runs = False

    def _run_and_store(self, claim: ClaimedLoop, loop: PeriodicLoop) -> bool:
        if claim.abandoned_at:
            message = f"The process ended in the run of {claim.abandoned_at:%H:%M:%S} UTC."
            LoopFailure.count_one(claim.id, "abandoned", message)
        self.errors.take()
        limit, failure, depth = TimeLimit(loop.limit), "", len(connection.atomic_blocks)
        has_run = True
        try:
            with limit:
                has_run = run_loop(loop, claim.cluster_id)
        except (TimeLimitExceeded, Exception) as error:
            # What the interruption raised may be another error, such as that of a connection that it left unusable
            if not limit.exceeded:
                failure = f"{type(error).__name__}: {error}"[:2000]
                log.exception("Loop %s failed", claim.name)
        if limit.exceeded:
            failure = f"It took longer than {loop.limit.total_seconds():g} s and was stopped."
            log.warning("Loop %s: %s", claim.name, failure)
        is_clean = not limit.exceeded and len(connection.atomic_blocks) == depth
        if not is_clean:
            discard_connections()
        elif connection.errors_occurred:
            connection.close_if_unusable_or_obsolete()
        self._store_end(claim, loop.next_interval(has_run), failure, limit.exceeded)
        return is_clean

    def _store_end(self, claim: ClaimedLoop, interval: timedelta, failure: str, exceeded: bool) -> None:
        if not Loop.finish(claim, interval, failure):
            log.warning("Loop %s was deleted, or claimed by another process because it took so long", claim.name)
            return
        if exceeded:
            LoopFailure.count_one(claim.id, "time limit", failure)
        for signature, message in self.errors.take():
            LoopFailure.count_one(claim.id, signature, message)


def run_loop(loop: PeriodicLoop, cluster_id: int | None) -> bool:
    """Run a loop once. Return False if its cluster has no work for it."""
    if loop.run is not None:
        loop.run(clock.now())
        return True
    if loop.run_of_cluster is None or (loop.clusters is not None and cluster_id not in loop.clusters()):
        return False
    cluster = Cluster.objects.filter(pk=cluster_id).first()  # it may have been deleted just now
    if cluster is not None:
        loop.run_of_cluster(cluster, clock.now())
    return True


def add_missing_loops() -> None:
    loops = [loop for group in GROUPS for loop in group.loops]
    Loop.add_missing(
        of_clusters=[loop.name for loop in loops if loop.run is None],
        global_=[loop.name for loop in loops if loop.run is not None],
    )


class TimeLimit:
    """Raises TimeLimitExceeded in its block after this time. `exceeded` says so whatever became of that exception."""

    def __init__(self, limit: timedelta) -> None:
        self.seconds, self.exceeded = limit.total_seconds(), False

    def __enter__(self) -> None:
        signal.signal(signal.SIGALRM, self._interrupt)
        signal.setitimer(signal.ITIMER_REAL, self.seconds)

    def __exit__(self, *_error: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _interrupt(self, _number: int, _frame: object) -> None:
        self.exceeded = True
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
