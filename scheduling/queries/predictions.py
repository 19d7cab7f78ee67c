"""Run times of jobs, predicted from what the cluster has learned. Reads only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from jobs.models.cluster import Cluster
from scheduling.core.run_time_scopes import JobTraits, mean_run_time, run_time_scopes
from scheduling.engine.blending import JobFeatures, RunTimeTrees, blended_run_time
from scheduling.engine.cluster import ClusterSnapshot, WaitingJob
from scheduling.engine.history import SchedulingHistory
from scheduling.engine.predicting import bounded_prediction, name_without_numbers
from scheduling.models.history import LearnedRunTime
from scheduling.models.run_time_trees import usable_trees


class RunTimePrediction(NamedTuple):
    """The rolling estimate in seconds, and the one blended with trees if there are any."""

    rolling_s: float
    trees_s: float | None


def predict_run_times(cluster: Cluster, jobs: Sequence[WaitingJob]) -> Mapping[int, RunTimePrediction]:
    """Return the predictions by job id. The jobs need not exist."""
    traits = {job.id: job_traits(job) for job in jobs}
    scopes = {scope for distinct in set(traits.values()) for scope in run_time_scopes(distinct)}
    means = LearnedRunTime.objects.means(cluster, scopes)
    trees = usable_trees(cluster) if means else None
    return {job.id: _prediction(job, mean_run_time(means, traits[job.id]), trees) for job in jobs}


def add_predictions(picture: ClusterSnapshot, predictions: Mapping[int, RunTimePrediction]) -> ClusterSnapshot:
    """Return the snapshot with these predictions beside those that it has."""
    past = picture.history or SchedulingHistory()
    rolling_s = {job: predicted.rolling_s for job, predicted in predictions.items()}
    trees_s = {job: predicted.trees_s for job, predicted in predictions.items() if predicted.trees_s is not None}
    history = replace(past, predicted_s={**past.predicted_s, **rolling_s}, trees_s={**past.trees_s, **trees_s})
    return replace(picture, history=history)


def with_predictions(cluster: Cluster, picture: ClusterSnapshot) -> ClusterSnapshot:
    """Return the snapshot with predictions for the waiting jobs that have none. Stores nothing."""
    known = picture.history.predicted_s if picture.history else {}
    new = [job for job in picture.waiting if job.id not in known]
    return add_predictions(picture, predict_run_times(cluster, new)) if new else picture


def job_traits(job: WaitingJob) -> JobTraits:
    return JobTraits(job.user, job.title, job.need.total_gpus, job.kind)


def job_features(traits: JobTraits, submitted_s: float) -> JobFeatures:
    return JobFeatures(traits.user, name_without_numbers(traits.name), traits.kind, traits.gpus, submitted_s)


def _prediction(job: WaitingJob, mean_s: float | None, trees: RunTimeTrees | None) -> RunTimePrediction:
    limit_s = job.time_limit.total_seconds() if job.time_limit else math.inf
    rolling_s = bounded_prediction(mean_s, limit_s)
    if trees is None or mean_s is None:
        return RunTimePrediction(rolling_s, None)
    trees_s = trees.run_time_s(job_features(job_traits(job), job.submitted_at.timestamp()))
    return RunTimePrediction(rolling_s, bounded_prediction(blended_run_time(mean_s, trees_s), limit_s))
