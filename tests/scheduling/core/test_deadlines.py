"""The probability that a job ends before its deadline."""

import math
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.deadlines import DeadlineModel, JobScope, PastWait, planned_work_chance, run_text
from scheduling.core.distributions import Distribution
from scheduling.engine.run_time_estimates import PastJob
from tests.make import NOON

SCOPE = JobScope("ada", "train", 8, "pretrain")


def hours(count):
    return timedelta(hours=count)


def past_job(ran_s, *, predicted_s=-1.0, title="train", gpus=8, kind="pretrain", user="ada"):
    return PastJob(user=user, title=title, gpus=gpus, ran_s=ran_s, kind=kind, predicted_s=predicted_s)


def before_start(model, run, deadline, p50=NOON, p90=NOON):
    return model.before_start(run, deadline, now=NOON, p50=p50, p90=p90, gpus=8)


def test_many_similar_jobs_decide_the_run_time():
    run = DeadlineModel([past_job(3600.0)] * 64).run_time(SCOPE, 60.0)

    assert run.quantile(0.5) == 3600
    assert 0.85 < run.at_most(3600) < 1.0


def test_few_similar_jobs_count_less_than_the_prediction():
    run = DeadlineModel([past_job(3600.0)] * 2).run_time(SCOPE, 60.0)

    assert run.quantile(0.5) < 120
    assert run.at_most(3599) == pytest.approx(0.8, abs=0.01)


def test_wider_scope_is_used_if_the_narrow_one_has_few_jobs():
    others = [past_job(7200.0, gpus=16)] * 20

    run = DeadlineModel([past_job(10.0), *others]).run_time(SCOPE, 7200.0)

    assert run.quantile(0.5) == 7200


def test_errors_of_past_predictions_of_the_kind_correct_the_prediction():
    twice = [past_job(200.0, predicted_s=100.0, title=f"p{n}") for n in range(40)]
    exact = [past_job(100.0, predicted_s=100.0, title=f"e{n}", kind="evaluation") for n in range(40)]
    model = DeadlineModel([*twice, *exact])

    assert model.run_time(SCOPE, 100.0).quantile(0.5) == pytest.approx(200)
    assert model.run_time(SCOPE._replace(kind="evaluation"), 100.0).quantile(0.5) == pytest.approx(100)


def test_time_limit_bounds_the_run_time():
    run = DeadlineModel([]).run_time(SCOPE, 7200.0, limit_s=3600.0)

    assert run.at_most(3600) == 1.0


def test_job_without_any_past_uses_its_limit():
    assert DeadlineModel([]).run_time(SCOPE, limit_s=600.0).quantile(0.5) == pytest.approx(600, rel=0.05)


@pytest.mark.parametrize("waited_s", [0.0, 1800.0, 7200.0], ids=["early", "as estimated", "late"])
def test_past_estimates_correct_the_wait(waited_s):
    model = DeadlineModel([], [PastWait(1800.0, waited_s, 8)] * 100)

    assert model.wait(1800.0, 1900.0, 8).quantile(0.5) == pytest.approx(waited_s, abs=1.0)


def test_wait_without_past_estimates_is_what_the_estimate_says():
    wait = DeadlineModel([]).wait(3600.0, 7200.0, 8)

    assert wait.quantile(0.5) == pytest.approx(3600, rel=0.05)
    assert wait.quantile(0.9) == pytest.approx(7200, rel=0.12)


def test_wait_is_that_of_jobs_of_about_the_same_size():
    model = DeadlineModel([], [PastWait(1800.0, 1800.0, 1)] * 300 + [PastWait(1800.0, 9000.0, 64)] * 300)

    assert [model.wait(1800.0, 1900.0, gpus).quantile(0.5) for gpus in (1, 2, 64)] == [1800, 1800, 9000]


def test_job_that_fits_now_does_not_wait():
    assert DeadlineModel([], [PastWait(0.0, 5000.0, 8)] * 100).wait(0.0, 0.0, 8).quantile(0.99) == 0


