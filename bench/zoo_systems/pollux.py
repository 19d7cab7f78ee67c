"""Pollux (Qiao et al., OSDI'21): jobs whose width changes while they run, and what it was compared with.

The simulator study of the authors' artefact: 160 jobs on 16 nodes of 4 GPUs. The step times and the gradient noise of
six applications are those that the authors measured. Tiresias runs each job at the width and the batch size that the
workload names, Optimus at the batch size, and Pollux at neither, except that NCF always has one GPU and its batch size.
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from bench.zoo_systems.artefacts import Row, file_names, read_csv, read_file, repository
from scheduling.research.widths.goodput import BatchLimits
from scheduling.research.widths.jobs import AdaptiveBatchJob, ElasticModel, FixedBatchJob, Spread, StepTimes, Training
from scheduling.research.widths.optimus import MarginalGains
from scheduling.research.widths.pollux import HarmonicSpeedups
from scheduling.research.widths.replay import ElasticJob, ElasticSetting, NodeGroup, replay_elastic
from scheduling.research.widths.tiresias import TwoQueues
from scheduling.research.widths.values import WidthPolicy

REPOSITORY = "adaptdl"
BRANCH = "osdi21-artifact"
SETTING = ElasticSetting(groups=(NodeGroup(16, 4),))
WORKLOAD = "workload-6"
APPLICATIONS = ("bert", "cifar10", "ncf", "imagenet", "deepspeech2", "yolov3")
LARGEST_PER_GPU = {"yolov3": 8}  # of the others, the largest that was measured
ONE_GPU = "ncf"
Workload = list[dict[str, str]]
WHY: dict[str, str] = {}


def compare(artefacts: Path) -> Iterator[Row]:
    repo = repository(artefacts, REPOSITORY)
    trainings = {
        name: read_training(repo, f"simulator/traces/{name}", BRANCH, largest_per_gpu=LARGEST_PER_GPU.get(name))
        for name in APPLICATIONS
    }
    workload = read_csv(repo, f"simulator/workloads/{WORKLOAD}.csv", BRANCH)
    for name, policy in POLICIES.items():
        began = time.perf_counter()
        ours = mean_completion_s(workload, trainings, policy)
        print(f"Pollux: {name} took {time.perf_counter() - began:.0f} s", file=sys.stderr)
        yield Row(
            system="Pollux",
            workload=f"{WORKLOAD}, 16 × 4 GPUs: {name}",
            metric="mean completion (s)",
            theirs=published_figure(repo, name, WORKLOAD),
            ours=ours,
            why=WHY.get(name, ""),
        )


@dataclass(frozen=True)
class Compared:
    policy: Callable[[], WidthPolicy]
    model: Callable[[dict[str, str], Training], ElasticModel]


def mean_completion_s(workload: Workload, trainings: dict[str, Training], compared: Compared) -> float:
    jobs = [
        ElasticJob(
            submit_s=float(row["time"]),
            gpus=int(row["num_replicas"]),
            models=(compared.model(row, trainings[row["application"]]),),
        )
        for row in workload
    ]
    outcome = replay_elastic(jobs, compared.policy(), SETTING)
    return float(np.mean(outcome.ended_s - [job.submit_s for job in jobs]))


def _tuned_job(row: dict[str, str], training: Training) -> ElasticModel:
    return FixedBatchJob(training, int(row["batch_size"]), 1 if row["application"] == ONE_GPU else None)


def _adaptive_job(row: dict[str, str], training: Training) -> ElasticModel:
    if row["application"] == ONE_GPU:
        return AdaptiveBatchJob(training, 1, training.limits.largest)
    return AdaptiveBatchJob(training, sum(group.gpus for group in SETTING.groups))


POLICIES = {
    "tiresias": Compared(TwoQueues, _tuned_job),
    "optimus": Compared(MarginalGains, _tuned_job),
    "pollux": Compared(HarmonicSpeedups, _adaptive_job),
}


def published_figure(repo: Path, policy: str, workload: str) -> float:
    text = read_file(repo, f"simulator/results-jobload/{policy}-1.0/summary.json", BRANCH)
    return float(json.loads(text)["avgs"][workload])


def read_training(
    repo: Path, folder: str, branch: str = "HEAD", *, gpu_type: str = "", largest_per_gpu: int | None = None
) -> Training:
    """The measured runs of an application. `gpu_type` is the end of the names of the files with step times."""
    found = (part for part in file_names(repo, folder, branch) if part.startswith("validation-"))
    runs = sorted((int(part[11:-4]), read_csv(repo, f"{folder}/{part}", branch)) for part in found)
    epochs = range(min(len(rows) for _, rows in runs))
    placements = read_csv(repo, f"{folder}/placements{gpu_type}.csv", branch)
    sizes = [int(row["local_bsz"]) for row in placements]
    return Training(
        ends=tuple(min(float(rows[epoch]["progress"]) for _, rows in runs) for epoch in epochs),
        batches=tuple(batch for batch, _ in runs),
        squared_norms=np.array([[float(rows[epoch]["grad_sqr"]) for epoch in epochs] for _, rows in runs]),
        variances=np.array([[float(rows[epoch]["grad_var"]) for epoch in epochs] for _, rows in runs]),
        limits=BatchLimits(
            initial=runs[0][0],
            largest=runs[-1][0],
            smallest_per_gpu=min(sizes),
            largest_per_gpu=largest_per_gpu or max(sizes),
        ),
        step_times=measured_step_times(placements, read_csv(repo, f"{folder}/scalability{gpu_type}.csv", branch)),
    )


def measured_step_times(placements: Workload, scalability: Workload) -> StepTimes:
    """Step times of the spreads that were measured, interpolated over batch sizes; of others, also over widths."""
    from scipy.interpolate import LinearNDInterpolator

    by_spread: dict[Spread, list[tuple[float, float, float]]] = defaultdict(list)
    by_width: dict[tuple[int, int, float], list[tuple[float, float]]] = defaultdict(list)
    for row in placements:
        spread = tuple(map(int, row["placement"]))
        by_spread[spread].append((float(row["local_bsz"]), *_times(row)))
        by_width[len(spread), sum(spread), float(row["local_bsz"])].append(_times(row))
    points = [(key, np.mean(times, axis=0)) for key, times in by_width.items()]
    for row in scalability:
        key = int(row["num_nodes"]), int(row["num_replicas"]), float(row["local_bsz"])
        points.append((key, np.array(_times(row))))
    between = LinearNDInterpolator(np.array([key for key, _ in points]), np.array([times for _, times in points]))

    @cache
    def step_times(spread: Spread, per_gpu: int) -> tuple[float, float]:
        turned = min(spread[at:] + spread[:at] for at in range(len(spread)))
        if rows := by_spread.get(turned):
            sizes, compute, step = np.array(sorted(rows)).T
            return float(np.interp(per_gpu, sizes, compute)), float(np.interp(per_gpu, sizes, step))
        # Widths of whole nodes lie on the border of what was measured
        for gpus in (sum(spread), sum(spread) - 1e-6):
            compute_s, step_s = between([min(len(spread), 16), gpus, per_gpu])[0]
            if not np.isnan(step_s):
                return float(compute_s), float(step_s)
        raise ValueError(f"The artefact has no step times for {spread} with {per_gpu} examples per GPU.")

    return step_times


def _times(row: dict[str, str]) -> tuple[float, float]:
    """Seconds to compute, and of the whole step."""
    return float(row["step_time"]) - float(row["sync_time"]), float(row["step_time"])
