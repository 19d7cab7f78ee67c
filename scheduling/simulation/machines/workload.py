"""Draws jobs from the distributions of the Acme trace, as the users of a datacenter would submit them. Pure and seeded.

The shares, sizes and durations by kind are those of the clusters Seren and Kalos, from AcmeTrace (CC-BY-4.0;
"Characterization of Large Language Model Development in the Datacenter", NSDI'24). `speed` compresses time: at 60 an
hour of the trace takes a minute, for run times and arrivals. Time limits are what users would request for such run
times, at least a quarter of an hour. Long pretraining runs are not compressed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import lru_cache
from random import Random

from jobs.core.lifecycle import JobKind

PERCENTILES = (0.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0)


@dataclass(frozen=True, kw_only=True)
class WorkloadProfile:
    share: float  # percent of all jobs
    durations_s: tuple[float, ...]  # at PERCENTILES
    gpus: tuple[int, ...]  # quartiles: minimum, q1, median, q3, maximum
    fails: float  # share of jobs that fail
    names: tuple[str, ...]
    command: str


SEREN_PROFILES: dict[JobKind, WorkloadProfile] = {
    JobKind.EVALUATION: WorkloadProfile(
        share=64.9,
        durations_s=(1, 7.4, 15.9, 129.3, 391.2, 1207.0, 2753.3, 15619.2),
        gpus=(1, 1, 1, 4, 8),
        fails=0.10,
        names=("mmlu", "humaneval", "gsm8k", "ceval", "bbh", "mbpp", "hellaswag", "triviaqa"),
        command="python -m evaluate --checkpoint $CHECKPOINT --dataset {name}",
    ),
    JobKind.PRETRAIN: WorkloadProfile(
        share=0.9,
        durations_s=(4, 30.0, 50.4, 296.8, 1196.6, 24650.9, 77375.2, 313656.0),
        gpus=(40, 64, 128, 256, 512),
        fails=0.25,
        names=("llm-7b", "llm-20b", "llm-104b", "moe-8x7b"),
        command="torchrun --nnodes $SLURM_NNODES --nproc-per-node 8 pretrain.py --config {name}.yaml",
    ),
    JobKind.SFT: WorkloadProfile(
        share=14.9,
        durations_s=(1, 11.9, 47.2, 196.9, 452.2, 1128.2, 2318.5, 13237.2),
        gpus=(1, 2, 8, 8, 16),
        fails=0.20,
        names=("chat-sft", "code-sft", "math-sft", "tool-sft"),
        command="torchrun --nproc-per-node 8 sft.py --data {name}.jsonl",
    ),
    JobKind.MLLM: WorkloadProfile(
        share=2.9,
        durations_s=(1, 8.6, 28.1, 252.8, 794.8, 5376.8, 22772.4, 75458.2),
        gpus=(1, 1, 2, 8, 16),
        fails=0.20,
        names=("vision-align", "video-caption", "ocr-tune"),
        command="torchrun --nproc-per-node 8 mllm.py --stage {name}",
    ),
    JobKind.DEBUG: WorkloadProfile(
        share=1.9,
        durations_s=(1, 6.4, 23.3, 114.2, 359.1, 934.7, 1888.7, 22590.3),
        gpus=(8, 8, 8, 8, 8),
        fails=0.40,
        names=("profile", "nccl-check", "try-flash"),
        command="python debug.py --what {name}",
    ),
    JobKind.OTHER: WorkloadProfile(
        share=14.6,
        durations_s=(1, 4.1, 10.2, 76.9, 356.4, 2288.7, 6732.0, 55551.5),
        gpus=(1, 1, 1, 8, 16),
        fails=0.20,
        names=("tokenize", "embed", "convert", "notebook"),
        command="python tools/{name}.py",
    ),
}

KALOS_PROFILES: dict[JobKind, WorkloadProfile] = {
    JobKind.EVALUATION: replace(
        SEREN_PROFILES[JobKind.EVALUATION],
        share=92.8,
        durations_s=(8, 22.2, 38.9, 111.0, 324.0, 1388.0, 2490.0, 6253.0),
        gpus=(1, 1, 1, 1, 1),
        fails=0.067,
    ),
    JobKind.PRETRAIN: replace(
        SEREN_PROFILES[JobKind.PRETRAIN],
        share=3.2,
        durations_s=(16, 65.7, 245.0, 707.0, 6283.0, 43161.0, 92588.0, 280332.0),
        gpus=(96, 256, 512, 512, 1024),
        command="torchrun pretrain.py --config {name}.yaml",  # PET_… variables contain the rest
    ),
    JobKind.DEBUG: replace(
        SEREN_PROFILES[JobKind.DEBUG],
        share=2.7,
        durations_s=(8, 36.3, 119.0, 327.0, 602.0, 1128.0, 1706.0, 3991.0),
        gpus=(1, 32, 128, 512, 1024),
    ),
    JobKind.OTHER: replace(
        SEREN_PROFILES[JobKind.OTHER],
        share=1.3,
        durations_s=(8, 21.8, 46.0, 293.0, 1010.0, 32768.0, 112981.0, 588493.0),
        gpus=(1, 2, 8, 32, 64),
    ),
}

FAILURE_ENDS = (("FAILED:1", 0.62), ("FAILED:134", 0.18), ("OUT_OF_MEMORY", 0.12), ("FAILED:137", 0.08))
MIN_DURATION_S = 2.0
LONG_RUN_HOURS = (24, 60)
DAY_S = 86_400


@lru_cache(maxsize=100_000)
def job_name(kind: JobKind, key: str) -> str:
    """The name that a user gives to the job with this key."""
    return Random(f"name:{key}").choice(SEREN_PROFILES[kind].names)


@dataclass(frozen=True, kw_only=True)
class SampledJob:
    """A job to be submitted, with its outcome."""

    kind: JobKind
    name: str
    command: str
    nodes: int
    gpus_per_node: int
    duration_s: float
    end: str  # COMPLETED, FAILED:<exit code>, OUT_OF_MEMORY
    time_limit: timedelta


@dataclass(frozen=True, kw_only=True)
class WorkloadSettings:
    """The size of the cluster, and the compression of time."""

    gpus: int
    gpus_per_node: int
    most_gpus: int  # limit for one job
    speed: float = 60.0
    longest_s: float = math.inf  # limit of durations, after compression
    profiles: Mapping[JobKind, WorkloadProfile] = field(default_factory=lambda: SEREN_PROFILES)


def sample_job(dice: Random, place: WorkloadSettings) -> SampledJob:
    kind = dice.choices(list(place.profiles), weights=[work.share for work in place.profiles.values()])[0]
    return sample_job_of_kind(kind, dice, place)


def sample_job_of_kind(kind: JobKind, dice: Random, place: WorkloadSettings) -> SampledJob:
    work = place.profiles[kind]
    name = dice.choice(work.names)
    nodes, per_node = nodes_and_gpus(_sample_gpus(work.gpus, dice), place.gpus_per_node, place.most_gpus)
    duration = min(place.longest_s, max(MIN_DURATION_S, _sample_duration(work.durations_s, dice) / place.speed))
    end = "COMPLETED" if dice.random() >= work.fails else _weighted_choice(FAILURE_ENDS, dice)
    return SampledJob(
        kind=kind,
        name=name,
        command=work.command.format(name=name),
        nodes=nodes,
        gpus_per_node=per_node,
        duration_s=round(duration, 1),
        end=end,
        time_limit=requested_time_limit(duration, dice),
    )


def sample_long_run(
    work: WorkloadProfile, nodes: int, gpus_per_node: int, dice: Random, taken: Collection[str] = ()
) -> SampledJob:
    """A pretraining run on whole nodes that takes a day or more and succeeds. Its name is none of those taken."""
    name = dice.choice([name for name in work.names if name not in taken] or work.names)
    duration_s = round(3600 * dice.uniform(*LONG_RUN_HOURS))
    return SampledJob(
        kind=JobKind.PRETRAIN,
        name=name,
        command=work.command.format(name=name),
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        duration_s=duration_s,
        end="COMPLETED",
        time_limit=requested_time_limit(duration_s, dice),
    )


def without_pretraining(profiles: Mapping[JobKind, WorkloadProfile]) -> dict[JobKind, WorkloadProfile]:
    return {kind: work for kind, work in profiles.items() if kind != JobKind.PRETRAIN}


def requested_time_limit(planned_s: float, dice: Random) -> timedelta:
    """What a user requests for this run time: more than needed, in quarters of an hour, or whole hours or days."""
    wanted_s = planned_s * (dice.uniform(1.3, 4.0) if planned_s < DAY_S else dice.uniform(1.1, 1.6))
    unit_s = 900 if wanted_s < 4 * 3600 else 3600 if wanted_s < 24 * 3600 else DAY_S
    return timedelta(seconds=math.ceil(wanted_s / unit_s) * unit_s)


def nodes_and_gpus(gpus: int, gpus_per_node: int, most_gpus: int) -> tuple[int, int]:
    """(nodes, GPUs per node) within `most_gpus`; a job that does not fit on one node gets whole nodes."""
    gpus = max(1, min(gpus, most_gpus))
    if gpus <= gpus_per_node:
        return 1, gpus
    return max(1, min(math.ceil(gpus / gpus_per_node), most_gpus // gpus_per_node)), gpus_per_node


def interarrival_times_s(dice: Random, place: WorkloadSettings, load: float) -> Iterator[float]:
    """Seconds until the next job, endlessly, so that the offered work is `load` of the GPUs."""
    gap = mean_gpu_seconds(place) / (load * place.gpus)
    while True:
        yield dice.expovariate(1 / gap)


def mean_gpu_seconds(place: WorkloadSettings, draws: int = 20_000) -> float:
    dice = Random(20_240_416)
    samples = (sample_job(dice, place) for _ in range(draws))
    return sum(job.nodes * job.gpus_per_node * job.duration_s for job in samples) / draws


def _sample_duration(quantiles: Sequence[float], dice: Random) -> float:
    """Draw a duration by inverting the distribution, interpolated on a log scale up to the 99th percentile."""
    at = min(dice.uniform(0, 100), PERCENTILES[-1])
    upper = next(i for i in range(1, len(PERCENTILES)) if at <= PERCENTILES[i])
    low, high = PERCENTILES[upper - 1], PERCENTILES[upper]
    part = (at - low) / (high - low)
    start, end = math.log(quantiles[upper - 1]), math.log(quantiles[upper])
    return math.exp(start + part * (end - start))


def _sample_gpus(quarters: Sequence[int], dice: Random) -> int:
    """Draw a size uniformly from one of the four quarters of the distribution, rounded to a power of two."""
    quarter = dice.randrange(4)
    low, high = math.log2(quarters[quarter]), math.log2(quarters[quarter + 1])
    return 1 << round(dice.uniform(low, high))


def _weighted_choice(table: Sequence[tuple[str, float]], dice: Random) -> str:
    return dice.choices([name for name, _ in table], weights=[weight for _, weight in table])[0]
