"""Replays a workload with speed tables under one policy, and sums up what came of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from acmeweb.common.errors import InvalidInput
from jobs.traces.trace import Floats
from scheduling.research.rounds.replay import ROUND_S, RoundSetting, replay_in_rounds
from scheduling.research.rounds.values import GpuTypes, RoundJobs, Speeds
from scheduling.research.speed_policies import (
    PAIRED,
    ROUNDS,
    SEVERAL_TYPES,
    SINGLE_GPU,
    WIDTHS,
    rounds_of,
    widths_of,
)
from scheduling.research.widths.replay import ElasticJob, ElasticSetting, NodeGroup, replay_elastic
from scheduling.research.widths.table_jobs import TableJob
from scheduling.research.workload import SpeedJob, SpeedTables, Workload

WIDTHS_ROUND_S, RESTART_S = 60.0, 30.0
MOST_ROUND_S = 86_400.0
MAX_ALONE_S = 1e8  # the longest run time of a job that is replayed
MAX_ROUNDS = 1_000_000  # of one job
MET_S = 1e-3  # a deadline is met if the job ends at most so much later, because times are rounded
Cluster = tuple[NodeGroup, ...]
Figures = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class SpeedSetting:
    cluster: Cluster
    round_s: float | None = None  # default: that of each replay
    restart_s: float = RESTART_S

    @property
    def gpus(self) -> int:
        return sum(group.gpus for group in self.cluster)


def check_replay(workload: Workload, policies: Sequence[str], setting: SpeedSetting) -> None:
    """Refuse what a policy or a job cannot run with."""
    if len(setting.cluster) > 1 and (single := [name for name in widths_of(policies) if name not in SEVERAL_TYPES]):
        raise InvalidInput(f"policy: widths {single[0]} knows GPUs of one type only, and nodes has several.")
    if workload.pairs is None and (paired := [name for name in rounds_of(policies) if name in PAIRED]):
        raise InvalidInput(f"policy: rounds {paired[0]} needs the speeds of pairs (--pair-speeds).")
    if workload.pairs is not None and not set(PAIRED) & set(rounds_of(policies)):
        names = " and ".join(f"rounds {name}" for name in PAIRED)
        raise InvalidInput(f"pair_speeds: has an effect only with {names}.")
    if setting.round_s is not None and not 1 <= setting.round_s <= MOST_ROUND_S:
        raise InvalidInput(f"round_s: {setting.round_s:g} is not from 1 to {MOST_ROUND_S:g}.")
    widths_round_s = setting.round_s or WIDTHS_ROUND_S
    if widths_of(policies) and not 0 <= setting.restart_s < widths_round_s:
        # Otherwise jobs that take turns would restart for ever
        raise InvalidInput(f"restart_s: {setting.restart_s:g} is not from 0 to less than {widths_round_s:g} (round_s).")
    wide = next((job for job in workload.jobs if job.gpus > 1), None)
    if wide and (single := [name for name in rounds_of(policies) if name in SINGLE_GPU]):
        raise InvalidInput(f"{wide.where}: rounds {single[0]} plans jobs of one GPU, and this one has {wide.gpus}.")
    if widths_of(policies):
        _check_single_gpu(workload, setting.cluster)
    for job in workload.jobs:
        _check_job(job, workload.speeds, setting.cluster, min(_round_times(policies, setting)))
    if rounds_of(policies):
        _check_steps(workload, setting)


def run_policy(workload: Workload, policy: str, setting: SpeedSetting) -> Figures:
    """The figures of one policy, by its name with the replay."""
    replay, name = policy.split()
    if replay == "widths":
        return {"policy": policy} | _run_widths(workload, name, setting)
    return {"policy": policy} | _run_rounds(workload, name, setting)


# Checks


def _speed(speeds: SpeedTables, job: SpeedJob, gpu_type: str) -> float:
    """The steps per second of a job at the width that it requests, interpolated; 0 outside of the table."""
    table = speeds.by_type.get((job.model, gpu_type), {})
    return float(np.interp(job.gpus, list(table), list(table.values()), left=0.0, right=0.0)) if table else 0.0


def _check_single_gpu(workload: Workload, cluster: Cluster) -> None:
    """Policies for widths start with one GPU."""
    types = {group.gpu_type for group in cluster}
    models = {job.model for job in workload.jobs}
    for (model, gpu_type), table in workload.speeds.by_type.items():
        if model in models and gpu_type in types and 1 not in table:
            raise InvalidInput(f"{workload.speeds.source} has no speed of {model!r} on one GPU {gpu_type}.")


def _round_times(policies: Sequence[str], setting: SpeedSetting) -> Iterator[float]:
    """The time between two decisions of each kind of policy."""
    if widths_of(policies):
        yield setting.round_s or WIDTHS_ROUND_S
    if rounds_of(policies):
        yield setting.round_s or ROUND_S


def _check_job(job: SpeedJob, speeds: SpeedTables, cluster: Cluster, round_s: float) -> None:
    wide_enough = [group for group in cluster if job.gpus <= group.gpus]
    if not wide_enough:
        raise InvalidInput(f"{job.where}: the job requests {job.gpus} GPUs, and no type in nodes has so many.")
    fastest = max(_speed(speeds, job, group.gpu_type) for group in wide_enough)
    if not fastest:
        types = " or ".join(group.gpu_type for group in wide_enough)
        raise InvalidInput(
            f"{job.where}: {speeds.source} has no speed of the model {job.model!r} on {job.gpus} GPUs {types}."
        )
    if job.steps / fastest > MAX_ALONE_S:
        raise InvalidInput(f"{job.where}: the job would run longer than {MAX_ALONE_S:g} s.")
    if job.steps / fastest > MAX_ROUNDS * round_s:
        raise InvalidInput(f"{job.where}: the job would run for more than {MAX_ROUNDS:,} rounds of {round_s:g} s.")


def _check_steps(workload: Workload, setting: SpeedSetting) -> None:
    """Rounds consist of whole steps, so each job must complete one in a round, also beside another job."""
    round_s = setting.round_s or ROUND_S
    part = min([1.0, *(workload.pairs.parts.values() if workload.pairs else ())])
    for job in workload.jobs:
        speeds = (_speed(workload.speeds, job, group.gpu_type) for group in setting.cluster)
        if any(0 < speed * part * round_s < 1 for speed in speeds):
            raise InvalidInput(f"{job.where}: a step takes longer than a round of {round_s:g} s.")


# Widths


def _run_widths(workload: Workload, name: str, setting: SpeedSetting) -> Figures:
    outcome = replay_elastic(
        [_elastic_job(job, workload.speeds, setting.cluster) for job in workload.jobs],
        WIDTHS[name](),
        ElasticSetting(groups=setting.cluster, round_s=setting.round_s or WIDTHS_ROUND_S, restart_s=setting.restart_s),
    )
    return _figures(workload.jobs, outcome.ended_s, outcome.busy_gpu_s, setting.gpus) | {"restarts": outcome.restarts}


def _elastic_job(job: SpeedJob, speeds: SpeedTables, cluster: Cluster) -> ElasticJob:
    tables = (speeds.by_type.get((job.model, group.gpu_type), {1: 0.0}) for group in cluster)
    return ElasticJob(
        submit_s=job.submit_s,
        gpus=job.gpus,
        models=tuple(TableJob(np.array(list(table)), np.array(list(table.values())), job.steps) for table in tables),
        deadline_s=job.deadline_s,
    )


# Rounds


def _run_rounds(workload: Workload, name: str, setting: SpeedSetting) -> Figures:
    counts = np.array([float(group.gpus) for group in setting.cluster])
    types = GpuTypes(names=tuple(group.gpu_type for group in setting.cluster), counts=counts)
    classes = list(dict.fromkeys((job.model, job.gpus) for job in workload.jobs))
    jobs = RoundJobs(
        submit_s=_column(job.submit_s for job in workload.jobs),
        steps=_column(job.steps for job in workload.jobs),
        classes=np.array([classes.index((job.model, job.gpus)) for job in workload.jobs]),
        gpus=np.array([job.gpus for job in workload.jobs]),
    )
    speeds = _class_speeds(workload, setting.cluster, classes)
    outcome = replay_in_rounds(
        jobs, ROUNDS[name](), RoundSetting(types=types, speeds=speeds, round_s=setting.round_s or ROUND_S)
    )
    return _figures(workload.jobs, outcome.ended_s, outcome.busy_gpu_s, setting.gpus) | {"restarts": None}


def _class_speeds(workload: Workload, cluster: Cluster, classes: Sequence[tuple[str, int]]) -> Speeds:
    """A class is a model at a width."""
    jobs = {(job.model, job.gpus): job for job in workload.jobs}
    alone = np.array([[_speed(workload.speeds, jobs[kind], group.gpu_type) for group in cluster] for kind in classes])
    if workload.pairs is None:
        return Speeds(alone=alone)
    parts = np.array([[workload.pairs.parts.get((one, other), 0.0) for other, _ in classes] for one, _ in classes])
    return Speeds(alone=alone, shared=alone[:, None, :] * parts[:, :, None])


def _column(values: Iterable[float]) -> Floats:
    return np.array(list(values), float)


# Figures


def _figures(jobs: Sequence[SpeedJob], ended_s: Floats, busy_gpu_s: float, gpus: int) -> Figures:
    submit_s, deadline_s = _column(job.submit_s for job in jobs), _column(job.deadline_s for job in jobs)
    has_ended, has_deadline = ~np.isnan(ended_s), np.isfinite(deadline_s)
    completion_s = (ended_s - submit_s)[has_ended]
    makespan_s = float(ended_s[has_ended].max(initial=submit_s[0]) - submit_s[0])
    return {
        "jobs": len(jobs),
        "refused": int((~has_ended).sum()),
        "completion_s": _distribution(completion_s),
        "makespan_s": makespan_s,
        "gpu_utilization": busy_gpu_s / (gpus * makespan_s) if makespan_s else 0.0,
        "deadlines": int(has_deadline.sum()),
        "deadlines_met": int((ended_s <= deadline_s + MET_S)[has_deadline].sum()),
    }


def _distribution(values: Floats) -> Mapping[str, float] | None:
    """None if no job has ended."""
    if not len(values):
        return None
    p50, p90 = np.percentile(values, (50, 90))
    return {"mean": float(values.mean()), "p50": float(p50), "p90": float(p90), "max": float(values.max())}
