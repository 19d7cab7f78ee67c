"""The loop of start estimates, and the outcomes of estimates."""

from datetime import timedelta

import pytest

from jobs.actions import jobs as job_actions
from jobs.models import ClusterMode, HoldKind, Job, clock
from scheduling.actions import estimates as estimate_actions
from scheduling.loops.start_estimates import MAX_ESTIMATE_AGE, estimate_starts_once
from scheduling.models import Estimate, EstimateError, EstimateLead, EstimateOutcome, Forecast
from scheduling.whatif.replay.start_estimates import StartEstimate
from tests import make

HOUR = timedelta(hours=1)


@pytest.fixture
def full(cluster):
    """One node, held for three hours more at most."""
    make.node("seren-001").cluster.nodes.exclude(name="seren-001").delete()
    return make.running(make.job(gpus_per_node=8, time_limit="03:05:00"))


def wide(**fields):
    return make.job(gpus_per_node=8, time_limit="02:00:00", **fields)


def test_every_waiting_job_has_an_estimate(cluster, full):
    jobs = [wide(), wide()]
    now = clock.now()

    assert estimate_starts_once(cluster, now) == 2

    first, second = Estimate.objects.order_by("job_id")
    assert now < first.p50 <= first.p90 <= now + 3 * HOUR + timedelta(minutes=1)
    assert first.p50 < second.p50
    assert [first.job, second.job] == jobs


def test_ineligible_job_has_no_estimate(cluster, full):
    held = wide()
    estimate_starts_once(cluster, clock.now())
    job_actions.hold(held, author=make.author())

    estimate_starts_once(cluster, clock.now())

    assert not Estimate.objects.exists()


def test_estimates_are_not_recomputed_without_changes(cluster, full):
    wide()
    now = clock.now()
    estimate_starts_once(cluster, now)
    made = Forecast.objects.get().made_at

    estimate_starts_once(cluster, now + timedelta(seconds=30))
    assert Forecast.objects.get().made_at == made
    estimate_starts_once(cluster, now + MAX_ESTIMATE_AGE)
    assert Forecast.objects.get().made_at > made


@pytest.mark.parametrize("change", ["submit", "drain", "priority", "policy"])
def test_relevant_changes_trigger_new_estimates(cluster, full, change):
    job = wide()
    now = clock.now()
    estimate_starts_once(cluster, now)

    if change == "submit":
        wide()
    elif change == "drain":
        make.node("seren-001", drain_requested=True)
    elif change == "priority":
        job_actions.set_priority(job, 5, author=make.author())
    else:
        cluster.policy = "easy"
    estimate_starts_once(cluster, now + timedelta(seconds=30))

    assert Forecast.objects.get().made_at == now + timedelta(seconds=30)


def told(job, p50, p90):
    return {job.pk: StartEstimate(p50=p50, p90=p90)}


def test_a_row_is_written_only_when_its_estimate_moves(cluster, full):
    job, now = wide(), clock.now()

    assert estimate_actions.save_estimates(cluster, told(job, now + HOUR, now + 2 * HOUR), now) == 1
    nearly = told(job, now + HOUR + timedelta(seconds=50), now + 2 * HOUR)
    assert estimate_actions.save_estimates(cluster, nearly, now) == 0
    assert estimate_actions.save_estimates(cluster, told(job, now + 2 * HOUR, now + 3 * HOUR), now) == 1


def test_first_estimate_is_compared_with_the_start(cluster):
    job, now = wide(), clock.now() - HOUR
    estimate_actions.save_estimates(cluster, told(job, now + HOUR / 2, now + HOUR), now)
    estimate_actions.save_estimates(cluster, told(job, now + HOUR, now + 2 * HOUR), now)
    make.attempt(job)

    assert estimate_actions.record_outcomes(cluster) == 1
    assert estimate_actions.record_outcomes(cluster) == 0

    outcome = EstimateOutcome.objects.get()
    assert outcome.p50 == now + HOUR / 2
    assert abs(outcome.started_at - clock.now()) < timedelta(minutes=1)
    assert not Estimate.objects.exists()


def test_job_requeued_between_two_runs_still_has_an_outcome(cluster):
    job, now = wide(), clock.now() - HOUR
    estimate_actions.save_estimates(cluster, told(job, now + HOUR, now + HOUR), now)
    make.ended(job, state="NODE_FAIL")
    assert Job.objects.get(pk=job.pk).state == "PENDING"

    assert estimate_actions.record_outcomes(cluster) == 1


def test_job_that_never_started_has_no_outcome(cluster):
    job, now = wide(), clock.now()
    estimate_actions.save_estimates(cluster, told(job, now, now), now)
    job_actions.cancel(job, author=make.author())

    assert estimate_actions.record_outcomes(cluster) == 0
    assert (Estimate.objects.count(), EstimateOutcome.objects.count()) == (0, 0)


def outcome(cluster, job, *, ahead, off, now):
    made = now - timedelta(days=1)
    started = made + ahead + off
    EstimateOutcome.objects.create(
        job=job, cluster=cluster, made_at=made, p50=made + ahead, p90=made + ahead + HOUR, started_at=started
    )


def test_errors_are_summarized_by_lead(cluster):
    now = clock.now()
    for minutes in (10, 20, 90):
        outcome(cluster, wide(), ahead=2 * HOUR, off=timedelta(minutes=minutes), now=now)
    outcome(cluster, wide(), ahead=timedelta(0), off=timedelta(seconds=5), now=now)

    estimate_actions.update_error_summaries(cluster, now)

    found = {error.lead: error for error in EstimateError.objects.all()}
    assert set(found) == {EstimateLead.SOON, EstimateLead.SHIFT}
    assert (found[EstimateLead.SHIFT].jobs, found[EstimateLead.SHIFT].median_s) == (3, 1200)
    assert found[EstimateLead.SHIFT].within_p90 == pytest.approx(2 / 3)


def test_old_outcomes_are_ignored_and_deleted(cluster):
    now = clock.now()
    outcome(cluster, wide(), ahead=HOUR, off=HOUR, now=now)
    estimate_actions.update_error_summaries(cluster, now)

    estimate_actions.update_error_summaries(cluster, now + timedelta(days=40))

    assert (EstimateError.objects.count(), EstimateOutcome.objects.count()) == (0, 0)


def test_observed_cluster_has_no_estimates(cluster, full):
    wide()
    cluster.mode = ClusterMode.OBSERVE

    assert estimate_starts_once(cluster, clock.now()) == 0


def test_a_job_that_was_started_meanwhile_gets_no_estimate(cluster):
    job, now = wide(), clock.now()
    make.attempt(job)

    assert estimate_actions.save_estimates(cluster, told(job, now, now), now) == 0


def test_run_times_are_estimated_from_the_users_past_jobs(cluster, full):
    for _ in range(3):
        make.ended(make.job(name="short", gpus_per_node=0))
    job = make.job(name="short", gpus_per_node=0)

    estimate_starts_once(cluster, clock.now())

    assert job.hold == HoldKind.NONE
    assert Estimate.objects.filter(job=job).exists()
