"""Slow steps: finds running training jobs whose steps take longer than their batches explain.

Eligible rows     The attempts that `watch` covers and that reported within the last minutes; and anomalies of attempts
                  that have ended.
What a turn does  Runs the pure detector on the newest steps of each attempt and on steps from before its anomaly began,
                  so that a long slowdown does not become the baseline. If the batches vary too much, the ranks are
                  compared with each other instead. A finding becomes an anomaly. It names a node if the times of the
                  ranks or the health of the node identify one. An anomaly ends when the steps are normal again. Steps
                  during which Acme capped clocks of the job's GPUs are left out.
Failure story     The detector uses only stored rows and keeps no state between turns, and an ongoing anomaly is one
                  row, so after a kill or a second run the next turn gives the same result. When an attempt ends, its
                  anomaly ends at the same time, so that no slow steps are counted after its end.

Each attempt costs one range scan of 300 rows and about 8 ms of computation, so a turn with 1,000 training jobs takes
about 10 s of one worker every minute.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from django.db.models import QuerySet

from failures.actions import anomalies as anomaly_actions
from failures.detection import slow_ranks, slow_steps
from failures.detection.findings import DetectorFinding, Severity, SymptomType
from failures.detection.slow_ranks import RankTimings
from failures.detection.slow_steps import LARGE_EXCESS_STEPS, StepTiming
from failures.loops.watch import attempts_with_reports
from failures.models import Anomaly
from jobs.actions.one_row import skip_row_on_error
from jobs.core.hostlist import expand
from jobs.models import Attempt, Node, Progress, RankTimes
from jobs.queries.capped_time import capped_times

MAX_STEPS, MAX_RECENT_STEPS = 300, 80
REPORTED_WITHIN = timedelta(minutes=3)
MAX_ANOMALIES = 2_000
MAX_RANK_TIMES, MAX_SLOW_RANKS = 8, 3

CappedTimes = Sequence[tuple[float, float]]  # from, until


def slow_steps_once(now: datetime) -> int:
    """Update the anomalies of slow steps. Returns how many were opened, attributed to a node or ended."""
    anomalies = {anomaly.attempt_id: anomaly for anomaly in _ongoing_anomalies()}
    done = sum(_end_anomaly_of_ended_attempt(anomaly) for anomaly in anomalies.values())
    attempts = [one for one in attempts_with_reports() if now - one.latest_progress.updated_at < REPORTED_WITHIN]
    capped = capped_times([attempt.pk for attempt in attempts], now)
    for attempt in attempts:
        with skip_row_on_error(attempt):
            times = [(began.timestamp(), ended.timestamp()) for began, ended in capped.get(attempt.pk, ())]
            done += _check_attempt(attempt, anomalies.get(attempt.pk), times, now)
    return done


def _ongoing_anomalies() -> list[Anomaly]:
    rows = Anomaly.objects.not_ended().slow().select_related("attempt__job__cluster", "node", "incident")
    return list(rows[:MAX_ANOMALIES])


def _end_anomaly_of_ended_attempt(anomaly: Anomaly) -> bool:
    ended = anomaly.attempt and anomaly.attempt.ended_at
    if not ended:
        return False
    with skip_row_on_error(anomaly):
        return anomaly_actions.end_anomaly(anomaly, "The attempt has ended.", ended, ended)
    return False


def _check_attempt(attempt: Attempt, anomaly: Anomaly | None, capped: CappedTimes, now: datetime) -> bool:
    steps = measured_steps(_progress_rows(attempt, anomaly.since if anomaly else None))
    steps = slow_steps.steps_outside(steps, capped)
    evaluation = slow_steps.evaluate_steps(steps)
    finding = evaluation.finding if evaluation.can_tell else _compare_ranks(attempt, capped, now)
    if anomaly is None:
        return finding is not None and _open_anomaly(attempt, finding, capped, now)
    if finding is None:
        return _end_recovered_anomaly(anomaly, steps, capped, now)
    _update_step_times(anomaly, steps, now)
    return anomaly.node is None and _locate_slow_node(attempt, anomaly, capped, now)


def _open_anomaly(attempt: Attempt, finding: DetectorFinding, capped: CappedTimes, now: datetime) -> bool:
    anomaly = anomaly_actions.record_finding(finding, attempt.job.cluster, now, attempt=attempt)
    if anomaly is not None and anomaly.node is None:
        _locate_slow_node(attempt, anomaly, capped, now)
    return anomaly is not None


def _end_recovered_anomaly(anomaly: Anomaly, steps: Sequence[StepTiming], capped: CappedTimes, now: datetime) -> bool:
    if len(steps) <= LARGE_EXCESS_STEPS:
        return False  # too few steps
    ended_at = _step_time(steps[-LARGE_EXCESS_STEPS], now)
    if ended_at < anomaly.since and any(ended >= anomaly.since.timestamp() for _, ended in capped):
        return False  # all newer steps were capped
    return anomaly_actions.end_anomaly(anomaly, "The steps take as long as predicted again.", ended_at, now)


def _step_time(step: StepTiming, now: datetime) -> datetime:
    return datetime.fromtimestamp(step.at, now.tzinfo)


def _update_step_times(anomaly: Anomaly, steps: Sequence[StepTiming], now: datetime) -> None:
    """Store the median step times since the anomaly began and before it."""
    slow = [step.seconds for step in steps if step.at >= anomaly.since.timestamp()]
    before = [step.seconds for step in steps if step.at < anomaly.since.timestamp()]
    if slow and before:
        anomaly_actions.update_step_times(anomaly, median(slow), median(before), now)


# --- rows → steps


class ProgressRow(NamedTuple):
    step: int
    at: datetime
    tokens: int | None
    step_time_s: float | None
    sum_sq: float | None = None


def _progress_rows(attempt: Attempt, since: datetime | None) -> list[ProgressRow]:
    """The newest reported steps in order; with `since`, also the last ones before that time."""
    rows = Progress.objects.filter(attempt_id=attempt.pk, step__isnull=False).order_by("-at")
    columns = rows.values_list("step", "at", "tokens", "step_time_s", "sum_sq")
    if since is None:
        return [ProgressRow(*row) for row in columns[:MAX_STEPS]][::-1]
    newest = columns.filter(at__gte=since)[:MAX_RECENT_STEPS]
    before = columns.filter(at__lt=since)[: MAX_STEPS - MAX_RECENT_STEPS]
    return [ProgressRow(*row) for row in (*newest, *before)][::-1]


def measured_steps(rows: Sequence[ProgressRow]) -> list[StepTiming]:
    """The step times, as reported or from the times of the reports.

    Unless all rows have token counts, all batches count as equal; the squared lengths are used only if all rows have
    both. A gap in the reports is averaged over its steps.
    """
    pairs = [(previous, row) for previous, row in pairwise(rows) if row.step > previous.step]
    tokens = [_growth_per_step(previous.tokens, row.tokens, row.step - previous.step) for previous, row in pairs]
    squares = [_growth_per_step(previous.sum_sq, row.sum_sq, row.step - previous.step) for previous, row in pairs]
    has_tokens, has_squares = all(tokens), all(tokens) and all(squares)
    return [
        StepTiming(
            at=row.at.timestamp(), seconds=seconds, tokens=n if has_tokens else 1.0, squares=q if has_squares else 0.0
        )
        for (previous, row), n, q in zip(pairs, tokens, squares, strict=True)
        if (seconds := _step_seconds(previous, row)) > 0
    ]


def _step_seconds(previous: ProgressRow, row: ProgressRow) -> float:
    reported = row.step_time_s
    if reported is not None and math.isfinite(reported) and reported > 0:
        return reported
    return (row.at - previous.at).total_seconds() / (row.step - previous.step)


def _growth_per_step(before: float | None, after: float | None, steps: int) -> float:
    """The growth of a counter per step; 0 if it is unknown or invalid."""
    if before is None or after is None or not math.isfinite(after - before):
        return 0.0
    return max(0.0, (after - before) / steps)


# --- the slow node


def _locate_slow_node(attempt: Attempt, anomaly: Anomaly, capped: CappedTimes, now: datetime) -> bool:
    """Attributes the anomaly to a node: by the times of the ranks, else to the only node with health anomalies."""
    if located := _slow_node_by_ranks(attempt, anomaly, capped, now):
        node = Node.objects.filter(cluster=anomaly.cluster_id, name=located[0]).first()
        return node is not None and anomaly_actions.blame_node(anomaly, node, located[1], now)
    return _slow_node_by_health(attempt, anomaly, now)


def _compare_ranks(attempt: Attempt, capped: CappedTimes, now: datetime) -> DetectorFinding | None:
    """The finding if one rank is much slower than others with the same work, whatever the batches are; else None."""
    rank_times = _newest_rank_times(attempt.rank_times.all(), capped)
    findings = _slow_rank_findings(rank_times, now)
    if not findings or findings[0].observed <= 1 + slow_steps.LARGE_EXCESS:
        return None
    return replace(findings[0], symptom=SymptomType.SLOW, since=rank_times[-1].at.timestamp())


def _newest_rank_times(rows: QuerySet[RankTimes], capped: CappedTimes) -> list[RankTimes]:
    """The newest rank times, restricted to the newest placement. Only some nodes of a job may be capped, so those
    that were measured meanwhile say nothing about faults."""
    newest = list(rows.order_by("-pk")[:MAX_RANK_TIMES])
    outside = [row for row in newest if not any(began <= row.at.timestamp() <= ended for began, ended in capped)]
    return [row for row in outside if (row.nodes, row.groups) == (newest[0].nodes, newest[0].groups)]


def _slow_rank_findings(rank_times: Sequence[RankTimes], now: datetime) -> list[DetectorFinding]:
    findings = slow_ranks.detect_slow_ranks(_rank_series(rank_times), now.timestamp()) if rank_times else []
    return findings if len(findings) <= MAX_SLOW_RANKS else []  # so many slow ranks are not caused by a node


def _slow_node_by_ranks(
    attempt: Attempt, anomaly: Anomaly, capped: CappedTimes, now: datetime
) -> tuple[str, str] | None:
    """The slow node and the reason, from the rank times since the anomaly began; None if no rank stands out."""
    rank_times = _newest_rank_times(attempt.rank_times.filter(at__gte=anomaly.since), capped)
    if not (findings := _slow_rank_findings(rank_times, now)):
        return None
    number = findings[0].subject.removeprefix("rank ")
    node = rank_times[0].nodes[int(number)] if findings[0].symptom is SymptomType.SLOW_RANK else findings[0].subject
    return (node, findings[0].why) if node in expand(attempt.nodelist) else None


def _rank_series(rows: Sequence[RankTimes]) -> list[RankTimings]:
    first = rows[0]
    return [
        RankTimings(
            number=number,
            node=node,
            group=first.groups[number] if first.groups else "",
            seconds=[row.seconds[number] for row in rows],
        )
        for number, node in enumerate(first.nodes)
    ]


def _slow_node_by_health(attempt: Attempt, anomaly: Anomaly, now: datetime) -> bool:
    nodes = Node.objects.filter(cluster=anomaly.cluster_id, name__in=expand(attempt.nodelist))
    unwell = Anomaly.objects.not_ended().of_node_health().filter(node__in=nodes).exclude(severity=Severity.NOTE)
    anomalies = list(unwell.select_related("node")[:2])
    if len(anomalies) != 1 or anomalies[0].node is None:
        return False
    why = f"{anomalies[0].node} is the only node of the job with health problems: {anomalies[0].why}"
    return anomaly_actions.blame_node(anomaly, anomalies[0].node, why, now)
