"""Reading what an attempt has left on shared storage: its record (`scheduling.batch_script`) and the end of its log."""

from __future__ import annotations

from dataclasses import dataclass

from jobs import logs
from jobs.models import Attempt, Cluster
from scheduling.batch_script import AttemptRecord, read_record, record_directory

TAIL_BYTES = 16 * 1024
RECENT_LOGS = 5
ROOT = 0


@dataclass(frozen=True, kw_only=True)
class LeftBehind:
    record: AttemptRecord
    log_exists: bool
    log_tail: str


def left_behind(attempt: Attempt) -> LeftBehind:
    """Raises NoLog where it cannot be told. A record of another user than the log's is somebody else's, unless root
    wrote it: a cluster server that runs jobs as other users does that for them."""
    root, path = attempt.job.cluster.log_root, attempt.log_path
    log, directory = logs.end_of(root, path, TAIL_BYTES), record_directory(path)
    start, ended = (logs.end_of(root, f"{directory}/{name}", TAIL_BYTES) for name in ("start", "exit"))
    trusted = {ROOT, log.owner} if log else {ROOT}
    mine = [_text(one) if one and (log is None or one.owner in trusted) else None for one in (start, ended)]
    return LeftBehind(record=read_record(*mine), log_exists=log is not None, log_tail=_text(log) if log else "")


def _text(end: logs.FileEnd) -> str:
    return end.raw.decode("utf-8", "replace")


def log_root_works(cluster: Cluster) -> bool:
    """Whether logs of this cluster's jobs are found here at all. Otherwise a log that is not there says nothing."""
    confirmed = Attempt.objects.filter(job__cluster=cluster, job__foreign_id="", confirmed_at__isnull=False)
    for path in confirmed.exclude(log_path="").order_by("-id").values_list("log_path", flat=True)[:RECENT_LOGS]:
        try:
            if logs.end_of(cluster.log_root, path, 1):
                return True
        except logs.NoLog:
            continue
    return False
