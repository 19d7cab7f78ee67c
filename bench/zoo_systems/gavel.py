"""Gavel (Narayanan et al., OSDI'20): policies for GPUs of several types, and what they were compared with.

The experiment of the authors' artefact: jobs of one GPU arrive at random on 36 GPUs of each of three types. Their
models are drawn evenly from those that the artefact has speeds for, their run times on a V100 as in the artefact: four
of five jobs 10^1.5 to 10^3 minutes, the others 10^3 to 10^4, with an even exponent. Random numbers are drawn as there,
with its first seed, from which its published figures come. The figure is the mean completion time of jobs 4,000 to
5,000.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from math import log
from pathlib import Path
from random import Random

import numpy as np

from bench.zoo_systems.artefacts import Row, read_file, repository
from scheduling.research.rounds.allox import AlloX
from scheduling.research.rounds.finish_time import AwareFinishTimeFairness, FinishTimeFairness
from scheduling.research.rounds.gandiva import RandomPairs
from scheduling.research.rounds.least_attained import AwareLeastAttained, LeastAttained, PackedLeastAttained
from scheduling.research.rounds.replay import RoundSetting, replay_in_rounds
from scheduling.research.rounds.values import GpuTypes, RoundJobs, RoundPolicy, Speeds

REPOSITORY = "gavel"
NOTEBOOK = "scheduler/notebooks/figures/evaluation/continuous_jobs.ipynb"
TYPES = ("v100", "p100", "k80")
GPUS = GpuTypes(names=TYPES, counts=np.full(3, 36.0))
JOBS_PER_HOUR = 5.6
MEASURED = range(4000, 5000)
ARRIVING = 9000  # jobs go on arriving until the measured ones have ended
DRAWN_LAST = ("A3C", "CycleGAN")  # the models without batch sizes, in the order of the authors' table of jobs
POLICIES: dict[str, Callable[[], RoundPolicy]] = {
    "max_min_fairness": LeastAttained,
    "max_min_fairness_perf": AwareLeastAttained,
    "max_min_fairness_packed": PackedLeastAttained,
    "gandiva": RandomPairs,
    "allox": AlloX,
    "finish_time_fairness": FinishTimeFairness,
    "finish_time_fairness_perf": AwareFinishTimeFairness,
}
WHY: dict[str, str] = {}


def compare(artefacts: Path) -> Iterator[Row]:
    repo = repository(artefacts, REPOSITORY)
    theirs = published_figures(read_file(repo, NOTEBOOK))
    speeds = read_speeds(read_file(repo, "scheduler/simulation_throughputs.json"))
    jobs = draw_jobs(speeds, seed=0)
    for name, policy in POLICIES.items():
        began = time.perf_counter()
        ours = mean_completion_hours(jobs, policy(), speeds)
        print(f"Gavel: {name} took {time.perf_counter() - began:.0f} s", file=sys.stderr)
        yield Row(
            system="Gavel",
            workload=f"3 × 36 GPUs, {JOBS_PER_HOUR} jobs/h: {policy().name}",
            metric="mean completion (h)",
            theirs=theirs[name],
            ours=ours,
            why=WHY.get(name, ""),
        )


def mean_completion_hours(jobs: RoundJobs, policy: RoundPolicy, speeds: Speeds) -> float:
    outcome = replay_in_rounds(jobs, policy, RoundSetting(types=GPUS, speeds=speeds), MEASURED)
    completion_s = (outcome.ended_s - jobs.submit_s)[MEASURED.start : MEASURED.stop]
    return float(completion_s.mean()) / 3600


def read_speeds(text: str) -> Speeds:
    """The speeds of all models on one GPU, alone and next to each other."""
    table = json.loads(text)
    names = [found[1] for key in table[TYPES[0]] if (found := re.fullmatch(r"\('(.*)', 1\)", key))]
    names.sort(key=DRAWN_LAST.__contains__)
    keys = [f"('{name}', 1)" for name in names]
    alone = np.array([[table[kind][key]["null"] for kind in TYPES] for key in keys])
    shared = np.array([[[table[kind][key][other][0] for kind in TYPES] for other in keys] for key in keys])
    return Speeds(alone=alone, shared=shared)


def draw_jobs(speeds: Speeds, *, seed: int) -> RoundJobs:
    dice, gaps = Random(seed + 2), Random(seed + 3)
    submitted, rows = 0.0, []
    for _ in range(ARRIVING):
        dice.random()  # the artefact draws a number of GPUs, even if all jobs get one
        low, high = (3, 4) if dice.random() >= 0.8 else (1.5, 3)
        run_time_s = 60 * 10 ** dice.uniform(low, high)
        model = dice.choice(range(len(speeds.alone)))
        rows.append((submitted, run_time_s * speeds.alone[model, 0], model))
        submitted -= log(1 - gaps.random()) * 3600 / JOBS_PER_HOUR
    submit_s, steps, models = (np.array(column) for column in zip(*rows, strict=True))
    return RoundJobs(submit_s=submit_s, steps=steps, classes=models.astype(np.int32), gpus=np.ones(ARRIVING, np.int32))


def published_figures(notebook: str) -> dict[str, float]:
    """The figures that the authors' notebook prints for this rate, by the name of the policy."""
    figures: dict[str, float] = {}
    for cell in json.loads(notebook)["cells"]:
        printed = "".join("".join(output.get("text", [])) for output in cell.get("outputs", []))
        for part in printed.split("Input job rate: ")[1:]:
            rate, _, lines = part.partition("\n")
            if float(rate.split()[0]) == JOBS_PER_HOUR:
                found = re.findall(r"^(\w+): ([\d.]+)$", lines, re.MULTILINE)
                figures = {name: float(value) for name, value in found} | figures
    return figures
