"""The figures of a drill: what was found, cured and done wrongly, how fast, and what it cost the training. Pure.

ETTR comes from the ledger, which divides every GPU-second of the gang's 2,048 GPUs from its first start on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from scheduling import ledger, reliability, worked
from scheduling.drill.run import Drilled
from scheduling.drill.tally import Case, percentiles
from scheduling.drill.works import GANG, Life, Work
from scheduling.ledger import Bucket

US = 1_000_000


def counts(runs: Sequence[Drilled]) -> dict[str, Any]:
    """Of some scenarios under one answer, together."""
    cases = [case for run in runs for case in run.tally.cases]
    idle = [kind for run in runs for kind in run.tally.idle]
    days = sum(run.plan.nodes * run.plan.hours / 24 for run in runs)
    curable = [case for case in cases if case.recoverable]
    known = [case for case in cases if case.detected is not None]
    return {
        "injected": len(cases) + len(idle),
        "hit_nobody": len(idle),
        "recoverable": len(curable),
        "recovered_without_human": sum(case.recovered for case in cases),
        "wrong_stops": sum(len(run.tally.wrong_stops) for run in runs),
        "wrong_restarts": sum(run.tally.wrong_restarts for run in runs),
        "cordons": sum(run.tally.cordons for run in runs),
        "false_cordons": sum(len(run.tally.false_cordons) for run in runs),
        "false_cordons_per_node_day": sum(len(run.tally.false_cordons) for run in runs) / days,
        "detected": len(known),
        "diagnosed_right": sum(case.label in case.expected for case in known),
        "detection_s": percentiles(_waited(known)),
        "fault_to_first_step_s": percentiles(_to_step(curable)),
        "beyond_restart_s": percentiles(_beyond(curable)),
        "by_kind": _by_kind(cases, idle),
    }


def _waited(cases: Iterable[Case]) -> list[float]:
    return [case.detected - case.at for case in cases if case.detected is not None]


def _to_step(cases: Iterable[Case]) -> list[float]:
    return [case.first_step - case.at for case in cases if case.first_step is not None]


def _beyond(cases: Iterable[Case]) -> list[float]:
    """Without what the job itself needs to start."""
    return [case.first_step - case.at - case.restart_s for case in cases if case.first_step is not None]


def _by_kind(cases: Iterable[Case], idle: Iterable[str]) -> dict[str, dict[str, Any]]:
    of: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        of[case.kind].append(case)
    nobody: dict[str, int] = defaultdict(int)
    for kind in idle:
        nobody[kind] += 1
    return {kind: _kind(of[kind], nobody[kind]) for kind in sorted({*of, *nobody})}


def _kind(cases: Sequence[Case], nobody: int) -> dict[str, Any]:
    known = [case for case in cases if case.detected is not None]
    return {
        "injected": len(cases) + nobody,
        "hit_nobody": nobody,
        "recoverable": sum(case.recoverable for case in cases),
        "recovered_without_human": sum(case.recovered for case in cases),
        "detected": len(known),
        "diagnosed_right": sum(case.label in case.expected for case in known),
        "detection_s": percentiles(_waited(known)),
        "fault_to_first_step_s": percentiles(_to_step(case for case in cases if case.recoverable)),
    }


def ettr(run: Drilled) -> float:
    return reliability.ettr(buckets_us(run), _runs(run), 0, _us(run.plan.end_s)) or 0.0


def buckets_us(run: Drilled) -> dict[Bucket, int]:
    """The gang's GPU-time by bucket; what is in none of an attempt's was spent waiting for the next one."""
    gang, end = run.works[GANG], _us(run.plan.end_s)
    machine = ledger.Machine(
        name=GANG, capacity=((_runs(run)[0].start, gang.gpus),), holdings=tuple(_holdings(gang, end))
    )
    lives = {number: worked.life(attempt) for number, attempt in enumerate(_attempts(gang))}
    found = ledger.pieces(ledger.Facts(machines=(machine,), lives=lives), 0, end)
    return dict(ledger.totals(found, lambda piece: "")[""])


def _runs(run: Drilled) -> tuple[reliability.Run, ...]:
    gang = run.works[GANG]
    start = _us(gang.lives[0].promised) if gang.lives else 0
    return (reliability.Run(job=1, gpus=gang.gpus, start=start, end=_us(run.plan.end_s)),)


def _holdings(gang: Work, end: int) -> Iterable[ledger.Holding]:
    for number, life in enumerate(gang.lives):
        ended = end if life.ended is None else _us(life.ended)
        yield ledger.Holding(number, _us(life.promised), ended, tuple(range(gang.gpus)))


def _attempts(gang: Work) -> Iterable[worked.Attempt]:
    for number, life in enumerate(gang.lives):
        yield _attempt(life, [later.base for later in gang.lives[number + 1 :]])


def _attempt(life: Life, bases: Sequence[int]) -> worked.Attempt:
    """What a later attempt had to do again was lost here, also where it went back further than one attempt."""
    return worked.Attempt(
        promised=_us(life.promised),
        first_step=None if life.first_step is None else _us(life.first_step),
        ended=None if life.ended is None else _us(life.ended),
        kept=not bases,
        saved=_us(life.reached(min(bases))) if bases else None,
        cause=life.cause,
        after=life.after,
        stalls=[(_us(low), _us(high)) for low, high in life.stalls],
        hangs=[(_us(low), _us(high)) for low, high in life.hangs],
        slows=list(_slow(life)),
    )


def _slow(life: Life) -> Iterable[worked.Pace]:
    """Steps of one pace in a row are one spell."""
    for factor, spans in groupby(life.slows, key=lambda one: one[2]):
        rows = list(spans)
        yield worked.Pace(start=_us(rows[0][0]), end=_us(rows[-1][1]), observed=factor, expected=1.0)


def _us(seconds: float) -> int:
    return round(seconds * US)