def test_forecast_states_run_and_start():
    run = Distribution.of([2.3 * 3600] * 17 + [3 * 3600] * 66 + [3.67 * 3600] * 17)

    known = before_start(DeadlineModel([]), run, NOON + hours(6), p50=NOON + hours(1 / 6), p90=NOON + hours(1 / 6))

    assert known.why == "predicted run 3 h ± 41 min, predicted start 12:10 UTC."


def test_text_names_the_day_if_the_deadline_is_on_another():
    known = before_start(DeadlineModel([]), Distribution.of([60.0]), NOON + hours(24))

    assert known.why == "predicted run 1 min ± 0 s, predicted start 21 Nov 12:00 UTC."


def test_uneven_run_time_is_shown_as_a_range():
    assert run_text(Distribution.log_normal(3600, 1.5)) == "57 min (from 14 min to 4 h 23 min)"


def test_running_job_that_outlives_short_runs_has_only_the_long_ones_left():
    run = Distribution.of([600.0] * 9 + [36_000.0])
    model = DeadlineModel([])

    fresh = model.after_start(run, NOON + hours(1), now=NOON, started_at=NOON)
    older = model.after_start(run, NOON + hours(1), now=NOON + hours(0.5), started_at=NOON)

    assert (fresh.probability, older.probability) == pytest.approx((0.9, 0.0))
    assert "started 12:00" in older.why and "predicted run 10 h" in older.why


def test_running_job_that_outran_everything_still_has_a_chance():
    known = DeadlineModel([]).after_start(
        Distribution.of([60.0]), NOON + hours(3), now=NOON + hours(1), started_at=NOON
    )

    assert 0.5 < known.probability < 1.0


@given(st.floats(0, 1e5), st.floats(0, 1e5), st.floats(1, 1e6), st.floats(0, 1e6))
def test_probability_grows_with_the_deadline(wait_s, later_s, predicted_s, slack_s):
    model = DeadlineModel([past_job(500.0 * n, predicted_s=400.0) for n in range(1, 40)], [PastWait(60, 90, 8)] * 5)
    run = model.run_time(SCOPE, predicted_s)
    p50 = NOON + timedelta(seconds=wait_s)
    p90 = p50 + timedelta(seconds=later_s)

    soon, late = (
        before_start(model, run, NOON + timedelta(seconds=seconds), p50, p90).probability
        for seconds in (slack_s, 2 * slack_s)
    )

    assert 0.0 <= soon <= late + 1e-9 <= 1.0 + 2e-9


def test_probabilities_are_calibrated_on_jobs_like_the_past_ones():
    dice = np.random.default_rng(3)
    ran = np.exp(dice.normal(8, 1.2, size=4000))
    predicted = ran * np.exp(dice.normal(0.3, 0.8, size=4000))
    rows = [past_job(r, predicted_s=p, title="") for r, p in zip(ran[:2000], predicted[:2000], strict=True)]
    model = DeadlineModel(rows)

    sure = [
        (float(model.run_time(SCOPE._replace(title=""), p).at_most(limit)), r <= limit)
        for r, p in zip(ran[2000:], predicted[2000:], strict=True)
        for limit in (0.5 * p, p, 3000.0, 10_000.0)
    ]

    share, met = np.array(sure, dtype=float).T
    for low in np.arange(0, 1, 0.2):
        inside = (share >= low) & (share <= low + 0.2)
        assert abs(share[inside].mean() - met[inside].mean()) < 0.05
    assert math.isclose(share.mean(), met.mean(), abs_tol=0.02)


@pytest.mark.parametrize(
    ("left_s", "past", "done", "share"),
    [
        (3600, [], 0.0, 0.5),
        (3600, [(3600, 7200)] * 40, 0.0, 0.08),
        (3600, [(3600, 1800)] * 40, 0.0, 0.92),
        (3600, [(3600, 7200)] * 40, 0.6, 1.0),
        (0, [], 0.5, 0.0),
    ],
    ids=["no past", "plans too short", "plans too long", "mostly done", "passed"],
)
def test_planned_work_is_judged_by_earlier_plans(left_s, past, done, share):
    assert planned_work_chance(3600, left_s, past, done=done) == pytest.approx(share, abs=0.01)
