"""Slow: look at the steps of running training jobs, and say which take longer than their batches explain.

Who is eligible   the attempts that `watch` looks after, heard of within the last minutes; and signs of attempts that
                  have ended.
What a turn does  asks the pure detector about the newest steps of each, beside those from before its sign began, so
                  that a long slowdown is never taken for the usual. Where the steps say nothing, because their batches
                  vary in what nobody tells, the ranks are compared with each other instead. What it finds is a sign; it
                  names the node where the ranks' own times, or the node's own health, tell which one it is. What passed
                  is closed.
Failure story     The detector sees rows alone and keeps nothing between turns; a sign is one row for as long as it
                  lasts. Killed anywhere, run twice or late, the next turn says the same. An attempt that ended closes
                  its sign at its end, so no ledger counts slow steps of the dead.

A look is one range of the progress' own key, 300 rows, and about eight milliseconds of arithmetic; so a turn
every minute with a thousand training jobs is some ten seconds of one worker.
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

from failures.actions import signs as sign_actions
from failures.detection import slow_ranks, slow_steps
from failures.detection.findings import DetectorFinding, Severity, SymptomType
from failures.detection.slow_ranks import RankTimings
from failures.detection.slow_steps import LARGE_EXCESS_STEPS, StepTiming
from failures.loops.watch import attempts_with_reports
from failures.models import Sign
from jobs.actions.one_row import skip_row_on_error
from jobs.core.hostlist import expand
from jobs.models import Attempt, Node, Progress, RankTimes

MAX_STEPS, MAX_RECENT_STEPS = 300, 80
REPORTED_WITHIN = timedelta(minutes=3)
MAX_SIGNS = 2_000
MAX_RANK_TIMES, MAX_SLOW_RANKS = 8, 3


def slow_steps_once(now: datetime) -> int:
    """How many signs were seen, named or closed."""
    signs = {sign.attempt_id: sign for sign in _ongoing_signs()}
    done = sum(_end_sign_of_ended_attempt(sign) for sign in signs.values())
    for attempt in attempts_with_reports():
        if now - attempt.pulse.heard_at < REPORTED_WITHIN:
            with skip_row_on_error(attempt):
                done += _check_attempt(attempt, signs.get(attempt.pk), now)
    return done


def _ongoing_signs() -> list[Sign]:
    rows = Sign.objects.not_ended().slow().select_related("attempt__job__cluster", "node", "incident")
    return list(rows[:MAX_SIGNS])


def _end_sign_of_ended_attempt(sign: Sign) -> bool:
    ended = sign.attempt and sign.attempt.ended_at
    if not ended:
        return False
    with skip_row_on_error(sign):
        return sign_actions.end_sign(sign, "Its attempt has ended.", ended, ended)
    return False


def _check_attempt(attempt: Attempt, sign: Sign | None, now: datetime) -> bool:
    steps = measured_steps(_progress_rows(attempt, sign.since if sign else None))
    told = slow_steps.evaluate_steps(steps)
    found = told.finding if told.can_tell else _compare_ranks(attempt, now)
    if sign is None:
        return found is not None and _open_sign(attempt, found, now)
    if found is None:
        return _end_recovered_sign(sign, steps, now)
    _update_step_times(sign, steps, now)
    return sign.node is None and _locate_slow_node(attempt, sign, now)


def _open_sign(attempt: Attempt, found: DetectorFinding, now: datetime) -> bool:
    sign = sign_actions.record_finding(found, attempt.job.cluster, now, attempt=attempt)
    if sign is not None and sign.node is None:
        _locate_slow_node(attempt, sign, now)
    return sign is not None


def _end_recovered_sign(sign: Sign, steps: Sequence[StepTiming], now: datetime) -> bool:
    if len(steps) <= LARGE_EXCESS_STEPS:
        return False  # too little is known
    return sign_actions.end_sign(
        sign, "Its steps are as long as predicted again.", _step_time(steps[-LARGE_EXCESS_STEPS], now), now
    )


def _step_time(step: StepTiming, now: datetime) -> datetime:
    return datetime.fromtimestamp(step.at, now.tzinfo)


def _update_step_times(sign: Sign, steps: Sequence[StepTiming], now: datetime) -> None:
    """In seconds of one step: the newest ones since it began, and those from before."""
    slow = [step.seconds for step in steps if step.at >= sign.since.timestamp()]
    before = [step.seconds for step in steps if step.at < sign.since.timestamp()]
    if slow and before:
        sign_actions.update_step_times(sign, median(slow), median(before), now)


# --- rows → steps


class ProgressRow(NamedTuple):
    step: int
    at: datetime
    tokens: int | None
    step_time_s: float | None
    sum_sq: float | None = None


def _progress_rows(attempt: Attempt, since: datetime | None) -> list[ProgressRow]:
    """The newest ones; of an attempt that is slow for a while, also the last ones from before."""
    rows = Progress.objects.filter(attempt_id=attempt.pk, step__isnull=False).order_by("-at")
    columns = rows.values_list("step", "at", "tokens", "step_time_s", "sum_sq")
    if since is None:
        return [ProgressRow(*row) for row in columns[:MAX_STEPS]][::-1]
    newest = columns.filter(at__gte=since)[:MAX_RECENT_STEPS]
    before = columns.filter(at__lt=since)[: MAX_STEPS - MAX_RECENT_STEPS]
    return [ProgressRow(*row) for row in (*newest, *before)][::-1]


def measured_steps(rows: Sequence[ProgressRow]) -> list[StepTiming]:
    """What each took: as it says itself, else from one to the next. Without its tokens every batch is like the others,
    and without the squares of its lengths every batch has sequences as long as the others'; half of it is not used.
    Over a gap (steps that nobody looked at) nothing is measured."""
    ahead = [(one, row) for one, row in pairwise(rows) if row.step > one.step]
    tokens = [_growth_per_step(one.tokens, row.tokens, row.step - one.step) for one, row in ahead]
    squares = [_growth_per_step(one.sum_sq, row.sum_sq, row.step - one.step) for one, row in ahead]
    knows, deeply = all(tokens), all(tokens) and all(squares)
    return [
        StepTiming(at=row.at.timestamp(), seconds=seconds, tokens=n if knows else 1.0, squares=q if deeply else 0.0)
        for (one, row), n, q in zip(ahead, tokens, squares, strict=True)
        if (seconds := _step_seconds(one, row)) > 0
    ]


def _step_seconds(one: ProgressRow, row: ProgressRow) -> float:
    told = row.step_time_s
    if told is not None and math.isfinite(told) and told > 0:
        return told
    return (row.at - one.at).total_seconds() / (row.step - one.step)


def _growth_per_step(before: float | None, after: float | None, steps: int) -> float:
    """By how much in one step; 0 where that is not known, or cannot be."""
    if before is None or after is None or not math.isfinite(after - before):
        return 0.0
    return max(0.0, (after - before) / steps)


# --- who it is


def _locate_slow_node(attempt: Attempt, sign: Sign, now: datetime) -> bool:
    """By the ranks' own times; else, where exactly one of its nodes shows trouble of its own, it is that one."""
    if found := _slow_node_by_ranks(attempt, sign, now):
        node = Node.objects.filter(cluster=sign.cluster_id, name=found[0]).first()
        return node is not None and sign_actions.blame_node(sign, node, found[1], now)
    return _slow_node_by_health(attempt, sign, now)


