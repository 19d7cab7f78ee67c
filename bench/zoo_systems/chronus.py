"""Chronus (Gao et al., SoCC'21): deadlines of training jobs that share a cluster with best-effort jobs.

The authors' artefact has the workloads (submission, run time and deadline of each job, in minutes) and the settings of
its runs: 120 nodes of 8 GPUs and leases of 20 minutes. It contains no results, so the policies are compared with each
other: the deadlines that chronus misses, with those that the earliest deadline first misses. Jobs without GPUs are left
out, as the authors' simulator does. GPUs are counted and stops are free, for both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.zoo_systems.artefacts import Row, read_csv, repository
from jobs.traces.trace import Trace, trace_from_columns
from scheduling.whatif.replay.run import PolicyRun, ReplaySetting, run_policy

REPOSITORY = "ChronusArtifact"
MINUTE_S = 60.0
SETTING = ReplaySetting(nodes=120, placement="count", best_effort=())
WORKLOADS = ("MIX1", "SLO")
MAX_SHARE = 0.2  # of the deadlines that edf misses


def compare(artefacts: Path) -> Iterator[Row]:
    repo = repository(artefacts, REPOSITORY)
    for name in WORKLOADS:
        trace = workload(read_csv(repo, f"code/data/exp/trace_job_Philly_{name}.csv"))
        edf, chronus = (outcome(run_policy(trace, policy, SETTING)) for policy in ("edf", "chronus"))
        yield Row(
            system="Chronus",
            workload=f"Philly_{name}, {edf.deadlines:,} deadlines",
            metric="missed (%): edf, chronus",
            theirs=100 * edf.missed / edf.deadlines,
            ours=100 * chronus.missed / chronus.deadlines,
            why=_misses_text(name, edf.missed, chronus.missed),
        )
        if not math.isnan(edf.best_effort_hours):
            yield Row(
                system="Chronus",
                workload=f"Philly_{name}, best effort",
                metric="completion (h): edf, chronus",
                theirs=edf.best_effort_hours,
                ours=chronus.best_effort_hours,
                why="two of our policies; edf starts these jobs last, in order of submission",
            )


def _misses_text(name: str, edf: int, chronus: int) -> str:
    """What explains the difference. Empty if chronus does not do what it promises where most deadlines can be met."""
    counts = f"two of our policies: {edf:,} and {chronus:,} misses"
    if chronus <= MAX_SHARE * edf:
        return counts
    overload = "more work than GPUs, and jobs that are admitted first keep their guarantee from many short later ones"
    return f"{counts}; {overload}" if name == "SLO" else ""


def workload(rows: list[dict[str, str]]) -> Trace:
    """The jobs of a workload. `expect_time_list`: the time from the submission to the deadline, the tightest first."""
    used = [row for row in rows if int(row["num_gpu"])]
    return trace_from_columns(
        "chronus",
        ids=[row["job_id"] for row in used],
        users=[row["user"] for row in used],
        submit_s=[int(row["submit_time"]) * MINUTE_S for row in used],
        runtime_s=[int(row["duration"]) * MINUTE_S for row in used],
        gpus=[int(row["num_gpu"]) for row in used],
        deadline_s=[_deadline_s(row) for row in used],
    )


def _deadline_s(row: dict[str, str]) -> float:
    if row["best_effort"] == "1":
        return math.nan
    return (int(row["submit_time"]) + int(row["expect_time_list"].partition("-")[0])) * MINUTE_S


@dataclass(frozen=True)
class Outcome:
    """What the authors measure."""

    deadlines: int
    missed: int
    best_effort_hours: float


def outcome(run: PolicyRun) -> Outcome:
    strict = np.isfinite(run.trace.deadline_s)
    took_s = (run.ended_s - run.trace.submit_s)[~strict]
    return Outcome(
        deadlines=int(strict.sum()),
        missed=int((run.ended_s[strict] > run.trace.deadline_s[strict]).sum()),
        best_effort_hours=float(took_s.mean()) / 3600 if len(took_s) else math.nan,
    )
