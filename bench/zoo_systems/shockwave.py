"""Shockwave (Zheng et al., NSDI'23): jobs whose batch size changes while they run, at fixed widths.

The simulation of the authors' artefact with 32 GPUs: 120 jobs, rounds of 120 s, and 20 s for a job that did not run in
the round before. The results of the artefact say in which round each job ran, how fast, and with which batch size. The
phases of the jobs are taken from its results for Gandiva-Fair; how long a job runs differs by less than 1 % between its
policies. The artefact's results are Python pickles: only numbers and containers are read, and no code is run.
"""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from bench.zoo_systems.artefacts import Row, read_bytes, read_file, repository
from scheduling.research.widths.equal_delays import EqualDelays
from scheduling.research.widths.most_steps import MostSteps
from scheduling.research.widths.phases import Phase, PhasedJob
from scheduling.research.widths.replay import ElasticJob, ElasticSetting, NodeGroup, replay_elastic
from scheduling.research.widths.shockwave import FairProgress
from scheduling.research.widths.turns import EqualTime
from scheduling.research.widths.values import WidthPolicy

REPOSITORY = "shockwave"
TRACE = "120_0.2_5_100_40_25_0,0.5,0.5_0.6,0.3,0.09,0.01_multigpu_dynamic"
SETTING = ElasticSetting(groups=(NodeGroup(32, 1),), round_s=120.0, restart_s=20.0)
RECORDED = "gandiva_fair"
POLICIES: dict[str, Callable[[], WidthPolicy]] = {
    "shockwave": FairProgress,
    "max_sum_throughput_perf": MostSteps,
    "finish_time_fairness": EqualDelays,
    "gandiva_fair": EqualTime,
}
SEARCH = "another search than theirs; theirs predicts the phases, ours believes in the present speed"
KNOWN = "another search than theirs; theirs predicts the phases, here they are known"
WHY = {
    ("max_sum_throughput_perf", False, "mean completion"): "theirs decides every 1,000 s; if ours does, 9,313 s",
    ("shockwave", False, "mean completion"): SEARCH,
    ("shockwave", True, "makespan"): KNOWN,
    ("shockwave", True, "mean completion"): KNOWN,
}


def compare(artefacts: Path) -> Iterator[Row]:
    repo = repository(artefacts, REPOSITORY)
    recorded = read_results(repo, RECORDED)
    trace = [line.split("\t") for line in read_file(repo, f"scheduler/traces/reproduce/{TRACE}.trace").splitlines()]
    for name, policy in POLICIES.items():
        for knows_phases in (False, True) if name == "shockwave" else (False,):
            jobs = jobs_of(trace, recorded, knows_phases=knows_phases)
            ended_s = replay_elastic(jobs, policy(), SETTING).ended_s
            theirs = read_results(repo, name)
            figures = {
                "makespan": (float(theirs["makespan"]), float(ended_s.max())),
                "mean completion": (float(theirs["avg_jct"]), float(np.mean(ended_s - [job.submit_s for job in jobs]))),
            }
            for metric, (published, ours) in figures.items():
                yield Row(
                    system="Shockwave",
                    workload=f"120 jobs: {policy().name}{', phases known' if knows_phases else ''}",
                    metric=f"{metric} (s)",
                    theirs=published,
                    ours=ours,
                    why=WHY.get((name, knows_phases, metric), ""),
                )


def jobs_of(trace: list[list[str]], results: dict[str, Any], *, knows_phases: bool) -> list[ElasticJob]:
    run_s = {job.number: sum(by_gpu.values()) for job, by_gpu in results["job_run_time"].items()}
    rounds = {job.number: list(by_round.values()) for job, by_round in results["throughput_timeline"].items()}
    jobs: list[ElasticJob] = []
    for number, columns in enumerate(trace):
        gpus, submit_s = int(columns[6]), float(columns[11])
        model = PhasedJob(phases_of(rounds[number], run_s[number] / gpus), gpus, knows_phases=knows_phases)
        jobs.append(ElasticJob(submit_s=submit_s, gpus=gpus, models=(model,)))
    return jobs


def phases_of(rounds: list[tuple[float, int]], run_s: float) -> list[Phase]:
    """Rounds in a row with the same batch size. All rounds in which the job made a step count as equally long."""
    rounds = [row for row in rounds if row[0] > 0]
    alike = [list(group) for _, group in groupby(rounds, key=lambda row: row[1])]
    each_s = run_s / len(rounds)
    return [
        Phase(len(group) * each_s, float(np.mean([steps for steps, _ in group])), int(group[0][1])) for group in alike
    ]


def read_results(repo: Path, policy: str) -> dict[str, Any]:
    path = f"scheduler/reproduce/pickles/tacc_32gpus/{policy}_{TRACE}_simulation.pickle"
    results: dict[str, Any] = _Numbers(io.BytesIO(read_bytes(repo, path))).load()
    return results


class _JobId:
    """The artefact's number of a job. Known by its address until its state has been read."""

    @property
    def number(self) -> int:
        return int(self.__dict__["_job0"])


class _Numbers(pickle.Unpickler):
    """Reads numbers, containers and job numbers. Refuses everything else."""

    ALLOWED = {
        ("builtins", "set"): set,
        ("collections", "OrderedDict"): OrderedDict,
        ("job_id_pair", "JobIdPair"): _JobId,
        ("numpy", "dtype"): np.dtype,
        ("numpy.core.multiarray", "scalar"): np.float64(0).__reduce__()[0],
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"The results of Shockwave contain {module}.{name}, which is not read.")
        return self.ALLOWED[module, name]
