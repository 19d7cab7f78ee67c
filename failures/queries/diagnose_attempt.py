"""Diagnoses an attempt from its log and the report of the cluster: verdict, cost, evidence bundle. Read-only.

The log is streamed in chunks of 256 KiB, so memory use does not depend on its size. If it was followed while it grew,
only the rest is read. Reading has a time budget: of a log that is not read to its end in time, the beginning and the
last megabytes count, and the verdict says so. The report of the cluster (state, reason, exit code, failed nodes) is
combined with the log.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from failures.diagnosis import classify, engine, unpacking
from failures.diagnosis.compress import LogCompressor, format_row
from failures.diagnosis.following import LogFollower
from failures.diagnosis.labels import NONE, UNKNOWN
from failures.diagnosis.values import ExitStatus, LogDiagnosis
from failures.incidents import circumstances
from failures.incidents.circumstances import ClusterEndReport
from failures.queries import active_rules, log_resume
from failures.recovery.node_evidence import end_and_start, node_state_changes
from jobs.logs.job_log import LogReadError, LogStream, StorageUnresponsive
from jobs.models import Attempt, CheckpointVerdict

MAX_COMPRESSED_BYTES = 64 << 20  # of a longer log only the end is bundled; the verdict contains the evidence
READ_SECONDS = 20.0  # well below the time limit of a task
TAIL_SECONDS = 5.0  # of these, for the end of a log that was not read in time
TAIL_BYTES = 4 << 20


@dataclass(frozen=True, kw_only=True)
class FailureCost:
    gpus: int
    ran: timedelta
    lost: timedelta


class ReadBudget:
    """The time for reading one log. It is measured, not counted in bytes, because a busy machine reads slowly."""

    def __init__(self, seconds: float = READ_SECONDS, timer: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self._timer, self._began = seconds, timer, timer()

    def is_spent(self, *, reserve: float) -> bool:
        return self._timer() - self._began >= self.seconds - reserve


class BudgetedChunks:
    """The chunks of a log until the budget is spent. `read` is how far it came."""

    def __init__(self, log: LogStream, budget: ReadBudget, *, reserve: float) -> None:
        self._log, self._budget, self._reserve = log, budget, reserve
        self.read, self.is_cut = log.start, False

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._log.sync_chunks():
            yield chunk
            self.read += len(chunk)
            if self.read < self._log.stop and self._budget.is_spent(reserve=self._reserve):
                self.is_cut = True
                return


@dataclass(frozen=True, kw_only=True)
class AttemptVerdict:
    verdict: LogDiagnosis
    cost: FailureCost
    first_symptom_at: datetime
    no_log: LogReadError | None


def judge_attempt(attempt: Attempt, budget: ReadBudget | None = None) -> AttemptVerdict:
    try:
        log_verdict = _log_verdict(attempt, _exit_status(attempt), budget or ReadBudget())
    except LogReadError as error:
        return judge_without_log(attempt, str(error), error)
    return _with_cluster_report(attempt, log_verdict, None)


def judge_without_log(attempt: Attempt, why: str, no_log: LogReadError | None = None) -> AttemptVerdict:
    """The verdict from the report of the cluster alone. `why` says why the log was not read."""
    return _with_cluster_report(attempt, _verdict_without_log(attempt, why), no_log)


def _exit_status(attempt: Attempt) -> ExitStatus:
    return ExitStatus(exit_code=attempt.exit_code, signal=attempt.signal)


def _with_cluster_report(attempt: Attempt, log_verdict: LogDiagnosis, no_log: LogReadError | None) -> AttemptVerdict:
    end = ClusterEndReport(state=attempt.state, reason=attempt.reason, news=node_state_changes(attempt))
    verdict = circumstances.merge_cluster_report(log_verdict, end)
    ended, began = end_and_start(attempt)
    return AttemptVerdict(
        verdict=verdict,
        cost=failure_cost(attempt),
        first_symptom_at=circumstances.first_symptom_time(verdict, end, began, ended),
        no_log=no_log,
    )


def _log_verdict(attempt: Attempt, ending: ExitStatus, budget: ReadBudget) -> LogDiagnosis:
    """The diagnosis of the log. Reads only the rest of a log that was followed while it grew."""
    log = LogStream(attempt.log_source)
    if (resumed := log_resume.resume_follower(attempt, log)) is not None:
        follower, at = resumed
        log.cut(at, log.size)
        chunks = BudgetedChunks(log, budget, reserve=TAIL_SECONDS)
        for piece in chunks:
            follower.reader.feed(piece)
        verdict = classify.diagnose_reading(follower.reader.build_reading(), ending)
    else:
        chunks = BudgetedChunks(log, budget, reserve=TAIL_SECONDS)
        verdict = engine.diagnose(chunks, ending, active_rules.active_scanner())
    return _verdict_of_both_ends(log, verdict, chunks.read, ending, budget) if chunks.is_cut else verdict


def _verdict_of_both_ends(
    log: LogStream, beginning: LogDiagnosis, read: int, ending: ExitStatus, budget: ReadBudget
) -> LogDiagnosis:
    """The diagnosis of a log that was read up to `read`: of its end, or of its beginning if the end names no cause."""
    why = f"The log was not read to its end within {budget.seconds:g} s"
    verdict, used = beginning, f"the first {_format_megabytes(read)}"
    if not unpacking.is_compressed(log.read_range(0, unpacking.HEADER_BYTES)):
        start = _cut_to_tail(log, read)
        end = engine.diagnose(log.sync_chunks(), ending, active_rules.active_scanner())
        if end.root_cause not in (NONE, UNKNOWN) or beginning.root_cause in (NONE, UNKNOWN):
            verdict, used = end, f"the last {_format_megabytes(log.size - start)}, from which its lines are counted"
    return replace(verdict, size=log.size, notes=(f"{why}; the verdict uses {used}.", *verdict.notes))


def _cut_to_tail(log: LogStream, read: int) -> int:
    """Limit the log to its unread last megabytes. Return where they start."""
    start = max(read, log.size - TAIL_BYTES)
    log.cut(start, log.size)
    return start


def _format_megabytes(count: int) -> str:
    return f"{count / 1e6:.3g} MB"


def _verdict_without_log(attempt: Attempt, why: str) -> LogDiagnosis:
    """The diagnosis from the reason that the cluster reports; unknown if there is none. `why` is added as a note."""
    diagnosis = engine.diagnose([attempt.reason.encode()] if attempt.reason else [], _exit_status(attempt))
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


def build_bundle(attempt: Attempt, most: int = MAX_COMPRESSED_BYTES, budget: ReadBudget | None = None) -> str:
    """The evidence bundle of what was read in time; empty if the log no longer exists.

    Line numbers refer to the whole log, unless counting its lines takes too long.
    """
    budget = budget or ReadBudget()
    try:
        log = LogStream(attempt.log_source)
        resumed = log_resume.resume_follower(attempt, log)
        return _finish_bundle(*resumed, log, budget) if resumed else _bundle_of_tail(log, most, budget)
    except StorageUnresponsive:
        raise  # try again later: an empty bundle would be final
    except LogReadError:
        return ""


def _finish_bundle(follower: LogFollower, at: int, log: LogStream, budget: ReadBudget) -> str:
    log.cut(at, log.size)
    _compress_in_time(follower.compressor, log, budget)
    return follower.compressor.bundle().text


def _compress_in_time(compressor: LogCompressor, log: LogStream, budget: ReadBudget) -> None:
    """Compress the rest of the log; if this takes too long, its beginning and its last megabytes."""
    chunks = BudgetedChunks(log, budget, reserve=TAIL_SECONDS)
    for piece in chunks:
        compressor.feed(piece)
    if chunks.is_cut:
        _cut_to_tail(log, chunks.read)
        for piece in log.sync_chunks():
            compressor.feed(piece)


def _bundle_of_tail(log: LogStream, most: int, budget: ReadBudget) -> str:
    compressor, start = LogCompressor(active_rules.active_filter_rules()), max(0, log.size - most)
    log.cut(0, start)
    skipped = sum(piece.count(b"\n") for piece in BudgetedChunks(log, budget, reserve=budget.seconds / 2))
    log.cut(start, log.size)
    _compress_in_time(compressor, log, budget)
    rows = compressor.bundle().rows
    return "".join(format_row(replace(row, number=row.number + skipped)) + "\n" for row in rows)
