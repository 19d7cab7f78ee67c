"""Sia (Jayaram Subramanya et al., SOSP'23): GPU types and widths decided together.

The simulation of the authors' artefact: 64 GPUs of three types, and samples of two traces with 160 jobs each: eight of
Philly and ten of Saturn, a cluster of Helios. The step times of five applications on each type are those that the
authors measured. For each application, the time of a restart and the factor by which jobs were slower than when they
were measured are theirs. The artefact contains no results: the figures are the mean completion times in the paper,
which have one digit.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import mean

import numpy as np

from bench.zoo_systems.artefacts import Row, file_names, read_csv, repository
from bench.zoo_systems.pollux import Workload, read_training
from scheduling.research.widths.jobs import Spread
from scheduling.research.widths.replay import ElasticJob, ElasticSetting, NodeGroup, replay_elastic
from scheduling.research.widths.sia import GoodputByType
from scheduling.research.widths.typed_jobs import TypeTraining, typed_models
from scheduling.research.widths.values import WidthPolicy

REPOSITORY = "siasosp23+artifacts"
FOLDER = "sia-simulator"
GROUPS = {"aws": NodeGroup(6, 4), "dgx-ext": NodeGroup(2, 8), "rtx": NodeGroup(3, 8)}
SETTING = ElasticSetting(groups=tuple(GROUPS.values()))
RESTART_S = {"cifar10": 50.0, "deepspeech2": 25.0, "bert": 120.0, "yolov3": 80.0, "imagenet": 250.0}
SLOWDOWN = {"cifar10": 1.8, "deepspeech2": 1.2, "bert": 1.2, "yolov3": 1.2, "imagenet": 1.2}
LARGEST_PER_GPU = {("deepspeech2", "rtx"): 57}  # of the others, the largest that was measured
MOST_GPUS = 64
PUBLISHED_HOURS = {"philly": 0.6, "saturn": 0.7}
WHY = {"philly": "the paper has one digit, so theirs is 0.55 to 0.65 h"}
Trainings = dict[str, tuple[TypeTraining, ...]]


def compare(artefacts: Path) -> Iterator[Row]:
    repo = repository(artefacts, REPOSITORY)
    trainings = {name: tuple(read_type(repo, name, gpu_type) for gpu_type in GROUPS) for name in RESTART_S}
    for trace, theirs in PUBLISHED_HOURS.items():
        began = time.perf_counter()
        workloads = read_workloads(repo, trace)
        hours = [mean_completion_hours(workload, trainings, GoodputByType()) for workload in workloads]
        print(
            f"Sia: {trace} took {time.perf_counter() - began:.0f} s: {min(hours):.2f} to {max(hours):.2f} h",
            file=sys.stderr,
        )
        yield Row(
            system="Sia",
            workload=f"{trace}, {len(hours)} × 160 jobs, 64 GPUs",
            metric="mean completion (h)",
            theirs=theirs,
            ours=mean(hours),
            why=WHY.get(trace, ""),
        )


def read_workloads(repo: Path, trace: str) -> list[Workload]:
    folder = f"{FOLDER}/workloads/{trace}"
    return [read_csv(repo, f"{folder}/{name}") for name in file_names(repo, folder)]


def mean_completion_hours(workload: Workload, trainings: Trainings, policy: WidthPolicy) -> float:
    jobs = [
        ElasticJob(
            submit_s=float(row["time"]),
            gpus=int(row["num_replicas"]),
            models=typed_models(trainings[row["application"]], MOST_GPUS),
            restart_s=RESTART_S[row["application"]],
        )
        for row in workload
    ]
    outcome = replay_elastic(jobs, policy, SETTING)
    return float(np.mean(outcome.ended_s - [job.submit_s for job in jobs])) / 3600


def read_type(repo: Path, name: str, gpu_type: str) -> TypeTraining:
    """An application on one type. That its jobs are slower is more work for the same epochs."""
    folder = f"{FOLDER}/traces/{name}"
    largest = LARGEST_PER_GPU.get((name, gpu_type))
    training = read_training(repo, folder, gpu_type=f"-{gpu_type}", largest_per_gpu=largest)
    placements = read_csv(repo, f"{folder}/placements-{gpu_type}.csv")
    alone = [row for row in placements if row["placement"] == "1"]
    return TypeTraining(
        training=replace(training, ends=tuple(end * SLOWDOWN[name] for end in training.ends)),
        node_gpus=GROUPS[gpu_type].node_gpus,
        examples_per_s=max(_size(row) for row in alone) / max(float(row["step_time"]) for row in alone),
        largest_per_gpu=measured_sizes(placements, read_csv(repo, f"{folder}/scalability-{gpu_type}.csv")),
    )


def measured_sizes(placements: Workload, scalability: Workload) -> Callable[[Spread], int]:
    """The largest number of examples per GPU that was measured on a spread, or on more GPUs and nodes."""
    by_spread: dict[Spread, int] = {}
    for row in placements:
        spread = tuple(map(int, row["placement"]))
        by_spread[spread] = max(by_spread.get(spread, 0), _size(row))
    wider = [(int(row["num_nodes"]), int(row["num_replicas"]), _size(row)) for row in scalability]

    @cache
    def largest(spread: Spread) -> int:
        turned = min(spread[at:] + spread[:at] for at in range(len(spread)))
        if turned in by_spread:
            return by_spread[turned]
        return max(size for nodes, gpus, size in wider if nodes >= len(spread) and gpus >= sum(spread))

    return largest


def _size(row: dict[str, str]) -> int:
    return int(float(row["local_bsz"]))
