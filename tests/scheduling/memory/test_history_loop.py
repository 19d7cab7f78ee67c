"""Memory of ended jobs: usage of teams, attained service, learned run times, and what the live policies make of it."""

import math
from datetime import timedelta

import pytest

from acmeweb.common.errors import InvalidField
from jobs.actions import jobs as job_actions
from jobs.core.attempt_end import AttemptEnd
from jobs.core.lifecycle import State
from jobs.models import Attempt, Job, clock
from scheduling.actions import history as history_actions
from scheduling.actions.policies import set_policy_choice
from scheduling.core.policy_choice import PolicyChoice
from scheduling.engine.policies import configured_policy
from scheduling.loops.history import remember_ended_once
from scheduling.loops.schedule import schedule_once
from scheduling.models import AccountUsage, LearnedRunTime, RunTimeModel
from scheduling.queries import history, snapshot
from scheduling.queries.policy_choices import current_policy_choice
from scheduling.queries.predictions import with_predictions
from tests import make

HOUR = timedelta(hours=1)


def ran(now, *, since, hours, **asked):
    """A job whose only attempt began `since` hours ago and ran for this many hours."""
    attempt = make.ended(make.job(**asked))
    began = now - since * HOUR
    ended = began + hours * HOUR
    Attempt.objects.filter(pk=attempt.pk).update(promised_at=began, confirmed_at=began, ended_at=ended)
    Job.objects.filter(pk=attempt.job_id).update(started_at=began, ended_at=ended)
    return attempt.job


def schedule(cluster, policy, **settings):
    return schedule_once(cluster, configured_policy(policy, settings), clock.now(), lambda: None)


def started(job):
    return Job.objects.get(pk=job.pk).is_configuring


def two_teams():
    make.team("vision", ben="researcher")
    make.team("language", ada="researcher")


# usage


def test_usage_is_exact_before_and_after_attempts_are_counted(cluster):
    now = clock.now()
    ran(now, since=400, hours=100, gpus_per_node=8, nodes=2)
    ran(now, since=3, hours=2, gpus_per_node=1)
    running = make.running(make.job(gpus_per_node=4))
    Attempt.objects.filter(pk=running.pk).update(promised_at=now - 5 * HOUR)
    rate = math.log(2) / (168 * 3600)
    expected = sum(
        gpus / rate * (math.exp(-rate * end * 3600) - math.exp(-rate * start * 3600))
        for gpus, start, end in ((16, 400, 300), (1, 3, 1), (4, 5, 0))
    )

    before = history.account_usage(cluster, now)
    assert history_actions.count_ended_attempts(cluster, now) == 2
    after = history.account_usage(cluster, now)

    assert before == {"pretraining": pytest.approx(expected, rel=1e-9)}
    assert after == {"pretraining": pytest.approx(expected, rel=1e-12)}
    assert history.account_usage(cluster, now + 168 * HOUR)["pretraining"] == pytest.approx(
        expected / 2 + 4 / rate / 2, rel=1e-9
    )


def test_usage_takes_a_bounded_number_of_attempts_that_are_not_counted_the_newest(cluster):
    now = clock.now()
    for since in (90, 50, 10):
        ran(now, since=since, hours=1, gpus_per_node=1)
    running = make.running(make.job(gpus_per_node=4))
    Attempt.objects.filter(pk=running.pk).update(promised_at=now - HOUR)
    exact = history.account_usage(cluster, now, most=3)["pretraining"]

    bounded = history.account_usage(cluster, now, most=2)["pretraining"]
    assert history_actions.count_ended_attempts(cluster, now, most=1) == 1

    rate = math.log(2) / (168 * 3600)
    oldest = (math.exp(-rate * 89 * 3600) - math.exp(-rate * 90 * 3600)) / rate
    assert exact - bounded == pytest.approx(oldest)
    assert history.account_usage(cluster, now, most=2)["pretraining"] == pytest.approx(exact)


def test_attempt_is_counted_once(cluster):
    now = clock.now()
    ran(now, since=2, hours=1, gpus_per_node=8)

    assert [remember_ended_once(cluster, now) for _ in range(2)] == [2, 0]
    ran(now, since=2, hours=1, gpus_per_node=8)
    remember_ended_once(cluster, now)

    once = 8 * 3600 * math.exp(-math.log(2) * 1.5 / 168)
    assert AccountUsage.objects.get().gpu_seconds == pytest.approx(2 * once, rel=1e-5)


