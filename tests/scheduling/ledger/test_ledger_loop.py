"""The loop that computes the figures of the last day."""

from datetime import timedelta

import pytest

from jobs.core.lifecycle import State
from jobs.models import Attempt, Cluster, Job
from scheduling.ledger.loops.figures import hourly_ledger, ledger_metrics, update_ledger_metrics_once
from tests import make
from tests.scheduling.ledger.test_ledger_facts import HOUR, now, ran
from tests.statements import failing_statement

pytestmark = pytest.mark.django_db
__all__ = ["now"]


def of_seren(now):
    return ledger_metrics(hourly_ledger(Cluster.objects.get(name="seren"), now), now)


def came_back(now, *, died, again, cause="ECCError"):
    """Two attempts of one job: the first failed and the second was promised, each the given number of hours ago."""
    one = ran(now, died + 2, ended=died, state=State.NODE_FAIL, cause=cause)
    Job.objects.filter(pk=one.job_id).update(state=State.RUNNING, ended_at=None)
    since = now - again * HOUR
    more = {"state": State.RUNNING, "promised_at": since, "confirmed_at": since, "nodelist": one.nodelist}
    return Attempt.objects.create(job_id=one.job_id, number=2, key=f"{one.key}-again", **more)


def test_goodput_is_the_productive_part_of_the_capacity(now):
    ran(now, 6)

    figures = of_seren(now)

    assert figures["ratios"]["goodput"] == pytest.approx(6 * 8 / (24 * 32))
    assert figures["ratios"]["ettr"] == pytest.approx(1)
    assert sum(figures["gpu_hours"].values()) == pytest.approx(24 * 32)


def test_cluster_without_runs_has_no_ettr_and_no_recoveries(now):
    figures = of_seren(now)

    assert set(figures["ratios"]) == {"goodput"}
    assert (figures["recoveries"], figures["recovery_s"]) == ({}, None)


def test_recovery_after_a_failure_is_counted_by_its_cause(now):
    came_back(now, died=3, again=2.5)

    figures = of_seren(now)

    assert figures["recoveries"] == {"ECCError": 1}
    assert figures["recovery_s"] == pytest.approx(1800)


def test_recovery_before_the_last_day_is_not_counted(now):
    came_back(now, died=40, again=30)

    assert of_seren(now)["recoveries"] == {}


def test_requeue_by_a_user_is_not_a_recovery(now):
    again = came_back(now, died=3, again=2)
    Attempt.objects.filter(job_id=again.job_id, number=1).update(state=State.CANCELLED)

    assert of_seren(now)["recoveries"] == {}


class Figures(dict):
    """Figures by cluster. Tests that run in parallel share Valkey."""

    def store(self, what, of, figures, lifetime_s):
        self[of] = figures


def test_one_failing_cluster_does_not_stop_the_figures_of_others(now):
    another, stored = make.cluster("another", nodes=1), Figures()
    error = ArithmeticError("more is held than there is")

    with failing_statement('"jobs_job"."cluster_id" = %s', another.pk, error=error):
        assert update_ledger_metrics_once(now, stored.store) == 1

    assert set(stored) == {"seren"}


def test_second_run_replaces_the_figures_of_the_first(now):
    stored = Figures()
    update_ledger_metrics_once(now, stored.store)
    first = stored["seren"]
    ran(now, 6)

    update_ledger_metrics_once(now + timedelta(minutes=5), stored.store)

    assert stored["seren"]["ratios"]["goodput"] > first["ratios"]["goodput"] == 0
