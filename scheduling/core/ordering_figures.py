"""The figure by which a policy orders waiting jobs, as text for the queue page. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from jobs.core.slurm_notation import format_duration
from scheduling.engine.cluster import WaitingJob
from scheduling.engine.history import UNKNOWN_S, SchedulingHistory

HOUR_S = 3600.0
FIGURE_LABELS = {
    "fair": "Team usage",
    "qssf": "Predicted GPU time",
    "qssf-ml": "Predicted GPU time",
    "sjf": "Predicted run time",
    "tiresias": "Attained service",
    "las-aware": "Attained service",
}
FIGURE_HELP = {
    "fair": "GPU time that the team has used, halved every half-life. The team with the least goes first.",
    "qssf": "Run time predicted from similar ended jobs, times GPUs. The smallest goes first.",
    "qssf-ml": "Run time predicted by trees over ended jobs, times GPUs. The smallest goes first.",
    "sjf": "Run time predicted from similar ended jobs. The shortest goes first.",
    "tiresias": "GPU time of the job's earlier attempts. The job with the least goes first.",
    "las-aware": "GPU time of the job's earlier attempts, by the speed of their GPU model. The least goes first.",
}


@dataclass(frozen=True, kw_only=True)
class OrderingFigures:
    """The name of the figure, what it means, and its text by job id. `label` is empty if the policy orders jobs by
    what the queue page shows anyway."""

    label: str = ""
    help: str = ""
    texts: Mapping[int, str]


def order_name(policy: str, settings: Mapping[str, object]) -> str:
    """The order that applies: that of the policy, or the one that `acme` is set to use."""
    return str(settings.get("order", "fifo")) if policy == "acme" else policy


def ordering_figures(order: str, waiting: tuple[WaitingJob, ...], history: SchedulingHistory | None) -> OrderingFigures:
    """The figures of these jobs under this order."""
    if history is None or order not in FIGURE_LABELS:
        return OrderingFigures(texts={})
    texts = {job.id: _figure(order, job, history) for job in waiting}
    return OrderingFigures(label=FIGURE_LABELS[order], help=FIGURE_HELP[order], texts=texts)


def _figure(order: str, job: WaitingJob, history: SchedulingHistory) -> str:
    if order == "fair":
        return _gpu_time(history.usage.get(job.team, 0.0))
    if order == "tiresias":
        return _gpu_time(history.attained.get(job.id, 0.0))
    if order == "las-aware":
        return _gpu_time(history.attained_by_speed.get(job.id, 0.0))
    predicted_s = history.prediction_s(job.id, trees=order == "qssf-ml")
    if predicted_s == UNKNOWN_S:
        return "not predicted yet"
    if order in ("qssf", "qssf-ml"):
        return _gpu_time(predicted_s * job.need.total_gpus)
    return format_duration(timedelta(seconds=round(predicted_s)))


def _gpu_time(gpu_seconds: float) -> str:
    hours = gpu_seconds / HOUR_S
    return f"{hours:,.0f} GPU-h" if hours >= 100 else f"{hours:.3g} GPU-h"


def prediction_error_text(jobs: int, median_ratio: float | None, p90_ratio: float | None) -> str:
    """How wrong the predictions of the last 30 days were, in one sentence."""
    if median_ratio is None or p90_ratio is None:
        return "not measured yet: no job with a prediction has ended in the last 30 days"
    count = f"{jobs:,} job{'' if jobs == 1 else 's'}"
    return f"half within a factor of {median_ratio:.3g}, 90% within {p90_ratio:.3g} ({count} in 30 days)"
