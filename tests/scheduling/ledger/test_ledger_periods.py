"""Stored hours and days of the ledger give the same figures as all rows."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db.models import F

from jobs.core.lifecycle import State
from jobs.models import Attempt, Cluster, clock
from scheduling.ledger.actions import HOURS_KEPT, RECOMPUTED_FOR, apply_changes, delete_old_hours
from scheduling.ledger.loops.periods import store_periods_once
from scheduling.ledger.reads.facts import cluster_parts
from scheduling.ledger.reads.periods import cluster_ledger
from scheduling.ledger.rules.parts import total_of
from scheduling.models import LedgerChange, LedgerPeriod, PeriodLength
from tests import make
from tests.scheduling.ledger.random_history import CHANGES, DAYS, RandomHistory
from tests.scheduling.ledger.test_ledger_facts import now, ran
from tests.statements import before_statement, failing_statement

pytestmark = pytest.mark.django_db
__all__ = ["now"]
SEEDS = range(4)
HOUR = timedelta(hours=1)


def figures(part):
    """Everything that a table is computed from."""
    return {
        "gpu_us": {key: size for key, size in part.gpu_us.items() if size},
        "held_us": {node: size for node, size in part.held_us.items() if size},
        "wall_us": part.wall_us,
        "failures": dict(part.failures),
        "broken": part.broken,
        "recoveries": sorted(part.recoveries),
        "capacity_us": part.capacity_us,
    }


def assert_same_figures(cluster, now):
    since = now - timedelta(days=DAYS, hours=5, minutes=7)
    ledger = cluster_ledger(cluster, since, now, max_jobs=None)

    assert figures(ledger.total) == figures(total_of(cluster_parts(cluster, since, now)))
    assert not ledger.left_out
    return ledger


@pytest.fixture
def history(request):
    home = make.cluster()
    history = RandomHistory(home, clock.now(), request.param)
    history.fill(25)
    return history


@pytest.mark.parametrize("history", SEEDS, indirect=True)
def test_stored_periods_equal_the_ledger_of_all_rows(history):
    store_periods_once(history.now)

    ledger = assert_same_figures(history.cluster, history.now)
    assert len(ledger.parts) < 24 * 3  # days are used as a whole
    assert LedgerPeriod.objects.filter(is_outdated=True).count() == 1  # the current hour
    assert not LedgerChange.objects.exists()


@pytest.mark.parametrize("history", SEEDS, indirect=True)
def test_changes_of_past_rows_are_noticed_at_once_and_stored_by_the_next_turn(history):
    store_periods_once(history.now)
    changed = []
    for _ in range(12):
        changed.append(history.change())
        assert_same_figures(history.cluster, history.now)

        if len(changed) % 4 == 0:
            store_periods_once(history.now)
            assert_same_figures(history.cluster, history.now)


@pytest.mark.parametrize("name", sorted(CHANGES))
@pytest.mark.parametrize("history", [101], indirect=True)
def test_each_kind_of_change_is_noticed(history, name):
    store_periods_once(history.now)
    for _ in range(4):
        CHANGES[name](history)

    assert_same_figures(history.cluster, history.now)


# --- the loop


def outdated():
    return LedgerPeriod.objects.filter(is_outdated=True)


def test_hours_since_the_cluster_was_added_are_stored_and_days_that_are_over(now):
    store_periods_once(now)

    created = Cluster.objects.get().created_at
    hours = LedgerPeriod.objects.filter(length_s=PeriodLength.HOUR)
    assert hours.earliest("start").start.date() == created.date()
    assert hours.latest("start").until == now
    days = LedgerPeriod.objects.filter(length_s=PeriodLength.DAY)
    assert {day.start.date() for day in days} == {created.date() + n * 24 * HOUR for n in range(days.count())}
    assert days.latest("start").end <= now < days.latest("start").end + 24 * HOUR


def test_turn_without_time_stores_the_newest_hours_first(now):
    store_periods_once(now, budget_s=0)

    assert [period.end > now - 24 * HOUR for period in LedgerPeriod.objects.filter(figures__isnull=False)] == [True]

    store_periods_once(now)

    assert outdated().count() == 1


def test_second_turn_computes_only_the_current_hour_again(now):
    store_periods_once(now)

    assert store_periods_once(now + timedelta(seconds=1)) == 1


def test_change_that_is_noticed_while_a_period_is_computed_leaves_it_outdated(now):
    ran(now, 4)
    store_periods_once(now)
    hour = LedgerPeriod.objects.filter(length_s=PeriodLength.HOUR, start__lt=now - 3 * HOUR).latest("start")
    LedgerPeriod.objects.filter(pk=hour.pk).update(is_outdated=True)

    def notice():
        LedgerPeriod.objects.filter(pk=hour.pk).update(revision=F("revision") + 1)

    with before_statement('UPDATE "scheduling_ledgerperiod" SET "figures"', act=notice):
        store_periods_once(now)

    assert hour in outdated()


def test_change_that_is_recorded_while_periods_are_computed_is_applied_by_the_next_turn(now):
    attempt = ran(now, 6, ended=1)
    store_periods_once(now)
    LedgerPeriod.objects.update(is_outdated=True)

    def fail():
        Attempt.objects.filter(pk=attempt.pk).update(state=State.FAILED, cause="TypeError")

    with before_statement('UPDATE "scheduling_ledgerperiod" SET "figures"', act=fail):
        store_periods_once(now)
    store_periods_once(now)

    assert cluster_ledger(Cluster.objects.get(), now - 10 * HOUR, now).total.failures == {"TypeError": 1}
    assert outdated().count() == 1


def test_error_in_one_cluster_does_not_stop_the_others(now):
    other = make.cluster("other", nodes=1)

    with failing_statement('"jobs_job"."cluster_id" = %s', other.pk, error=ArithmeticError("damaged row")):
        store_periods_once(now)

    assert {period.cluster.name for period in LedgerPeriod.objects.filter(figures__isnull=False)} == {"seren"}


def test_stored_day_survives_the_deletion_of_its_rows(now):
    attempt = ran(now, 60, ended=50)
    store_periods_once(now)
    before = cluster_ledger(Cluster.objects.get(), now - 90 * HOUR, now).total

    attempt.allocations.all().delete()
    store_periods_once(now)

    after = cluster_ledger(Cluster.objects.get(), now - 90 * HOUR, now).total
    assert after.held_us == before.held_us == {"seren-001": 80 * 3_600_000_000}


def test_day_whose_facts_are_partly_deleted_is_not_computed_again(now):
    attempt = ran(now, 80, ended=60)
    store_periods_once(now)
    used = LedgerPeriod.objects.exclude(figures__held_us={})

    Attempt.objects.filter(pk=attempt.pk).update(state=State.FAILED, cause="TypeError")
    apply_changes(attempt.job.cluster, now + RECOMPUTED_FOR)

    assert used.exists() and not used.filter(is_outdated=True, until__lt=now - 24 * HOUR).exists()
    assert outdated().exists()  # what an import could add is not lost: nothing ran then


def test_older_rows_of_an_import_extend_the_stored_days(now):
    store_periods_once(now)
    ran(now, 200, ended=190)

    store_periods_once(now)

    assert LedgerPeriod.objects.earliest("start").start <= now - 200 * HOUR


def test_hours_older_than_the_longest_report_are_deleted(now):
    store_periods_once(now)
    days = LedgerPeriod.objects.filter(length_s=PeriodLength.DAY).count()

    delete_old_hours(Cluster.objects.get(), now + HOURS_KEPT)

    assert LedgerPeriod.objects.filter(length_s=PeriodLength.HOUR).earliest("start").start.date() == now.date()
    assert LedgerPeriod.objects.filter(length_s=PeriodLength.DAY).count() == days > 0


# --- what a report does while figures are missing


def test_report_uses_outdated_figures_and_says_so_if_computing_them_takes_too_many_jobs(now):
    attempt = ran(now, 30, ended=20)
    store_periods_once(now)
    Attempt.objects.filter(pk=attempt.pk).update(state=State.FAILED, cause="TypeError")

    ledger = cluster_ledger(Cluster.objects.get(), now - 40 * HOUR, now, max_jobs=0)

    assert ledger.total.failures == {} and ledger.outdated
    exact = cluster_ledger(Cluster.objects.get(), now - 40 * HOUR, now)
    assert exact.total.failures == {"TypeError": 1} and not exact.outdated


def test_report_leaves_out_what_is_not_stored_and_has_too_many_jobs(now):
    ran(now, 30, ended=20)

    ledger = cluster_ledger(Cluster.objects.get(), now - 40 * HOUR, now, max_jobs=0)

    assert ledger.parts == []
    assert sum(end - start for start, end in ledger.left_out) == 40 * 3_600_000_000


def test_stored_figures_are_read_instead_of_computed(now):
    ran(now, 70, ended=60)
    store_periods_once(now)
    LedgerPeriod.objects.filter(length_s=PeriodLength.DAY).update(figures=None)
    day = LedgerPeriod.objects.filter(length_s=PeriodLength.HOUR, start__lt=now - 61 * HOUR).latest("start")
    LedgerPeriod.objects.filter(pk=day.pk).update(figures=day.figures | {"wall_us": 5})

    ledger = cluster_ledger(Cluster.objects.get(), now - 72 * HOUR, now)

    assert 5 in [part.wall_us for part in ledger.parts]