def test_attempt_of_centuries_causes_no_arithmetic_error(cluster):
    now = clock.now()
    cluster.usage_half_life_hours = 1
    ran(now, since=3_000_000, hours=1_000_000, gpus_per_node=8)
    ran(now, since=3_000_000, hours=3_000_000, gpus_per_node=8)

    before = history.account_usage(cluster, now)
    history_actions.count_ended_attempts(cluster, now)

    assert before["pretraining"] == pytest.approx(8 * 3600 / math.log(2))
    assert history.account_usage(cluster, now) == pytest.approx(before)


def test_past_usage_decays_at_a_new_half_life_from_then_on(cluster):
    now = clock.now()
    ran(now, since=49, hours=1, gpus_per_node=1)
    remember_ended_once(cluster, now)
    before = history.account_usage(cluster, now)["pretraining"]

    cluster.usage_half_life_hours = 24

    assert history.account_usage(cluster, now)["pretraining"] == pytest.approx(before)
    assert history.account_usage(cluster, now + 24 * HOUR)["pretraining"] == pytest.approx(before / 2)


@pytest.mark.parametrize("policy", [("fair", {}), ("acme", {"order": "fair"})])
def test_fair_prefers_the_team_with_less_past_usage(cluster, policy):
    two_teams()
    ran(clock.now(), since=30, hours=24, gpus_per_node=8, nodes=4)
    heavy, light = make.job(gpus_per_node=8, nodes=4), make.job(by="ben", gpus_per_node=8, nodes=4)

    schedule(cluster, policy[0], **policy[1])

    assert (started(heavy), started(light)) == (False, True)


# attained service


def test_attained_service_sums_the_ended_attempts_of_unfinished_jobs(cluster):
    now = clock.now()
    job = make.job(gpus_per_node=4)
    ran(now, since=2, hours=1, gpus_per_node=8)
    for began in (10, 5):
        attempt = make.running(job)
        job_actions.finish(
            attempt, AttemptEnd(state=State.NODE_FAIL, at=clock.now(), reason=str(began)), author=make.LOOP
        )
        times = {"promised_at": now - began * HOUR, "ended_at": now - (began - 2) * HOUR}
        Attempt.objects.filter(pk=attempt.pk).update(**times)
        Job.objects.filter(pk=job.pk).update(hold="")

    served = {job.pk: 2 * 2 * 4 * 3600}
    assert history.attained_service(cluster) == (served, served)


def test_least_attained_service_orders_requeued_jobs_behind_new_ones(cluster):
    now = clock.now()
    old = make.job(gpus_per_node=8, nodes=4)
    attempt = make.running(old)
    job_actions.finish(attempt, AttemptEnd(state=State.PREEMPTED, at=clock.now()), author=make.LOOP)
    Attempt.objects.filter(pk=attempt.pk).update(promised_at=now - HOUR)
    Job.objects.filter(pk=old.pk).update(hold="")
    new = make.job(gpus_per_node=8, nodes=4)

    schedule(cluster, "acme", order="tiresias")

    assert (started(old), started(new)) == (False, True)


# run times


def test_learned_run_time_forgets_older_jobs_and_narrow_scopes_come_first(cluster):
    now = clock.now()
    for since, hours, gpus, name in ((50, 8, 1, "train"), (40, 4, 1, "train"), (30, 1, 8, "eval")):
        ran(now, since=since, hours=hours, gpus_per_node=gpus, name=name)
    remember_ended_once(cluster, now)
    same, other_size, other_name = (
        make.job(gpus_per_node=1, name="train"),
        make.job(gpus_per_node=2, name="train"),
        make.job(gpus_per_node=2, name="new"),
    )
    limited, stranger = make.job(gpus_per_node=1, name="train", time_limit="01:00:00"), make.job(by="ben")

    picture = history_actions.predict_new_jobs(cluster, snapshot.take_snapshot(cluster, now))

    predicted = picture.history.predicted_s
    hours = [predicted[job.pk] / 3600 for job in (same, other_size, other_name, limited, stranger)]
    assert hours == pytest.approx([6, 6, 3.5, 1, 3.5])
    assert dict(Job.objects.waiting().values_list("pk", "predicted_s")) == predicted


