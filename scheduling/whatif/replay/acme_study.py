"""Published figures of the Acme study that `acme_figures` does not contain: waits, sizes, final states, utilization and
failures. Pure.

They come from "Characterization of Large Language Model Development in the Datacenter" (NSDI'24) and its dataset
AcmeTrace (InternLM/AcmeTrace, CC-BY-4.0): run times and waits are points of Figure 6, sizes the boxes of Figure 5, both
read from the authors' vector figures; final states are those of `cluster_summary.csv`; utilization has the percentiles
of the published samples. Of the failure table only shares that the paper's text repeats are here. Run times in Kalos
include queueing, because its trace counts a duration from the submission.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jobs.core.lifecycle import JobKind
from scheduling.ledger.rules.characterization import StudyFigures
from scheduling.whatif.replay.acme_figures import BOUNDS_S, PUBLISHED_CLUSTERS

QUEUE_BOUNDS_S = tuple(2.0**power for power in range(16))
UTILIZATION_PERCENTILES = tuple(range(0, 101, 5))


@dataclass(frozen=True, kw_only=True)
class StudyCluster:
    """The figures of one cluster. Shares are in percent."""

    name: str
    run_at_most: tuple[float, ...]  # percent of the GPU jobs that ran at most `acme_figures.BOUNDS_S`
    queue_at_most: Mapping[JobKind, tuple[float, ...]]  # percent of the jobs that waited at most QUEUE_BOUNDS_S
    gpus: Mapping[JobKind, tuple[int, int, int]]  # quartiles of the requested GPUs
    jobs_by_state: tuple[float, float, float]  # completed, cancelled, failed
    gpu_time_by_state: tuple[float, float, float]
    gpu_util: tuple[float, ...]  # percent, at UTILIZATION_PERCENTILES


# Percent of the GPU time of all failures of both clusters, by the label of a diagnosis
FAILURE_GPU_TIME = {"NVLinkError": 30.25, "CUDAError": 15.77, "NodeFailure": 14.3, "ECCError": 11.0}
INFRASTRUCTURE_GPU_TIME, INFRASTRUCTURE_FAILURES = 82.0, 11.0  # percent of the GPU time and of the number

# fmt: off
STUDY_CLUSTERS = {
    "seren": StudyCluster(
        name="Seren 2023",
        run_at_most=(
            2.18, 2.78, 5.62, 11.76, 23.38, 31.71, 37.12, 48.91, 65.63, 79.21, 88.03, 92.94, 95.99, 97.53, 98.44,
            99.19, 99.64, 99.83, 99.93, 99.98, 100, 100,
        ),
        queue_at_most={
            JobKind.EVALUATION: (
                47.62, 56.85, 61.97, 65.31, 70.42, 75.55, 79.19, 84.41, 88.83, 92.64, 96.22, 97.84, 98.98, 99.58,
                99.85, 99.97,
            ),
            JobKind.PRETRAIN: (
                71.98, 77.07, 79.86, 82.51, 86.16, 91.68, 94.41, 96.52, 97.57, 98.36, 99.06, 99.3, 99.65, 99.78, 99.9,
                99.95,
            ),
            JobKind.SFT: (
                60.53, 70.52, 75.17, 76.35, 78.89, 82.73, 84.98, 88.11, 92.28, 95.56, 97.87, 98.84, 99.43, 99.77,
                99.83, 99.96,
            ),
            JobKind.MLLM: (
                72.73, 82.19, 87.97, 89.43, 90.98, 93.05, 93.78, 94.79, 95.83, 96.46, 96.85, 97.28, 98.52, 98.56,
                99.35, 99.98,
            ),
            JobKind.DEBUG: (
                84.78, 90.77, 94.49, 95.63, 97.07, 98.38, 98.81, 99.22, 99.54, 99.7, 99.85, 99.91, 99.94, 99.98,
                99.99, 100,
            ),
            JobKind.OTHER: (
                72.72, 81.57, 85.91, 87.43, 90.24, 93.75, 94.93, 95.68, 96.27, 96.55, 96.65, 96.69, 96.94, 97.1,
                97.29, 97.58,
            ),
        },
        gpus={
            JobKind.EVALUATION: (1, 1, 4),
            JobKind.PRETRAIN: (64, 128, 256),
            JobKind.SFT: (2, 8, 8),
            JobKind.MLLM: (1, 2, 8),
            JobKind.DEBUG: (8, 8, 8),
            JobKind.OTHER: (1, 1, 8),
        },
        jobs_by_state=(49.7, 7.5, 42.9),
        gpu_time_by_state=(21.2, 66.4, 12.4),
        gpu_util=(0, 0, 0, 0, 0, 0, 0, 82.65, 97, 98, 99, 99, 99, 99, 99, 99, 100, 100, 100, 100, 100),
    ),
    "kalos": StudyCluster(
        name="Kalos 2023",
        run_at_most=(
            0, 0, 0, 0.01, 1.48, 18.72, 38.19, 50.47, 69.1, 79.45, 85.94, 92.77, 97.06, 98.68, 99.11, 99.45, 99.66,
            99.83, 99.95, 99.98, 100, 100,
        ),
        queue_at_most={
            JobKind.EVALUATION: (
                0, 0, 0, 5.66, 47.25, 65.39, 75.45, 79.54, 89.51, 92.64, 94.82, 97.21, 99.17, 99.8, 99.92, 100,
            ),
            JobKind.PRETRAIN: (
                0, 0, 0, 2.96, 67.55, 78.94, 87.83, 92.36, 95.48, 97.04, 98.28, 98.75, 99.53, 99.84, 100, 100,
            ),
            JobKind.DEBUG: (0, 0, 0, 6.89, 66.29, 76.54, 84.36, 86.78, 92.36, 97.77, 99.44, 99.81, 100, 100, 100, 100),
            JobKind.OTHER: (0, 0, 0, 11.6, 76.4, 85.2, 90, 95.6, 97.2, 98, 98, 98.8, 99.2, 99.2, 99.6, 100),
        },
        gpus={
            JobKind.EVALUATION: (1, 1, 1),
            JobKind.PRETRAIN: (256, 512, 512),
            JobKind.DEBUG: (32, 128, 512),
            JobKind.OTHER: (2, 8, 32),
        },
        jobs_by_state=(54.1, 6.2, 39.7),
        gpu_time_by_state=(31.3, 60.7, 8.0),
        gpu_util=(0, 0, 0, 0, 0, 0, 61, 91, 97, 97, 98, 98, 99, 99, 99, 99, 100, 100, 100, 100, 100),
    ),
}
# fmt: on


def study_figures(kind: JobKind | None) -> list[StudyFigures]:
    """The figures of both clusters for jobs of one kind, or for all GPU jobs."""
    return [_cluster_figures(key, cluster, kind) for key, cluster in STUDY_CLUSTERS.items()]


def _cluster_figures(key: str, cluster: StudyCluster, kind: JobKind | None) -> StudyFigures:
    work = PUBLISHED_CLUSTERS[key].work
    run_at_most = cluster.run_at_most if kind is None else work[kind].at_most if kind in work else None
    queue_at_most = _waits_of_all_kinds(key, cluster) if kind is None else cluster.queue_at_most.get(kind)
    return StudyFigures(
        name=cluster.name,
        run_times=_points(BOUNDS_S, run_at_most),
        waits=_points(QUEUE_BOUNDS_S, queue_at_most),
        gpus=cluster.gpus,
        gpu_time_by_kind={kind: figures.gpu_time for kind, figures in work.items()},
        jobs_by_state=cluster.jobs_by_state,
        gpu_time_by_state=cluster.gpu_time_by_state,
        utilization=list(zip(cluster.gpu_util, map(float, UTILIZATION_PERCENTILES), strict=True)),
    )


def _waits_of_all_kinds(key: str, cluster: StudyCluster) -> list[float]:
    """The waits were published by kind only, so their mean is weighted with the number of jobs."""
    shares = {kind: PUBLISHED_CLUSTERS[key].work[kind].share for kind in cluster.queue_at_most}
    total = sum(shares.values())
    return [
        sum(shares[kind] * curve[row] for kind, curve in cluster.queue_at_most.items()) / total
        for row in range(len(QUEUE_BOUNDS_S))
    ]


def _points(bounds: Sequence[float], at_most: Sequence[float] | None) -> list[tuple[float, float]] | None:
    return None if at_most is None else list(zip(bounds, at_most, strict=True))
