"""Diagnoses an attempt from its log and the report of the cluster: verdict, cost, evidence bundle. Read-only.

The log is streamed in chunks of 256 KiB, so memory use does not depend on its size. If it was followed while it grew,
only the rest is read. The report of the cluster (state, reason, exit code, failed nodes) is combined with the log.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from failures.actions.incidents import FailureCost
from failures.actions.node_evidence import end_and_start, node_state_changes
from failures.diagnosis import classify, engine
from failures.diagnosis.compress import LogCompressor, format_row
from failures.diagnosis.following import LogFollower
from failures.diagnosis.values import ExitStatus, LogDiagnosis
from failures.incidents import circumstances
from failures.incidents.circumstances import ClusterEndReport
from failures.queries import active_rules, log_resume
from jobs.logs.job_log import LogReadError, LogStream, StorageUnresponsive
from jobs.models import Attempt, CheckpointVerdict

MAX_COMPRESSED_BYTES = 64 << 20  # of a longer log only the end is bundled; the verdict contains the evidence


@dataclass(frozen=True, kw_only=True)
class AttemptVerdict:
    verdict: LogDiagnosis
    cost: FailureCost
    first_symptom_at: datetime
    no_log: LogReadError | None


def judge_attempt(attempt: Attempt) -> AttemptVerdict:
    no_log, ending = None, ExitStatus(exit_code=attempt.exit_code, signal=attempt.signal)
    try:
        log_verdict = _log_verdict(attempt, ending)
    except LogReadError as error:
        no_log, log_verdict = error, _verdict_without_log(attempt, str(error), ending)
    end = ClusterEndReport(state=attempt.state, reason=attempt.reason, news=node_state_changes(attempt))
    verdict = circumstances.merge_cluster_report(log_verdict, end)
    ended, began = end_and_start(attempt)
    return AttemptVerdict(
        verdict=verdict,
        cost=failure_cost(attempt),
        first_symptom_at=circumstances.first_symptom_time(verdict, end, began, ended),
        no_log=no_log,
    )


def _log_verdict(attempt: Attempt, ending: ExitStatus) -> LogDiagnosis:
    """The diagnosis of the log. Reads only the rest of a log that was followed while it grew."""
    log = LogStream(attempt.log_source)
    resumed = log_resume.resume_follower(attempt, log)
    if resumed is None:
        return engine.diagnose(log.sync_chunks(), ending, active_rules.active_scanner())
    follower, at = resumed
    log.cut(at, log.size)
    for piece in log.sync_chunks():
        follower.reader.feed(piece)
    return classify.diagnose_reading(follower.reader.build_reading(), ending)


def _verdict_without_log(attempt: Attempt, why: str, ending: ExitStatus) -> LogDiagnosis:
    """The diagnosis from the reason that the cluster reports; unknown if there is none. `why` is added as a note."""
    diagnosis = engine.diagnose([attempt.reason.encode()] if attempt.reason else [], ending)
    others = (note for note in diagnosis.notes if note != "The log is empty.")
    return replace(diagnosis, notes=(why, *others), lines=0, size=0)


def failure_cost(attempt: Attempt) -> FailureCost:
    """The cost of the failure. The time since the last checkpoint that is not bad is lost; without one, all of it."""
    ended, _ = end_and_start(attempt)
    if attempt.confirmed_at is None:
        return FailureCost(gpus=attempt.job.gpus, ran=timedelta(0), lost=timedelta(0))
    began = min(attempt.confirmed_at, ended)
    saved = attempt.job.checkpoints.exclude(verdict=CheckpointVerdict.BAD).filter(saved_at__range=(began, ended))
    last = saved.order_by("-saved_at").values_list("saved_at", flat=True).first()
    return FailureCost(gpus=attempt.job.gpus, ran=ended - began, lost=ended - (last or began))


def build_bundle(attempt: Attempt, most: int = MAX_COMPRESSED_BYTES) -> str:
    """The evidence bundle; empty if the log no longer exists. Line numbers refer to the whole log."""
    try:
        log = LogStream(attempt.log_source)
        resumed = log_resume.resume_follower(attempt, log)
        return _finish_bundle(*resumed, log) if resumed else _bundle_of_tail(log, most)
    except StorageUnresponsive:
        raise  # try again later: an empty bundle would be final
    except LogReadError:
        return ""


def _finish_bundle(follower: LogFollower, at: int, log: LogStream) -> str:
    log.cut(at, log.size)
    for piece in log.sync_chunks():
        follower.compressor.feed(piece)
    return follower.compressor.bundle().text


def _bundle_of_tail(log: LogStream, most: int) -> str:
    compressor, at, skipped = LogCompressor(active_rules.active_filter_rules()), 0, 0
    for piece in log.sync_chunks():
        at += len(piece)
        if at <= log.size - most:
            skipped += piece.count(b"\n")
        else:
            compressor.feed(piece)
    rows = compressor.bundle().rows
    return "".join(format_row(replace(row, number=row.number + skipped)) + "\n" for row in rows)
