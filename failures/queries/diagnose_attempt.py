"""Diagnoses an attempt from its log and the report of the cluster: verdict, cost, evidence bundle. Read-only.

The log is streamed in chunks of 256 KiB, so memory use does not depend on its size. If it was followed while it grew,
only the rest is read. The report of the cluster (state, reason, exit code, failed nodes) is combined with the log.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from failures.actions.incidents import FailureCost
from failures.diagnosis import classify, engine
from failures.diagnosis.compress import LogCompressor, format_row
from failures.diagnosis.following import LogFollower
from failures.diagnosis.values import ExitStatus, LogDiagnosis
from failures.incidents import circumstances
from failures.incidents.circumstances import ClusterEndReport, NodeStateChange
from failures.queries import active_rules, log_resume
from jobs.logs.job_log import LogReadError, LogStream, StorageUnresponsive
from jobs.models import Attempt, CheckpointVerdict, Event

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
    end = ClusterEndReport(state=attempt.state, reason=attempt.reason, news=_node_state_changes(attempt))
    verdict = circumstances.merge_cluster_report(log_verdict, end)
    ended, began = _end_and_start(attempt)
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


def _node_state_changes(attempt: Attempt) -> tuple[NodeStateChange, ...]:
    """State changes of the attempt's nodes near its end, not before its start. Late reports are included."""
    ended, began = _end_and_start(attempt)
    allocated = attempt.allocations.order_by().values("node")
    window = (max(began, ended - circumstances.NODE_CHANGE_WINDOW), ended + circumstances.NODE_CHANGE_WINDOW)
    rows = Event.objects.filter(node__in=allocated, type="node.state_changed", at__range=window).order_by("id")
    return tuple(
        NodeStateChange(node=name, at=at, condition=to)
        for name, at, to in rows.values_list("node__name", "at", "to_state")[:1000]
    )


def _end_and_start(attempt: Attempt) -> tuple[datetime, datetime]:
    """The end and the start of the attempt."""
    ended = attempt.ended_at or attempt.promised_at
    return ended, attempt.confirmed_at or attempt.promised_at


def failure_cost(attempt: Attempt) -> FailureCost:
    """The cost of the failure. The time since the last checkpoint that is not bad is lost; without one, all of it."""
    ended, _ = _end_and_start(attempt)
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
