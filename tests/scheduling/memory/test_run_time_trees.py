"""Training of the trees that predict run times: when, on what, and what remains after an interruption."""

import sys
from datetime import timedelta

import pytest

from acmeweb.common.errors import InvalidField
from jobs.models import Attempt, Job, clock
from scheduling.actions import history as history_actions
from scheduling.core.policy_choice import PolicyChoice
from scheduling.engine.policies import configured_policy
from scheduling.loops.history import remember_ended_once
from scheduling.loops.run_time_trees import train_trees_once
from scheduling.loops.schedule import schedule_once
from scheduling.models import TrainedTrees
from scheduling.models.run_time_trees import usable_trees
from scheduling.queries import snapshot
from scheduling.queries.policy_choices import check_for_cluster
from tests import make

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
CHOICE = PolicyChoice(policy="qssf-ml", placement="consolidate", settings={})


def add_past_jobs(now, count, hours=3, **asked):
    for number in range(count):
        attempt = make.ended(make.job(name=f"train-{number}", gpus_per_node=1, **asked))
        began, ended = now - 100 * HOUR, now - 100 * HOUR + hours * HOUR
        Attempt.objects.filter(pk=attempt.pk).update(promised_at=began, confirmed_at=began, ended_at=ended)
        Job.objects.filter(pk=attempt.job_id).update(started_at=began, ended_at=ended)


@pytest.fixture
def learned(cluster):
    """The time; ten jobs of three hours have been learned."""
    now = clock.now()
    add_past_jobs(now, 10)
    remember_ended_once(cluster, now)
    return now


def test_trees_are_trained_when_enough_jobs_have_ended_and_again_after_a_day_or_twice_as_many(cluster, learned):
    too_few = train_trees_once(cluster, learned, min_jobs=11)
    first = train_trees_once(cluster, learned, min_jobs=10)
    nothing_new = train_trees_once(cluster, learned + 3 * DAY, min_jobs=10)
    add_past_jobs(learned, 1)
    remember_ended_once(cluster, learned)

    assert (too_few, first, nothing_new) == (False, True, False)
    assert [train_trees_once(cluster, learned + wait, min_jobs=10) for wait in (HOUR, DAY)] == [False, True]
    newest = TrainedTrees.objects.get(version=2)
    assert (newest.training_jobs, newest.learned_jobs) == (11, 11)
    assert newest.last_end == learned - 97 * HOUR


def test_waiting_job_gets_both_predictions_at_its_first_turn(cluster, learned):
    add_past_jobs(learned, 1, hours=50, by="ada")
    Job.objects.filter(name="train-0").exclude(run_time_learned=True).update(name="odd")
    remember_ended_once(cluster, learned)
    train_trees_once(cluster, learned, min_jobs=10)
    odd = make.job(name="odd", gpus_per_node=1)

    history = history_actions.predict_new_jobs(cluster, snapshot.take_snapshot(cluster, learned)).history

    rolling_s, trees_s = (history.predicted_s[odd.pk] / 3600, history.trees_s[odd.pk] / 3600)
    assert (rolling_s, trees_s) == (pytest.approx(50), pytest.approx(0.1 * 50 + 0.9 * 3))
    assert history.prediction_s(odd.pk, trees=True) == history.trees_s[odd.pk]
    odd.refresh_from_db()
    assert (odd.predicted_s, odd.trees_predicted_s) == (history.predicted_s[odd.pk], history.trees_s[odd.pk])


def test_older_version_is_used_if_the_newest_cannot_be_loaded(cluster, learned):
    train_trees_once(cluster, learned, min_jobs=10)
    TrainedTrees.objects.create(
        **{field: getattr(TrainedTrees.objects.get(), field) for field in ("cluster", "training_jobs", "learned_jobs")},
        version=2,
        trained_at=learned,
        first_end=learned,
        last_end=learned,
        document=b"damaged",
    )

    assert usable_trees(cluster) is not None


def test_second_worker_adds_no_version_and_old_versions_are_deleted(cluster, learned):
    train_trees_once(cluster, learned, min_jobs=10)
    first = TrainedTrees.objects.get()
    versions = [
        TrainedTrees(**{**_columns(first), "version": version, "trained_at": learned + version * HOUR})
        for version in (1, 2, 3, 4)
    ]

    assert [history_actions.store_trees(trees) for trees in versions] == [False, True, True, True]
    assert list(TrainedTrees.objects.order_by("version").values_list("version", flat=True)) == [2, 3, 4]


def _columns(trees):
    names = ("cluster", "training_jobs", "learned_jobs", "first_end", "last_end", "document")
    return {name: getattr(trees, name) for name in names}


def test_policy_is_refused_without_lightgbm_and_then_uses_the_rolling_estimate(cluster, learned, monkeypatch):
    assert check_for_cluster(cluster, CHOICE) is CHOICE
    monkeypatch.setitem(sys.modules, "lightgbm", None)

    with pytest.raises(InvalidField, match=r"policy: .*qssf-ml needs LightGBM: install acme"):
        check_for_cluster(cluster, CHOICE)
    assert not train_trees_once(cluster, learned, min_jobs=10)
    job = make.job(gpus_per_node=1)
    assert schedule_once(cluster, configured_policy("qssf-ml", {}), learned, lambda: None) == 1
    assert Job.objects.get(pk=job.pk).predicted_s == 3 * 3600
