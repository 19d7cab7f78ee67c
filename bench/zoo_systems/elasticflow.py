"""ElasticFlow (Gu et al., ASPLOS'23): deadlines of jobs whose width changes while they run, and its baseline EDF.

Two simulations of the authors' artefact: 195 jobs on 16 nodes of 4 T4 (their comparison with Pollux), and 876 jobs of
Philly on 32 nodes of 8 A100. The speeds of each model on 1 to 64 GPUs are those that the authors measured. The metric
is the part of the deadlines that is met; refused jobs count as missed. Their figures are those in the scripts that draw
the figures of the paper. Their EDF runs each job on as many GPUs as were measured, even where fewer are faster.
"""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.zoo_systems.artefacts import Row, read_csv, read_file, repository
from scheduling.research.widths.earliest_deadline import EarliestDeadline
from scheduling.research.widths.elasticflow import GuaranteedDeadlines
from scheduling.research.widths.placing import pack_all
from scheduling.research.widths.replay import ElasticJob, ElasticSetting, NodeGroup, replay_elastic
from scheduling.research.widths.table_jobs import TableJob
from scheduling.research.widths.values import Places, WidthPolicy, WidthView

REPOSITORY = "ElasticFlow"
FOLDER = "ElasticFlow"
MOST_GPUS = {("T4", "bert"): 16, ("T4", "ncf"): 1}  # of elastic jobs; of others, the fastest width of the table
Tables = dict[tuple[str, str], tuple[list[int], list[float]]]


@dataclass(frozen=True)
class Simulation:
    trace: str
    gpu_type: str
    setting: ElasticSetting
    figure: str  # the script that draws it
    position: int  # of the trace in the figure


class WidestMeasured(WidthPolicy):
    """EDF as the artefact has it: the earliest deadline gets the widest measured width that fits, and so on."""

    name = "edf, widest"

    def places(self, view: WidthView) -> dict[int, Places]:
        left = view.gpus
        widths: dict[int, int] = {}
        for job in sorted(view.jobs, key=lambda job: (job.deadline_s, job.number)):
            if gpus := min(job.requested, 2 ** left.bit_length() // 2):
                widths[job.number] = gpus
                left -= gpus
        return pack_all(view, widths)


@dataclass(frozen=True)
class Compared:
    policy: Callable[[], WidthPolicy]
    their_names: tuple[str, str]  # in the scripts for figures 8a and 8b
    is_elastic: bool = True


SIMULATIONS = {
    "195 jobs, 16 × 4 T4": Simulation(
        "elasticVpollux_e", "T4", ElasticSetting(groups=(NodeGroup(16, 4),), restart_s=8.0), "8a", 0
    ),
    "Philly, 876 jobs, 32 × 8 A100": Simulation(
        "philly_103959", "A100", ElasticSetting(groups=(NodeGroup(32, 8),), restart_s=15.0), "8b", -1
    ),
}
POLICIES = {
    "elasticflow": Compared(GuaranteedDeadlines, ("ef", "ElasticFlow")),
    "edf, widest": Compared(WidestMeasured, ("edf", "EDF"), is_elastic=False),
    "edf": Compared(EarliestDeadline, ("edf", "EDF")),
}
USEFUL = "theirs also uses widths that are slower; the row edf, widest has this rule"
WHY = {
    ("elasticflow", "8a"): "theirs refuses all jobs of a round together; if ours does, 72.8 %",
    ("elasticflow", "8b"): "the published simulator gives 91.0 % with the published files",
    ("edf, widest", "8b"): "the published simulator gives 43.6 % with the published files",
    ("edf", "8a"): USEFUL,
    ("edf", "8b"): USEFUL,
}


def compare(artefacts: Path) -> Iterator[Row]:
    repo = repository(artefacts, REPOSITORY)
    for workload, simulation in SIMULATIONS.items():
        rows = read_csv(repo, f"{FOLDER}/traces_for_ElasticFlow/{simulation.trace}.csv")
        tables = read_tables(repo, simulation.gpu_type, {row["model_name"] for row in rows})
        for name, compared in POLICIES.items():
            began = time.perf_counter()
            ours = deadlines_met(rows, tables, simulation, compared)
            print(f"ElasticFlow: {name}, {workload} took {time.perf_counter() - began:.0f} s", file=sys.stderr)
            yield Row(
                system="ElasticFlow",
                workload=f"{workload}: {name}",
                metric="deadlines met (%)",
                theirs=published_percent(repo, simulation, compared),
                ours=ours,
                why=WHY.get((name, simulation.figure), ""),
            )


def deadlines_met(rows: list[dict[str, str]], tables: Tables, simulation: Simulation, compared: Compared) -> float:
    """In percent of all jobs."""
    ordered = sorted(rows, key=lambda row: float(row["submit_time"]))
    jobs = [_job(row, tables, simulation.gpu_type, is_elastic=compared.is_elastic) for row in ordered]
    ended_s = replay_elastic(jobs, compared.policy(), simulation.setting).ended_s
    return 100 * float(np.mean(ended_s <= np.array([job.deadline_s for job in jobs]) + 1e-3))


def _job(row: dict[str, str], tables: Tables, gpu_type: str, *, is_elastic: bool) -> ElasticJob:
    model = row["model_name"]
    widths, speeds = tables[model, row["batch_size"]]
    most = MOST_GPUS.get((gpu_type, model), math.inf) if is_elastic else math.inf
    known = sum(gpus <= most for gpus in widths)
    return ElasticJob(
        submit_s=float(row["submit_time"]),
        gpus=min(int(row["batch_size"]), widths[known - 1]),
        models=(TableJob(np.array(widths[:known]), np.array(speeds[:known]), float(row["iteration"])),),
        deadline_s=float(row["ddl"]),
    )


def read_tables(repo: Path, gpu_type: str, models: set[str]) -> Tables:
    """Widths and steps per second of each model and batch size. Widths that were not measured are left out."""
    tables: Tables = {}
    for model in models:
        for row in read_csv(repo, f"{FOLDER}/scheduler/throughputs_{gpu_type}/{model}.csv"):
            batch = row.pop("global_batch_size")
            speeds = {int(gpus): float(text or "nan") for gpus, text in row.items()}
            known = [gpus for gpus, speed in speeds.items() if speed > 0]
            tables[model, batch] = known, [speeds[gpus] for gpus in known]
    return tables


def published_percent(repo: Path, simulation: Simulation, compared: Compared) -> float:
    figure = simulation.figure
    script = read_file(repo, f"plot_figure/scripts/plot_fig{figure}.py")
    name = compared.their_names[figure == "8b"]
    found = re.search(rf"^{name} ?= ?\[(.*)\]", script, re.MULTILINE)
    if found is None:
        raise ValueError(f"plot_fig{figure}.py has no figures of {name}.")
    return 100 * float(found[1].split(",")[simulation.position])
