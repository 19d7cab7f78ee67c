"""Lucid (Hu et al., ASPLOS'23): packing of jobs on shared GPUs, with the authors' measurements of pairs.

The artefact has the measurements (how 66 configurations use a GPU, and how fast 1,388 pairs run together), the
simulator and its policies, and a trace that clones leave out because of its size. So both simulators get the same other
jobs: the first three days of Philly_MIX1 in the artefact of Chronus, from the same group, where job n has configuration
31 n modulo 66. Their figures are those of their simulator, unchanged, under its settings for Philly, with the true run
times as estimates. They are constants here, because it takes an hour.

Their simulator serves two nodes to the profiler, on which every small job runs for 80 s beside its place in the queue;
no job of this trace is as short as that, so ours has two nodes less. Pairs with a model that was not measured in pairs
run at full speed there; the rows of `speeds` say so here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.zoo_systems.artefacts import Row, read_csv, repository
from jobs.traces.trace import Trace, trace_from_columns
from scheduling.engine.job import EngineJob
from scheduling.research.packing.engine import GpuHolders
from scheduling.research.packing.lucid import LucidRules
from scheduling.whatif.replay import report
from scheduling.whatif.replay.job_profiles import Pair, ProfileRow, ProfileTable
from scheduling.whatif.replay.run import ReplaySetting, run_policy
from scheduling.whatif.replay.sharing_profiles import JobProfile, SharingProfiles

REPOSITORY = "Lucid"
TRACE_REPOSITORY = "ChronusArtifact"
MIX1 = "code/data/exp/trace_job_Philly_MIX1.csv"
DAYS = 3
MINUTES_PER_DAY = 1440
STEP = 31  # coprime to the number of configurations
PROFILER_NODES = 2
NEVER_MEASURED = ("NeuMF", "ResNet50", "BERT", "Transformer")
CONFIGURATION = ("model", "dataset", "batchsize", "amp")


class SlowPartners(LucidRules):
    """Lucid as the authors' simulator runs it: a job that joined another one stays at the speed of the pair when that
    one ends first, and nobody joins it any more. It looks up the partner by the GPUs and finds the job that ends.
    """

    def __init__(self, *settings: object) -> None:
        super().__init__(run_times="known")
        self._slow: dict[int, float] = {}  # by job that joined

    @classmethod
    def of(cls, settings: Mapping[str, object]) -> SlowPartners:
        return cls()

    def speeds(self, holders: GpuHolders, profiles: SharingProfiles) -> list[float]:
        if len(holders.jobs) == 1:
            return [self._slow.get(holders.jobs[0].number, 1.0)]
        speeds = super().speeds(holders, profiles)
        self._slow[holders.jobs[1].number] = speeds[1]
        return speeds

    def sharing_cost(
        self, job: EngineJob, profile: JobProfile, holders: GpuHolders, profiles: SharingProfiles
    ) -> float | None:
        if holders.jobs[0].number in self._slow:
            return None
        return super().sharing_cost(job, profile, holders, profiles)


SLOW_PARTNERS = f"{__name__}:{SlowPartners.__name__}"


@dataclass(frozen=True, kw_only=True)
class Theirs:
    """Mean completion and queueing of their simulator, in seconds. Queueing without that for the profiler."""

    nodes: int
    policy: str
    completion_s: float
    queueing_s: float


# fifo and sjf have all nodes, lucid also those of its profiler
FIGURES = (
    Theirs(nodes=80, policy="sjf", completion_s=16_929.49, queueing_s=5_905.01),
    Theirs(nodes=80, policy="lucid", completion_s=11_598.13, queueing_s=218.47),
)
SLOW = "in theirs, a job stays slow whose partner ends first: see lucid, slow partners"
WHY = {"lucid": SLOW}


def compare(artefacts: Path) -> Iterator[Row]:
    table = profiles(repository(artefacts, REPOSITORY))
    trace = workload(read_csv(repository(artefacts, TRACE_REPOSITORY), MIX1), [row.name for row in table.rows])
    for theirs in FIGURES:
        packs = theirs.policy == "lucid"
        setting = ReplaySetting(
            nodes=theirs.nodes - PROFILER_NODES * packs,
            profiles=table,
            policy_settings={"run_times": "known"} if packs else {},
        )
        yield from _rows(trace, theirs, theirs.policy, setting)
        if packs:
            yield from _rows(trace, theirs, SLOW_PARTNERS, setting)


def _rows(trace: Trace, theirs: Theirs, policy: str, setting: ReplaySetting) -> Iterator[Row]:
    found = report.summary(run_policy(trace, policy, setting), wall_s=0, peak_rss_mb=0)
    name = "lucid, slow partners" if policy == SLOW_PARTNERS else policy
    for metric, figure, ours in (
        ("mean completion (s)", theirs.completion_s, found["jct_s"]["mean"]),
        ("mean queueing (s)", theirs.queueing_s, found["queue_s"]["mean"]),
    ):
        yield Row(
            system=f"Lucid: {name}",
            workload=f"Philly, {len(trace):,} jobs, {theirs.nodes} × 8 GPUs",
            metric=metric,
            theirs=figure,
            ours=ours,
            why=WHY.get(policy, ""),
        )


def profiles(repo: Path) -> ProfileTable:
    """The authors' configurations, their classes, and the speeds of all pairs as their simulator reads them."""
    rows = read_csv(repo, "simulation/analyzer/single_data.csv")
    names = [_configuration(row) for row in rows]
    pairs: dict[Pair, tuple[float, float]] = {
        (_configuration(row, "1"), _configuration(row, "2")): (float(row["speed1"]), float(row["speed2"]))
        for row in read_csv(repo, "simulation/data/colocate_info.csv")
    }
    for name in (name for name in names if name.startswith(NEVER_MEASURED)):
        for other in names:
            pairs.pop((other, name), None)
            pairs[name, other] = (1.0, 1.0)
    return ProfileTable(rows=tuple(_profile(row) for row in rows), pairs=_without_mirrored(pairs))


def _without_mirrored(pairs: dict[Pair, tuple[float, float]]) -> dict[Pair, tuple[float, float]]:
    found: dict[Pair, tuple[float, float]] = {}
    for (first, second), speeds in pairs.items():
        if (second, first) not in found:
            found[first, second] = speeds
    return found


def _profile(row: Mapping[str, str]) -> ProfileRow:
    return ProfileRow(
        name=_configuration(row),
        gpu_percent=float(row["gpu_util"]),
        memory_mb=float(row["gmem"]),
        score=int(row["label"]),
    )


def _configuration(row: Mapping[str, str], number: str = "") -> str:
    return "/".join(row[column + number] for column in CONFIGURATION)


def workload(rows: list[dict[str, str]], configurations: list[str]) -> Trace:
    """The jobs of the first days that request GPUs, in seconds, each with its configuration as its name."""
    used = [row for row in rows if int(row["num_gpu"]) and int(row["submit_time"]) < DAYS * MINUTES_PER_DAY]
    return trace_from_columns(
        "philly",
        ids=[row["job_id"] for row in used],
        submit_s=[int(row["submit_time"]) * 60.0 for row in used],
        runtime_s=[int(row["duration"]) * 60.0 for row in used],
        gpus=[int(row["num_gpu"]) for row in used],
        names=[configurations[int(row["job_id"]) * STEP % len(configurations)] for row in used],
    )
