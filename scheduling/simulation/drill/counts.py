"""Counts the results of injected faults. Each job that a fault hits is a case, from the fault to the next new step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(kw_only=True)
class FaultCase:
    """`recoverable`: the right kind of restart is enough; the program and its data need no fix."""

    kind: str
    job: str
    at: float
    recoverable: bool
    expected: frozenset[str]  # diagnosis labels that count as correct
    detected: float | None = None
    label: str = ""
    human: bool = False
    restarts: int = 0
    first_step: float | None = None
    restart_s: float = 0.0

    @property
    def open(self) -> bool:
        return self.first_step is None

    @property
    def is_recovered(self) -> bool:
        return self.recoverable and self.first_step is not None and not self.human


@dataclass(kw_only=True)
class DrillCounts:
    cases: list[FaultCase] = field(default_factory=list)
    idle: list[str] = field(default_factory=list)  # kinds of faults that hit no job
    wrong_stops: list[str] = field(default_factory=list)
    wrong_restarts: int = 0
    cordons: int = 0
    false_cordons: list[str] = field(default_factory=list)
    jobs: int = 0
    _by_job: dict[str, list[FaultCase]] = field(default_factory=lambda: defaultdict(list))

    def add(self, case: FaultCase) -> None:
        self.cases.append(case)
        self._by_job[case.job].append(case)

    def of(self, job: str) -> list[FaultCase]:
        return [case for case in self._by_job.get(job, ()) if case.open]

    def record_detection(self, job: str, now: float, label: str) -> None:
        for case in self.of(job):
            if case.detected is None:
                case.detected, case.label = now, label

    def record_restart(self, job: str) -> None:
        open_cases = self.of(job)
        for case in open_cases:
            case.restarts += 1
        # The job restarted although only a change of the program helps, and before an operator made it
        if open_cases and all(not case.recoverable and not case.human for case in open_cases):
            self.wrong_restarts += 1

    def record_handover(self, job: str) -> None:
        for case in self.of(job):
            case.human = True

    def record_first_step(self, job: str, now: float) -> None:
        """Close the recoverable cases. A case that needs a fix of the program stays open."""
        for case in self.of(job):
            if case.recoverable:
                case.first_step = now


def percentiles(values: Iterable[float]) -> dict[str, float | None]:
    known = sorted(values)
    return {"p50": _value_at_percentile(known, 0.5), "p95": _value_at_percentile(known, 0.95)}


def _value_at_percentile(known: Sequence[float], part: float) -> float | None:
    return round(known[min(len(known) - 1, int(part * len(known)))], 1) if known else None
