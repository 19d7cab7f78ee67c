"""Reads the files of an attempt on shared storage: its record (`backends.attempt_record`) and the end of its log."""

from __future__ import annotations

from dataclasses import dataclass

from jobs.logs import job_log
from jobs.models import Attempt, Cluster
from scheduling.backends.attempt_record import AttemptRecord, read_record, record_directory

LOG_TAIL_BYTES = 16 * 1024
MAX_RECENT_LOGS = 5
ROOT_UID = 0


@dataclass(frozen=True, kw_only=True)
class AttemptFiles:
    record: AttemptRecord
    log_exists: bool
    log_tail: str


def read_attempt_files(attempt: Attempt) -> AttemptFiles:
    """Read the files. Raises LogReadError. A record is ignored if it is not owned by the log's owner or by root (which
    writes it on clusters that run jobs as other users), because another user could have written it."""
    cluster, directory = attempt.job.cluster, record_directory(attempt.log_path)
    log = job_log.read_file_end(attempt.log_source, LOG_TAIL_BYTES)
    records = (cluster.log_source(f"{directory}/{name}") for name in ("start", "exit"))
    start, ended = (job_log.read_file_end(source, LOG_TAIL_BYTES) for source in records)
    trusted = {ROOT_UID, log.owner} if log else {ROOT_UID}
    parts = [_decode_text(end) if end and (log is None or end.owner in trusted) else None for end in (start, ended)]
    return AttemptFiles(
        record=read_record(*parts), log_exists=log is not None, log_tail=_decode_text(log) if log else ""
    )


def _decode_text(end: job_log.FileEnd) -> str:
    return end.raw.decode("utf-8", "replace")


def is_log_root_readable(cluster: Cluster) -> bool:
    """Whether recent logs of this cluster are readable here. If not, a missing log proves nothing."""
    confirmed = Attempt.objects.filter(job__cluster=cluster, job__foreign_id="", confirmed_at__isnull=False)
    for path in confirmed.exclude(log_path="").order_by("-id").values_list("log_path", flat=True)[:MAX_RECENT_LOGS]:
        try:
            if job_log.read_file_end(cluster.log_source(path), 1):
                return True
        except job_log.LogReadError:
            continue
    return False