def _compare_ranks(attempt: Attempt, now: datetime) -> DetectorFinding | None:
    """All wait for one of them, whatever their batches are: who does the same work in the same steps is faster."""
    same = _newest_rank_times(attempt.rank_times.all())
    found = _slow_rank_findings(same, now)
    if not found or found[0].observed <= 1 + slow_steps.LARGE_EXCESS:
        return None
    return replace(found[0], symptom=SymptomType.SLOW, since=same[-1].at.timestamp())


def _newest_rank_times(rows: QuerySet[RankTimes]) -> list[RankTimes]:
    """The newest, as far as they are of one placement."""
    newest = list(rows.order_by("-pk")[:MAX_RANK_TIMES])
    return [row for row in newest if (row.nodes, row.groups) == (newest[0].nodes, newest[0].groups)]


def _slow_rank_findings(same: Sequence[RankTimes], now: datetime) -> list[DetectorFinding]:
    found = slow_ranks.detect_slow_ranks(_rank_series(same), now.timestamp()) if same else []
    return found if len(found) <= MAX_SLOW_RANKS else []  # so many at once are no node's fault


def _slow_node_by_ranks(attempt: Attempt, sign: Sign, now: datetime) -> tuple[str, str] | None:
    """The node, and why, as those who do the same work show it; from what was measured since it became slow."""
    same = _newest_rank_times(attempt.rank_times.filter(at__gte=sign.since))
    if not (found := _slow_rank_findings(same, now)):
        return None
    number = found[0].subject.removeprefix("rank ")
    node = same[0].nodes[int(number)] if found[0].symptom is SymptomType.SLOW_RANK else found[0].subject
    return (node, found[0].why) if node in expand(attempt.nodelist) else None


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


def _slow_node_by_health(attempt: Attempt, sign: Sign, now: datetime) -> bool:
    nodes = Node.objects.filter(cluster=sign.cluster_id, name__in=expand(attempt.nodelist))
    unwell = Sign.objects.not_ended().of_node_health().filter(node__in=nodes).exclude(severity=Severity.NOTE)
    found = list(unwell.select_related("node")[:2])
    if len(found) != 1 or found[0].node is None:
        return False
    why = f"Of its nodes {found[0].node} alone is not well: {found[0].why}"
    return sign_actions.blame_node(sign, found[0].node, why, now)
