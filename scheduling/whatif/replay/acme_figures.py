"""Published figures of the Acme datacenter, from which synthetic jobs are drawn and against which they are measured.
Pure.

They come from the AcmeTrace dataset (InternLM/AcmeTrace, CC-BY-4.0) of "Characterization of Large Language Model
Development in the Datacenter" (NSDI'24): shares are the labels of the paper's Figure 4, run times the 22 points of
Figure 6, sizes the curve of Figure 3, read from the authors' vector figures to 0.02 to 0.05 percentage points.

Only `sizes` is ours: the paper gives sizes by kind as box plots without outliers, and the curve for all kinds together.
These mixtures match the quartiles of every box, the curve, and each kind's fraction of the GPU time. Caveats: durations
in Kalos include its (short) queueing, and nothing is known about how sizes and durations correlate within a kind.
"""

from __future__ import annotations

from dataclasses import dataclass

from jobs.core.lifecycle import JobKind

BOUNDS_S = tuple(2.0**power for power in range(22))


@dataclass(frozen=True, kw_only=True)
class KindFigures:
    """The figures of one kind of job."""

    share: float  # percent of all jobs
    gpu_time: float  # percent of all GPU time
    at_most: tuple[float, ...]  # percent of the jobs that take at most BOUNDS_S
    sizes: dict[int, float]  # GPUs -> percent of the jobs


@dataclass(frozen=True, kw_only=True)
class PublishedCluster:
    """One cluster of the datacenter."""

    nodes: int
    jobs: int  # GPU jobs
    days: float
    users: int
    work: dict[JobKind, KindFigures]
    widths: dict[int, float]  # GPUs -> percent of all jobs that request at most this many


