"""Why jobs fail, how often, at which size and how soon: the failure table of the Acme study. Pure and seeded.

Rows are the 29 reasons of Table 3 of "Characterization of Large Language Model Development in the Datacenter"
(NSDI'24; AcmeTrace, CC-BY-4.0): number of failures, median of the requested GPUs, and minutes to the failure. The names
and the GPU time of the four most expensive reasons were checked against the paper; the other cells are as commonly
quoted. Reasons that the table lacks but operators meet (a NaN loss) have added rows, marked as such.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, cached_property
from math import exp, log, sqrt
from random import Random

from jobs.core.lifecycle import JobKind

from .faults import FaultKind

LATEST_DEVIATION = 2.3  # in spreads above the median: 99% of the failures for a reason are earlier
SIZE_SPREAD = 1.3  # spread of sizes around a reason's median, in natural logarithms
TRAINING_KINDS = frozenset({JobKind.PRETRAIN, JobKind.SFT, JobKind.MLLM})


class FailureFamily(StrEnum):
    INFRASTRUCTURE = "infrastructure"
    FRAMEWORK = "framework"
    SCRIPT = "script"


@dataclass(frozen=True, kw_only=True)
class FailureReason:
    name: str
    family: FailureFamily
    count: int
    gpus: float  # median demand
    after_min: float  # median time to failure
    after_mean_min: float
    breaks: FaultKind | None = None  # the machine fault behind it, which kernel log and telemetry also show

    @cached_property
    def time_spread(self) -> float:
        """Spread of the time to the failure around its median, in natural logarithms."""
        return sqrt(2 * log(max(self.after_mean_min / self.after_min, 1.02)))

    @cached_property
    def latest_s(self) -> float:
        """How late a program still fails for this reason: an import fails in the first minutes, or not at all."""
        return 60 * self.after_min * exp(LATEST_DEVIATION * self.time_spread)


def _reason_row(
    family: FailureFamily, name: str, count: int, gpus: float, mean: float, median: float, breaks: str = ""
) -> FailureReason:
    fault = FaultKind(breaks) if breaks else None
    return FailureReason(
        name=name, family=family, count=count, gpus=gpus, after_min=median, after_mean_min=mean, breaks=fault
    )


INFRA, FRAME, SCRIPT = FailureFamily.INFRASTRUCTURE, FailureFamily.FRAMEWORK, FailureFamily.SCRIPT

# Node failures are not drawn for a job: nodes fail at a rate of their own (faults.py).
FAILURE_TABLE = (
    _reason_row(INFRA, "nvlink_error", 54, 896, 868.1, 155.3, "nvlink"),
    _reason_row(INFRA, "cuda_error", 21, 1024, 923.2, 586.0),
    _reason_row(INFRA, "ecc_error", 12, 512, 1303.4, 1192.3, "ecc"),
    _reason_row(INFRA, "network_error", 12, 768, 549.6, 310.1, "fabric"),
    _reason_row(INFRA, "connection_error", 147, 1, 51.9, 0.5),
    _reason_row(INFRA, "s3_storage_error", 10, 256, 2317.8, 202.2),
    _reason_row(INFRA, "nccl_timeout_error", 6, 512, 159.7, 48.1),
    _reason_row(INFRA, "nccl_remote_error", 3, 1024, 50.5, 22.6),
    _reason_row(FRAME, "dataloader_killed", 6, 508, 1580.6, 961.4),
    _reason_row(FRAME, "attribute_error", 67, 8, 67.8, 1.2),
    _reason_row(FRAME, "out_of_memory_error", 14, 640, 323.8, 14.5),
    _reason_row(FRAME, "runtime_error", 65, 352, 66.4, 3.9),
    _reason_row(FRAME, "assertion_error", 105, 256, 41.7, 3.0),
    _reason_row(FRAME, "value_error", 33, 256, 9.9, 3.7),
    _reason_row(FRAME, "zero_division_error", 5, 256, 14.5, 14.4),
    _reason_row(FRAME, "model_loading_error", 104, 8, 2.6, 2.5),
    _reason_row(FRAME, "dataset_loading_error", 5, 1, 1.6, 1.5),
    _reason_row(SCRIPT, "file_not_found_error", 568, 1, 14.2, 0.4),
    _reason_row(SCRIPT, "os_error", 266, 1, 9.6, 0.8),
    _reason_row(SCRIPT, "type_error", 620, 4, 0.9, 0.3),
    _reason_row(SCRIPT, "name_error", 18, 24, 3.2, 0.5),
    _reason_row(SCRIPT, "permission_error", 7, 512, 4.3, 0.8),
    _reason_row(SCRIPT, "import_error", 111, 8, 1.1, 0.4),
    _reason_row(SCRIPT, "key_error", 260, 1, 3.0, 1.6),
    _reason_row(SCRIPT, "syntax_error", 10, 384, 0.7, 0.6),
    _reason_row(SCRIPT, "argument_error", 3, 512, 0.7, 0.65),
    _reason_row(SCRIPT, "called_process_error", 4, 256, 0.2, 0.19),
    _reason_row(SCRIPT, "index_error", 23, 1, 1.6, 0.9),
    # Added rows: reasons that the table counts under other names, or not at all
    _reason_row(INFRA, "gpu_off_bus", 6, 512, 900.0, 300.0, "off_bus"),
    _reason_row(FRAME, "loss_nan", 8, 256, 600.0, 200.0),
    _reason_row(FRAME, "checkpoint_corrupt", 4, 256, 3.0, 1.5),
    _reason_row(SCRIPT, "disk_full", 12, 8, 60.0, 20.0),
)
REASONS_BY_NAME = {reason.name: reason for reason in FAILURE_TABLE}
HOST_OOM = "host_oom"  # Slurm has a separate state for it, so it is never drawn
REASON_NAMES = frozenset(REASONS_BY_NAME) | {HOST_OOM}

TRAINING_ONLY_REASONS = frozenset({"loss_nan", "dataloader_killed", "checkpoint_corrupt"})
MULTI_GPU_REASONS = frozenset({"nvlink_error", "network_error", "nccl_timeout_error", "nccl_remote_error"})


def draw_reason(
    dice: Random, kind: JobKind, gpus: int, at_s: float = 0.0, odds: Mapping[str, float] | None = None
) -> FailureReason:
    """Draw a reason with the likelihoods of a job of this kind and size that fails so late, times its factor."""
    weights = reason_weights(kind, gpus, at_s)
    scaled = [weight * (odds or {}).get(name, 1.0) for name, weight in weights.items()]
    return REASONS_BY_NAME[dice.choices(list(weights), weights=scaled)[0]]


def reason_weights(kind: JobKind, gpus: int, at_s: float = 0.0) -> dict[str, float]:
    """How likely each reason is for a job of this kind and size that fails so late, by name."""
    weights = _weights_by_size(kind in TRAINING_KINDS, gpus)
    late = {name: weight * (at_s <= REASONS_BY_NAME[name].latest_s) for name, weight in weights.items()}
    return late if any(late.values()) else dict(weights)


@cache
def _weights_by_size(training: bool, gpus: int) -> Mapping[str, float]:
    return {
        row.name: row.count * _size_similarity(row.gpus, max(gpus, 1))
        for row in FAILURE_TABLE
        if (training or row.name not in TRAINING_ONLY_REASONS) and (gpus > 1 or row.name not in MULTI_GPU_REASONS)
    }


def _size_similarity(median: float, gpus: int) -> float:
    return exp(-(((log(gpus) - log(median)) / SIZE_SPREAD) ** 2) / 2)


def draw_time_to_failure_s(dice: Random, reason: FailureReason) -> float:
    """Draw the seconds until the failure: a lognormal with the table's median and mean."""
    return 60 * dice.lognormvariate(log(reason.after_min), reason.time_spread)
