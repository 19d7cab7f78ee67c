"""An attempt's row and its log → a verdict, a cost, a bundle. Reads; changes nothing.

A log is streamed in pieces of a quarter of a megabyte, so its size costs time and no memory; of one that was followed
while it grew only the rest is read. What the cluster knows of
the end (state, reason, exit code, nodes that died) is laid beside what the log says.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from failures import circumstances, growing, rulebook
from failures.actions import Cost
from failures.circumstances import End, NodeNews
from failures.diagnosis import classify, engine
from failures.diagnosis.compress import Compressor, shown
from failures.diagnosis.following import Follower
from failures.diagnosis.values import Diagnosis, Ending
from jobs.logs import NoLog, StorageSilent, Stream
from jobs.models import Attempt, Event, Verdict

MOST_COMPRESSED = 64 << 20  # of a longer log its end is kept; the evidence is in the verdict anyway


@dataclass(frozen=True, kw_only=True)
class Judged:
    verdict: Diagnosis
    cost: Cost
    first_symptom_at: datetime
    no_log: NoLog | None


def judge(attempt: Attempt) -> Judged:
    no_log, ending = None, Ending(exit_code=attempt.exit_code, signal=attempt.signal)
    try:
        said = _said(attempt, ending)
    except NoLog as nothing:
        no_log, said = nothing, _without_log(attempt, str(nothing), ending)
    end = End(state=attempt.state, reason=attempt.reason, news=_news(attempt))
    verdict = circumstances.weighed(said, end)
    ended, began = _span(attempt)
    return Judged(
        verdict=verdict,
        cost=cost_of(attempt),
        first_symptom_at=circumstances.first_symptom(verdict, end, began, ended),
        no_log=no_log,
    )


def _said(attempt: Attempt, ending: Ending) -> Diagnosis:
    """Whoever followed the log while it grew has left little to read; packed or never followed, it is read whole."""
    log = Stream(attempt.job.cluster.log_root, attempt.log_path)
    known = growing.taken_up(attempt, log)
    if known is None:
        return engine.diagnose(log.in_turn(), ending, rulebook.scanner())
    follower, at = known
    log.cut(at, log.size)
    for piece in log.in_turn():
        follower.reader.feed(piece)
    return classify.diagnose(follower.reader.reading(), ending)


def _without_log(attempt: Attempt, why: str, ending: Ending) -> Diagnosis:
    """The cluster's words are all there is; without any, the cause is unknown and the reason is said."""
    said = engine.diagnose([attempt.reason.encode()], ending) if attempt.reason else engine.diagnose([], ending)
    return replace(said, notes=(why, *(note for note in said.notes if note != "The log is empty.")), lines=0, size=0)


def _news(attempt: Attempt) -> tuple[NodeNews, ...]:
    """What died before the attempt began did not kill it; what is reported late may have."""
    ended, began = _span(attempt)
    here = attempt.allocations.order_by().values("node")
    near = (max(began, ended - circumstances.SPAN), ended + circumstances.SPAN)
    rows = Event.objects.filter(node__in=here, what="node.moved", at__range=near).order_by("id")
    return tuple(
        NodeNews(node=name, at=at, condition=to)
        for name, at, to in rows.values_list("node__name", "at", "to_state")[:1000]
    )


def _span(attempt: Attempt) -> tuple[datetime, datetime]:
    """When it ended, when it began."""
    ended = attempt.ended_at or attempt.promised_at
    return ended, attempt.confirmed_at or attempt.promised_at


def cost_of(attempt: Attempt) -> Cost:
    """Work is lost since the last checkpoint that nobody judged bad; all of it where none was reported."""
    ended, _ = _span(attempt)
    if attempt.confirmed_at is None:
        return Cost(gpus=attempt.job.gpus, ran=timedelta(0), lost=timedelta(0))
    began = min(attempt.confirmed_at, ended)
    saved = attempt.job.checkpoints.exclude(verdict=Verdict.BAD).filter(saved_at__range=(began, ended))
    last = saved.order_by("-saved_at").values_list("saved_at", flat=True).first()
    return Cost(gpus=attempt.job.gpus, ran=ended - began, lost=ended - (last or began))


def bundle(attempt: Attempt, most: int = MOST_COMPRESSED) -> str:
    """Empty when there is no log any more. Line numbers are those of the whole log, wherever the kept part begins."""
    try:
        log = Stream(attempt.job.cluster.log_root, attempt.log_path)
        known = growing.taken_up(attempt, log)
        return _finished(*known, log) if known else _of_the_end(log, most)
    except StorageSilent:
        raise  # what is stored now is kept for good
    except NoLog:
        return ""


def _finished(follower: Follower, at: int, log: Stream) -> str:
    log.cut(at, log.size)
    for piece in log.in_turn():
        follower.compressor.feed(piece)
    return follower.compressor.bundle().text


def _of_the_end(log: Stream, most: int) -> str:
    compressor, at, skipped = Compressor(rulebook.filter_rules()), 0, 0
    for piece in log.in_turn():
        at += len(piece)
        if at <= log.size - most:
            skipped += piece.count(b"\n")
        else:
            compressor.feed(piece)
    rows = compressor.bundle().rows
    return "".join(shown(replace(row, number=row.number + skipped)) + "\n" for row in rows)