# fmt: off
PUBLISHED_CLUSTERS = {
    "seren": PublishedCluster(
        nodes=286, jobs=663_813, days=184, users=250,
        work={
            JobKind.EVALUATION: KindFigures(
                share=64.9, gpu_time=6.2,
                at_most=(
                    2.31, 2.92, 5.22, 10.57, 25.18, 32.78, 37.37, 49.75, 67.17, 79.97, 88.8, 93.86, 96.53, 98.19,
                    99.06, 99.57, 99.79, 99.91, 99.96, 99.99, 100, 100,
                ),
                sizes={1: 70.85, 2: 3.65, 4: 3.89, 8: 21.61},
            ),
            JobKind.PRETRAIN: KindFigures(
                share=0.9, gpu_time=69.5,
                at_most=(
                    4.27, 5.71, 9.86, 12.1, 15.6, 20.49, 27.37, 34.87, 46.8, 61.8, 73.42, 80.45, 84.08, 86.61,
                    88.45, 91.08, 94.31, 97.19, 98.78, 99.63, 99.98, 100,
                ),
                sizes={64: 44.13, 96: 2.22, 128: 23.36, 256: 20.02, 512: 10.01, 768: 0.26},
            ),
            JobKind.SFT: KindFigures(
                share=14.9, gpu_time=6.4,
                at_most=(
                    1.02, 1.49, 3.46, 6.56, 12.62, 21.68, 27.59, 37.51, 57.61, 78.8, 89.27, 94.49, 97.34, 98.64,
                    99.16, 99.51, 99.8, 99.92, 99.98, 99.99, 100, 100,
                ),
                sizes={2: 32.24, 8: 58.77, 16: 2.99, 32: 4.7, 64: 0.69, 768: 0.52, 896: 0.03, 1024: 0.06},
            ),
            JobKind.MLLM: KindFigures(
                share=2.9, gpu_time=8.6,
                at_most=(
                    2.09, 3.07, 5.09, 9.41, 14.7, 27.37, 33.44, 40.85, 50.17, 66.84, 79.7, 85.61, 89.16, 91.3,
                    92.91, 97.31, 98.88, 99.47, 99.83, 99.98, 99.98, 100,
                ),
                sizes={1: 25.5, 2: 25, 8: 25, 16: 22.94, 896: 1.56},
            ),
            JobKind.DEBUG: KindFigures(
                share=1.9, gpu_time=1.7,
                at_most=(
                    3.68, 4.62, 6.32, 11.73, 19.34, 29.8, 39.13, 52.15, 68.37, 81.95, 91.22, 95.5, 97.36, 98.29,
                    98.81, 99.22, 99.56, 99.79, 99.86, 99.96, 99.99, 100,
                ),
                sizes={8: 94, 32: 5.34, 1024: 0.66},
            ),
            JobKind.OTHER: KindFigures(
                share=14.6, gpu_time=7.6,
                at_most=(
                    2.49, 3.02, 9.39, 22.83, 29.09, 39.02, 46.81, 58.88, 70.91, 79.48, 85.53, 89.2, 94.19, 95.32,
                    96.65, 98.01, 99.31, 99.63, 99.84, 99.94, 99.99, 100,
                ),
                sizes={1: 50.5, 2: 24, 8: 24.21, 32: 1.09, 1024: 0.2},
            ),
        },
        widths={
            1: 54.04, 2: 65.43, 4: 67.95, 8: 96.75, 16: 97.86, 32: 98.82, 64: 99.32, 128: 99.55, 256: 99.73, 512:
            99.82, 1024: 100,
        },
    ),
    "kalos": PublishedCluster(
        nodes=302, jobs=19_907, days=91.2, users=60,
        work={
            JobKind.EVALUATION: KindFigures(
                share=92.8, gpu_time=0.4,
                at_most=(
                    0, 0, 0, 0.01, 1.53, 19.51, 39.92, 52.67, 71.82, 81.16, 87.03, 93.8, 98.06, 99.6, 99.84, 99.98,
                    99.98, 100, 100, 100, 100, 100,
                ),
                sizes={1: 94, 8: 5.53, 16: 0.37, 1024: 0.1},
            ),
            JobKind.PRETRAIN: KindFigures(
                share=3.2, gpu_time=95.5,
                at_most=(
                    0, 0, 0, 0, 0, 4.21, 9.83, 14.35, 25.74, 43.84, 57.1, 65.37, 71.92, 76.91, 82.37, 87.83, 93.29,
                    96.72, 98.91, 99.84, 100, 100,
                ),
                sizes={96: 0.22, 256: 28.28, 512: 47, 768: 15.21, 896: 0.31, 1024: 8.98},
            ),
            JobKind.DEBUG: KindFigures(
                share=2.7, gpu_time=1.6,
                at_most=(
                    0, 0, 0, 0, 1.3, 8.38, 17.32, 25.88, 38.73, 70.76, 88.83, 97.21, 99.07, 99.63, 99.81, 100, 100,
                    100, 100, 100, 100, 100,
                ),
                sizes={
                    2: 17.94, 8: 3.66, 16: 0.03, 32: 3.86, 64: 23.52, 96: 0.48, 128: 13.33, 256: 11.67, 512: 1, 768:
                    0.06, 1024: 24.44,
                },
            ),
            JobKind.OTHER: KindFigures(
                share=1.3, gpu_time=2.5,
                at_most=(
                    0, 0, 0, 0, 2, 20.4, 29.2, 35.2, 46.4, 64.8, 75.2, 79.2, 84, 85.2, 87.6, 90, 92.8, 95.6, 98.8,
                    98.8, 100, 100,
                ),
                sizes={2: 49.5, 8: 25, 32: 21.98, 64: 1.15, 768: 2.36},
            ),
        },
        widths={
            1: 86.28, 2: 88.36, 4: 88.36, 8: 93.92, 16: 94.26, 32: 94.65, 64: 95.3, 128: 95.68, 256: 96.9, 512:
            98.07, 1024: 100,
        },
    ),
}
# fmt: on
