"""Train the trees that predict run times, for the policy qssf-ml. This runs beside the scheduling turn.

Eligible rows     Clusters on which `MIN_TRAINING_JOBS` jobs have ended, if the number of ended jobs has doubled since
                  the newest version, or if that is a day old and a job has ended since. Needs LightGBM.
What a turn does  Trains on the newest `MAX_TRAINING_JOBS` ended jobs that Acme has recorded, with one thread: seconds
                  and some hundred MB. Adds the result as the next version and deletes all but the newest versions.
Failure story     Killed at any time before the insert: nothing has changed, and the next turn trains again. The insert
                  and the deletes are one transaction, and predictions use the newest version that can be loaded, so a
                  usable version is never missing. Two workers at once: versions are unique, so
                  one of them stores nothing. Late or not running: predictions come from an older version, or from the
                  rolling estimate. No transaction is open during the training.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from jobs.models import Cluster
from scheduling.actions import history as history_actions
from scheduling.engine.blending import MAX_TRAINING_JOBS, MIN_TRAINING_JOBS, RunTimeTrees, training_is_due
from scheduling.engine.policies.qssf_ml import QssfMlRules
from scheduling.engine.settings import MissingLibrary
from scheduling.models import RunTimeModel, TrainedTrees
from scheduling.models.history import EndedJob
from scheduling.queries import history
from scheduling.queries.predictions import job_features


def train_trees_once(cluster: Cluster, now: datetime, min_jobs: int = MIN_TRAINING_JOBS) -> bool:
    """Return whether a version was added."""
    newest = TrainedTrees.objects.filter(cluster=cluster).defer("document").order_by("-version").first()
    ended = RunTimeModel.objects.filter(cluster=cluster).values_list("jobs", flat=True).first() or 0
    if not _is_due(newest, ended, min_jobs, now) or not _has_lightgbm():
        return False
    jobs = history.learned_jobs(cluster, MAX_TRAINING_JOBS)
    if len(jobs) < min_jobs:
        return False  # most of them were imported, or have been deleted
    version = newest.version + 1 if newest else 1
    return history_actions.store_trees(
        TrainedTrees(
            cluster=cluster,
            version=version,
            trained_at=now,
            learned_jobs=ended,
            training_jobs=len(jobs),
            first_end=jobs[0].ended_at,
            last_end=jobs[-1].ended_at,
            document=_train(jobs).dumps(),
        )
    )


def _is_due(newest: TrainedTrees | None, ended: int, min_jobs: int, now: datetime) -> bool:
    if newest is None:
        return training_is_due(ended, 0, min_jobs)
    return training_is_due(ended, newest.learned_jobs, min_jobs, (now - newest.trained_at).total_seconds())


def _train(jobs: Sequence[EndedJob]) -> RunTimeTrees:
    features = [job_features(job.traits, job.submitted_at.timestamp()) for job in jobs]
    return RunTimeTrees.train(features, [job.ran_s for job in jobs])


def _has_lightgbm() -> bool:
    try:
        QssfMlRules.check_libraries()
    except MissingLibrary:
        return False
    return True