def test_jobs_with_similar_names_and_of_the_same_kind_predict_new_ones(cluster):
    now = clock.now()
    for since, hours, name, kind in ((50, 8, "tune-7b-run17", "sft"), (40, 2, "check", "debug"), (30, 4, "x", "sft")):
        ran(now, since=since, hours=hours, gpus_per_node=1, name=name, kind=kind)
    remember_ended_once(cluster, now)
    similar = make.job(gpus_per_node=8, name="Tune-13b-run9", kind="evaluation")
    same_kind, other_user = make.job(name="new", kind="debug"), make.job(by="ben", name="new", kind="sft")

    picture = history_actions.predict_new_jobs(cluster, snapshot.take_snapshot(cluster, now))

    predicted = picture.history.predicted_s
    hours = [predicted[job.pk] / 3600 for job in (similar, same_kind, other_user)]
    assert hours == pytest.approx([8, 2, (8 + 4) / 2])


def test_prediction_of_a_waiting_job_never_changes(cluster):
    now = clock.now()
    ran(now, since=10, hours=8, gpus_per_node=1, name="train")
    remember_ended_once(cluster, now)
    job = make.job(gpus_per_node=1, name="train", hold=True)
    schedule(cluster, "fifo")
    ran(now, since=1, hours=1, gpus_per_node=1, name="train")
    remember_ended_once(cluster, now)

    schedule(cluster, "fifo")

    assert Job.objects.get(pk=job.pk).predicted_s == 8 * 3600


def test_jobs_are_learned_in_the_order_of_their_ends_in_any_batch(cluster):
    now = clock.now()
    for since, hours in ((50, 45), (40, 4), (30, 1)):
        ran(now, since=since, hours=hours, gpus_per_node=1, name="train")

    counts = [history_actions.learn_run_times(cluster, now, most=2) for _ in range(3)]

    assert counts == [2, 1, 0]
    assert LearnedRunTime.objects.get(scope="[]").mean_s / 3600 == pytest.approx(((4 + 1) / 2 + 45) / 2)
    assert (RunTimeModel.objects.get().version, RunTimeModel.objects.get().jobs) == (2, 3)


@pytest.mark.parametrize(("policy", "settings"), [("qssf", {}), ("sjf", {}), ("acme", {"order": "qssf"})])
def test_job_that_is_predicted_to_be_short_starts_first(cluster, policy, settings):
    now = clock.now()
    ran(now, since=90, hours=72, gpus_per_node=8, name="long")
    ran(now, since=9, hours=0.1, gpus_per_node=8, name="short")
    remember_ended_once(cluster, now)
    long, short = (make.job(gpus_per_node=8, nodes=4, name=name) for name in ("long", "short"))

    schedule(cluster, policy, **settings)

    assert (started(long), started(short)) == (False, True)


def test_error_is_the_factor_by_which_predictions_were_wrong(cluster):
    now = clock.now()
    jobs = [ran(now, since=9, hours=1, gpus_per_node=1) for _ in range(3)]
    for job, predicted_s in zip(jobs, (3600, 7200, 900), strict=True):
        Job.objects.filter(pk=job.pk).update(predicted_s=predicted_s)

    remember_ended_once(cluster, now)

    model = RunTimeModel.objects.get()
    assert (model.measured_jobs, model.median_ratio) == (3, pytest.approx(2))
    assert model.p90_ratio == pytest.approx(3.6)


@pytest.mark.parametrize(
    ("choice", "field"), [(("qssf", {}), "policy: qssf"), (("acme", {"order": "qssf"}), "order: qssf")]
)
def test_policy_without_the_history_it_needs_is_refused(cluster, choice, field):
    wanted = PolicyChoice(policy=choice[0], placement="consolidate", settings=choice[1])
    before = current_policy_choice(cluster)

    with pytest.raises(InvalidField, match=f"{field} orders jobs by run times.*no job has ended on seren yet"):
        set_policy_choice(cluster, wanted, before=before, author=make.author(), why="test")
    ran(clock.now(), since=9, hours=1, gpus_per_node=1)
    remember_ended_once(cluster, clock.now())

    assert set_policy_choice(cluster, wanted, before=before, author=make.author(), why="test")


def test_prediction_for_a_job_that_does_not_exist_yet_is_that_of_its_first_turn(cluster):
    now = clock.now()
    ran(now, since=9, hours=3, name="train", gpus_per_node=4)
    remember_ended_once(cluster, now)
    job = make.job(name="train", gpus_per_node=4)
    picture = snapshot.take_snapshot(cluster, now)

    previewed = with_predictions(cluster, picture)

    assert Job.objects.get(pk=job.pk).predicted_s is None
    assert previewed.history.predicted_s == {job.pk: 3 * 3600}
    assert history_actions.predict_new_jobs(cluster, picture).history == previewed.history
