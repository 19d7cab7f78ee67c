"""The results of a drill: what was detected, recovered and done wrongly, how fast, and the lost training time. Pure.

ETTR comes from the ledger, which accounts for every GPU-second of the gang's 2,048 GPUs from its first start.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from scheduling.ledger.rules import attempt_intervals, buckets, reliability
from scheduling.ledger.rules.buckets import Bucket
from scheduling.simulation.drill.counts import FaultCase, percentiles
from scheduling.simulation.drill.jobs import GANG_JOB, AttemptLife, DrillJob
from scheduling.simulation.drill.run import DrillResult

MICROSECONDS_PER_SECOND = 1_000_000


def drill_summary(runs: Sequence[DrillResult]) -> dict[str, Any]:
    """The combined results of several scenarios under one strategy."""
    cases = [case for run in runs for case in run.tally.cases]
    idle = [kind for run in runs for kind in run.tally.idle]
    days = sum(run.plan.nodes * run.plan.hours / 24 for run in runs)
    curable = [case for case in cases if case.recoverable]
    known = [case for case in cases if case.detected is not None]
    return {
        "injected": len(cases) + len(idle),
        "hit_nobody": len(idle),
        "recoverable": len(curable),
        "recovered_without_human": sum(case.is_recovered for case in cases),
        "wrong_stops": sum(len(run.tally.wrong_stops) for run in runs),
        "wrong_restarts": sum(run.tally.wrong_restarts for run in runs),
        "cordons": sum(run.tally.cordons for run in runs),
        "false_cordons": sum(len(run.tally.false_cordons) for run in runs),
        "false_cordons_per_node_day": sum(len(run.tally.false_cordons) for run in runs) / days,
        "detected": len(known),
        "diagnosed_right": sum(case.label in case.expected for case in known),
        "detection_s": percentiles(_detection_delays(known)),
        "fault_to_first_step_s": percentiles(_recovery_delays(curable)),
        "beyond_restart_s": percentiles(_recovery_delays_beyond_restart(curable)),
        "by_kind": _summary_by_kind(cases, idle),
    }


def _detection_delays(cases: Iterable[FaultCase]) -> list[float]:
    return [case.detected - case.at for case in cases if case.detected is not None]


def _recovery_delays(cases: Iterable[FaultCase]) -> list[float]:
    return [case.first_step - case.at for case in cases if case.first_step is not None]


def _recovery_delays_beyond_restart(cases: Iterable[FaultCase]) -> list[float]:
    """Recovery delays without the time that the job itself needs to start."""
    return [case.first_step - case.at - case.restart_s for case in cases if case.first_step is not None]


def _summary_by_kind(cases: Iterable[FaultCase], idle: Iterable[str]) -> dict[str, dict[str, Any]]:
    by_kind: dict[str, list[FaultCase]] = defaultdict(list)
    for case in cases:
        by_kind[case.kind].append(case)
    hit_no_job: dict[str, int] = defaultdict(int)
    for kind in idle:
        hit_no_job[kind] += 1
    return {kind: _kind_summary(by_kind[kind], hit_no_job[kind]) for kind in sorted({*by_kind, *hit_no_job})}


def _kind_summary(cases: Sequence[FaultCase], hit_no_job: int) -> dict[str, Any]:
    known = [case for case in cases if case.detected is not None]
    return {
        "injected": len(cases) + hit_no_job,
        "hit_nobody": hit_no_job,
        "recoverable": sum(case.recoverable for case in cases),
        "recovered_without_human": sum(case.is_recovered for case in cases),
        "detected": len(known),
        "diagnosed_right": sum(case.label in case.expected for case in known),
        "detection_s": percentiles(_detection_delays(known)),
        "fault_to_first_step_s": percentiles(_recovery_delays(case for case in cases if case.recoverable)),
    }


def gang_ettr(run: DrillResult) -> float:
    return reliability.ettr(buckets_us(run), _gang_runs(run), 0, _to_microseconds(run.plan.end_s)) or 0.0


def buckets_us(run: DrillResult) -> dict[Bucket, int]:
    """The gang's GPU-time by bucket; time outside all attempts was spent waiting for the next one."""
    gang, end = run.works[GANG_JOB], _to_microseconds(run.plan.end_s)
    machine = buckets.NodeHistory(
        name=GANG_JOB, capacity=((_gang_runs(run)[0].start, gang.gpus),), holdings=tuple(_gang_holdings(gang, end))
    )
    lives = {
        number: attempt_intervals.bucket_intervals(attempt) for number, attempt in enumerate(_ledger_attempts(gang))
    }
    entries = buckets.ledger_entries(buckets.LedgerInput(machines=(machine,), lives=lives), (0, end))
    return dict(buckets.sum_by_key(entries, lambda piece: "")[""])


def _gang_runs(run: DrillResult) -> tuple[reliability.JobLifetime, ...]:
    gang = run.works[GANG_JOB]
    start = _to_microseconds(gang.lives[0].promised) if gang.lives else 0
    return (reliability.JobLifetime(job=1, gpus=gang.gpus, start=start, end=_to_microseconds(run.plan.end_s)),)


def _gang_holdings(gang: DrillJob, end: int) -> Iterable[buckets.GpuAllocation]:
    for number, life in enumerate(gang.lives):
        ended = end if life.ended is None else _to_microseconds(life.ended)
        yield buckets.GpuAllocation(number, _to_microseconds(life.promised), ended, tuple(range(gang.gpus)))


def _ledger_attempts(gang: DrillJob) -> Iterable[attempt_intervals.AttemptHistory]:
    for number, life in enumerate(gang.lives):
        yield _ledger_attempt(life, [later.base for later in gang.lives[number + 1 :]])


def _ledger_attempt(life: AttemptLife, bases: Sequence[int]) -> attempt_intervals.AttemptHistory:
    """The ledger's view of an attempt. Work that any later attempt repeated was lost here."""
    return attempt_intervals.AttemptHistory(
        promised=_to_microseconds(life.promised),
        first_step=None if life.first_step is None else _to_microseconds(life.first_step),
        ended=None if life.ended is None else _to_microseconds(life.ended),
        keeps_work=not bases,
        saved=_to_microseconds(life.time_of_step(min(bases))) if bases else None,
        cause=life.cause,
        after=life.after,
        stalls=[(_to_microseconds(low), _to_microseconds(high)) for low, high in life.stalls],
        hangs=[(_to_microseconds(low), _to_microseconds(high)) for low, high in life.hangs],
        slows=list(_slow_spells(life)),
    )


def _slow_spells(life: AttemptLife) -> Iterable[attempt_intervals.SlowPeriod]:
    """Merge consecutive steps of the same pace into one period."""
    for factor, spans in groupby(life.slows, key=lambda row: row[2]):
        rows = list(spans)
        yield attempt_intervals.SlowPeriod(
            start=_to_microseconds(rows[0][0]), end=_to_microseconds(rows[-1][1]), observed=factor, expected=1.0
        )


def _to_microseconds(seconds: float) -> int:
    return round(seconds * MICROSECONDS_PER_SECOND)
