"""Pod logs: copy the output of jobs on clusters that do not write it to files.

Eligible rows     Attempts with `log_pending`, which Acme submitted to such a cluster: running ones, and ended ones
                  until their log is complete. Ended ones come first, then those that were read longest ago. A log that
                  had new lines is read again after `LIVE_INTERVAL_S`, one without after up to `QUIET_INTERVAL_S`.
What a turn does  Reads what is new of each log through the backend, over several connections, and appends it to the log
                  file with its position (`jobs.logs.copied_log`). A complete log loses its mark `log_pending`, for
                  which diagnosis waits. A turn ends when its time budget is used up. Logs in Acme's own directory are
                  bounded in size, and deleted `ACME_POD_LOG_DAYS` after their last line.
Failure story     Killed anywhere: what was appended without its position is cut off by the next copy, which reads it
                  again. Run twice: a lock on the file and the position that a worker began with refuse the second
                  writer. Late or not running: the cluster keeps the output of pods that exist; of a pod that was
                  deleted meanwhile, one line says that its log is not complete. Log storage that is full or does not
                  answer changes nothing; the log is tried again after `RETRY_S`. If the pods of an ended job do not
                  answer for `GIVE_UP_AFTER`, one line says so. A cluster that cannot be reached ends the turn.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import accumulate

from django.conf import settings

from jobs.actions.outcomes import mark_logs_complete
from jobs.logs import allowed_paths, copied_log, storage
from jobs.logs.copied_log import CopyPosition, LogPositionChanged
from jobs.logs.job_log import LogReadError
from jobs.logs.log_source import LogSource
from jobs.models import Attempt, Cluster
from scheduling.backends.base import Backend, BackendError, LogUpdate, RequestRejected
from scheduling.clusters import circuit_breaker
from scheduling.models import ClusterEndpoint

log = logging.getLogger(__name__)

PARALLEL_COPIES = 8
TIME_BUDGET_S = 8.0
LIVE_INTERVAL_S, QUIET_INTERVAL_S = 5.0, 20.0
ENDED_INTERVAL_S = 1.0
RETRY_S = 30.0
GIVE_UP_AFTER = timedelta(minutes=10)
MAX_LOG_BYTES = 1 << 30  # in Acme's own directory
OWN_LINES = ("acme: ", "Warning  ")  # how those begin that the backend adds
FULL_LOG = "full"  # among the positions of a log that is too long
MAX_ENDING_LINES = 200  # at the end of a log that is too long
DELETED_PER_TURN = 5_000
DELETE_DEADLINE_S = 20.0


@dataclass(frozen=True, kw_only=True)
class PendingLog:
    attempt_id: int
    key: str
    backend_id: str
    source: LogSource
    ended_at: datetime | None


@dataclass(kw_only=True)
class CopyPace:
    """When a log is read again, and what its position is as far as this process knows."""

    due_at: float = 0.0
    interval_s: float = LIVE_INTERVAL_S
    position: CopyPosition | None = None


class CopyMemory:
    """What a process remembers between turns. Losing it costs some requests."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.monotonic = monotonic
        self.paces: dict[int, CopyPace] = {}

    def due(self, pending: Sequence[PendingLog]) -> list[PendingLog]:
        """The logs that are due, ended attempts first, then the longest due. Forgets all others than these."""
        self.paces = {one.attempt_id: self.paces.get(one.attempt_id, CopyPace()) for one in pending}
        now = self.monotonic()
        due = [one for one in pending if self.paces[one.attempt_id].due_at <= now]
        return sorted(due, key=lambda one: (one.ended_at is None, self.paces[one.attempt_id].due_at))


def clusters_with_pending_logs() -> list[int]:
    return sorted(set(Attempt.objects.with_pending_log().order_by().values_list("job__cluster", flat=True)))


memories: dict[int, CopyMemory] = {}  # of this process, by cluster


def copy_cluster_logs_once(cluster: Cluster, now: datetime, *, connect: Callable[[Cluster], Backend]) -> int:
    """Copy the logs of a cluster over a new connection, unless it does not respond; turns report that on its page."""
    if circuit_breaker.is_open(cluster, ClusterEndpoint.CONTROL):
        return 0
    try:
        return copy_logs_once(cluster, connect(cluster), now, memories.setdefault(cluster.pk, CopyMemory()))
    except BackendError as error:
        log.info("the logs of cluster %s cannot be copied now: %s", cluster, error)
        return 0


def copy_logs_once(
    cluster: Cluster, backend: Backend, now: datetime, memory: CopyMemory, *, largest: int = MAX_LOG_BYTES
) -> int:
    """Return the number of logs that were read. Raises BackendError if the cluster cannot be reached."""
    if backend.traits.writes_logs:
        return mark_logs_complete([one.attempt_id for one in _pending_logs(cluster)])
    copier = LogCopier(backend, now, memory, largest if not cluster.log_root else None)
    complete = copier.copy_all(memory.due(list(_pending_logs(cluster))))
    mark_logs_complete(complete)
    if copier.error is not None:
        raise copier.error
    return copier.count


def _pending_logs(cluster: Cluster) -> Iterable[PendingLog]:
    rows = Attempt.objects.with_pending_log().filter(job__cluster=cluster)
    for pk, key, backend_id, path, ended_at in rows.values_list("pk", "key", "backend_id", "log_path", "ended_at"):
        yield PendingLog(
            attempt_id=pk, key=key, backend_id=backend_id, source=cluster.log_source(path), ended_at=ended_at
        )


