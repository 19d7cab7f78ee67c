"""What the last day came to, worked out beside the turns."""

from datetime import timedelta

import pytest

from acmeweb.common import metrics_store
from jobs.core.lifecycle import State
from jobs.models import Attempt, Cluster, Job
from scheduling.loops import ledger
from scheduling.loops.ledger import ACCOUNT_WINDOW, ledger_metrics, update_ledger_metrics_once
from scheduling.queries import ledger_facts
from tests import make
from tests.scheduling.ledger.test_ledger_facts import HOUR, now, ran

pytestmark = pytest.mark.django_db
__all__ = ["now"]


def of_seren(now):
    return ledger_metrics(
        ledger_facts.cluster_ledger(Cluster.objects.get(name="seren"), now - ACCOUNT_WINDOW, now), now
    )


def came_back(now, *, died, again, cause="ECCError"):
    """Two attempts of one job: the first died so many hours ago, the second was promised so many hours ago."""
    one = ran(now, died + 2, ended=died, state=State.NODE_FAIL, cause=cause)
    Job.objects.filter(pk=one.job_id).update(state=State.RUNNING, ended_at=None)
    since = now - again * HOUR
    more = {"state": State.RUNNING, "promised_at": since, "confirmed_at": since, "nodelist": one.nodelist}
    return Attempt.objects.create(job_id=one.job_id, number=2, key=f"{one.key}-again", **more)


def test_goodput_is_the_productive_part_of_all_there_was(now):
    ran(now, 6)

    found = of_seren(now)

    assert found["ratios"]["goodput"] == pytest.approx(6 * 8 / (24 * 32))
    assert found["ratios"]["ettr"] == pytest.approx(1)
    assert sum(found["gpu_hours"].values()) == pytest.approx(24 * 32)


def test_a_cluster_in_which_nothing_ran_has_no_ettr_and_no_recoveries(now):
    found = of_seren(now)

    assert set(found["ratios"]) == {"goodput"}
    assert (found["recoveries"], found["recovery_s"]) == ({}, None)


def test_who_came_back_after_a_failure_is_counted_by_its_cause(now):
    came_back(now, died=3, again=2.5)

    found = of_seren(now)

    assert found["recoveries"] == {"ECCError": 1}
    assert found["recovery_s"] == pytest.approx(1800)


def test_who_came_back_before_the_day_is_not_of_it(now):
    came_back(now, died=40, again=30)

    assert of_seren(now)["recoveries"] == {}


def test_who_was_requeued_by_a_person_did_not_recover(now):
    again = came_back(now, died=3, again=2)
    Attempt.objects.filter(job_id=again.job_id, number=1).update(state=State.CANCELLED)

    assert of_seren(now)["recoveries"] == {}


@pytest.fixture
def put(monkeypatch):
    """What was left for those who read; Valkey is shared with tests beside this one."""
    found = {}
    monkeypatch.setattr(
        metrics_store, "store_figures", lambda what, of, figures, kept_s: found.__setitem__(of, figures)
    )
    return found


def test_every_cluster_has_its_figures_and_one_that_cannot_be_divided_stops_none(now, put, monkeypatch):
    make.cluster("another", nodes=1)
    divide = ledger_facts.cluster_ledger

    def broken(cluster, since, until):
        if cluster.name == "another":
            raise ArithmeticError("more is held than there is")
        return divide(cluster, since, until)

    monkeypatch.setattr(ledger.accounting, "account", broken)

    assert update_ledger_metrics_once(now) == 1
    assert set(put) == {"seren"}


def test_a_second_turn_replaces_the_figures_of_the_first(now, put):
    update_ledger_metrics_once(now)
    first = put["seren"]
    ran(now, 6)

    update_ledger_metrics_once(now + timedelta(minutes=5))

    assert put["seren"]["ratios"]["goodput"] > first["ratios"]["goodput"] == 0