class LogCopier:
    """Copies the logs of one turn. Its threads use no database."""

    def __init__(
        self,
        backend: Backend,
        now: datetime,
        memory: CopyMemory,
        largest: int | None,
        budget_s: float = TIME_BUDGET_S,
    ) -> None:
        self._backend, self._now, self._memory, self._largest = backend, now, memory, largest
        self._allowed = allowed_paths.load_allowed_paths()
        self._end_at = memory.monotonic() + budget_s
        self._lock = threading.Lock()
        self.count = 0
        self.error: BackendError | None = None  # that of a cluster that cannot be reached

    def copy_all(self, logs: Sequence[PendingLog]) -> list[int]:
        """Return the ids of the attempts whose logs are complete."""
        with ThreadPoolExecutor(min(max(len(logs), 1), PARALLEL_COPIES), thread_name_prefix="log copy") as executor:
            complete = list(executor.map(self._copy_or_log_error, logs))
        return [one.attempt_id for one, is_complete in zip(logs, complete, strict=True) if is_complete]

    def _copy_or_log_error(self, one: PendingLog) -> bool:
        if self.error is not None or self._memory.monotonic() >= self._end_at:
            return False
        pace = self._memory.paces[one.attempt_id]
        try:
            return self._copy(one, pace)
        except LogPositionChanged as error:
            log.info("the log of %s is read again: %s", one.key, error)
            pace.position = None
        except (RequestRejected, LogReadError) as error:
            log.warning("the log of %s could not be copied; retrying in %g s: %s", one.key, RETRY_S, error)
            self._retry(pace)
        except BackendError as error:
            self.error = error
        except Exception:
            log.exception("the log of %s could not be copied; retrying in %g s", one.key, RETRY_S)
            self._retry(pace)
        return False

    def _retry(self, pace: CopyPace) -> None:
        pace.position, pace.due_at = None, self._memory.monotonic() + RETRY_S

    def _copy(self, one: PendingLog, pace: CopyPace) -> bool:
        if not one.source.path or not one.backend_id:
            return one.ended_at is not None  # it was never submitted, or nobody reads its log
        before = pace.position or storage.call(
            one.source.root, copied_log.read_position, one.source.root, one.source.path, self._allowed
        )
        update = self._given_up(one, before, self._backend.new_log_lines(one.backend_id, before.parts))
        pace.position = self._append(one.source, before, update)
        with self._lock:
            self.count += 1
        self._set_pace(one, pace, has_lines=bool(update.lines))
        return update.is_complete

    def _given_up(self, one: PendingLog, before: CopyPosition, update: LogUpdate) -> LogUpdate:
        """The update, or the end of a log that nobody could read for long after the end of the job."""
        if update.is_complete or one.ended_at is None or self._now - one.ended_at < GIVE_UP_AFTER:
            return update
        if update.lines:
            return update
        why = "its pods do not answer" if before.parts else "its pods were deleted before it was copied"
        return LogUpdate(
            lines=[f"acme: the log of this job is not complete: {why}"], positions=update.positions, is_complete=True
        )

    def _append(self, source: LogSource, before: CopyPosition, update: LogUpdate) -> CopyPosition:
        lines, mark = self._lines_that_fit(before, update)
        parts = {**update.positions, **mark}
        if not lines and parts == before.parts:
            return before
        text = "".join(f"{line}\n" for line in lines).encode()
        arguments = (source.root, source.path, before, text, parts, self._allowed)
        return storage.call(source.root, copied_log.append, *arguments)

    def _lines_that_fit(self, before: CopyPosition, update: LogUpdate) -> tuple[Sequence[str], Mapping[str, str]]:
        """The lines up to the largest size of a log, and then only how the job ended; the mark of a full log."""
        lines, is_full = update.lines, FULL_LOG in before.parts
        largest = 0 if is_full else self._largest
        if largest is None or before.size + sum(len(line) + 1 for line in lines) <= largest:
            return lines, {}
        count = sum(before.size + end <= largest for end in accumulate(len(line) + 1 for line in lines))
        remark = [] if is_full else [f"acme: the log is longer than {largest >> 20} MiB; further output is not copied"]
        ending = lines[count:][-MAX_ENDING_LINES:] if update.is_complete else ()
        own = (line for line in ending if line.startswith(OWN_LINES))
        return [*lines[:count], *remark, *own], {FULL_LOG: "true"}

    def _set_pace(self, one: PendingLog, pace: CopyPace, *, has_lines: bool) -> None:
        if one.ended_at is not None:
            pace.interval_s = ENDED_INTERVAL_S
        else:
            pace.interval_s = LIVE_INTERVAL_S if has_lines else min(1.5 * pace.interval_s, QUIET_INTERVAL_S)
        pace.due_at = self._memory.monotonic() + pace.interval_s


def delete_old_logs_once(now: datetime) -> int:
    """Delete copied logs in Acme's own directory that are older than `ACME_POD_LOG_DAYS`. Return their number."""
    directory = str(allowed_paths.pod_log_directory())
    before = (now - timedelta(days=settings.ACME_POD_LOG_DAYS)).timestamp()
    try:
        return storage.call(
            directory, copied_log.delete_old_logs, directory, before, DELETED_PER_TURN, deadline_s=DELETE_DEADLINE_S
        )
    except (LogReadError, OSError) as error:
        log.warning("old logs in %s could not be deleted; retrying in the next turn: %s", directory, error)
        return 0
