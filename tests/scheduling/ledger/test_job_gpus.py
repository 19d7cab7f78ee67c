"""The GPUs of a job: where it holds them, their telemetry, and their cost."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.test import Client

from jobs.models import Allocation, Attempt, Cluster, Node, Resolution, Sample, TeamRole, clock
from scheduling.ledger.reads import facts as ledger_facts
from scheduling.ledger.rules.buckets import Bucket
from scheduling.ledger.rules.parts import US_PER_HOUR
from scheduling.pages import job_gpus
from tests import make
from tests.page_text import page_text

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def people():
    make.team("pretraining", ada=TeamRole.RESEARCHER)
    make.team("speech", ben=TeamRole.RESEARCHER)


def browser(name="ada"):
    client = Client()
    client.force_login(make.user(name))
    return client


def running(hours=2, **asked):
    one = make.running(make.job(by="ada", **{"gpus_per_node": 4} | asked), on=asked.get("on", ()))
    since = clock.now() - hours * HOUR
    Attempt.objects.filter(pk=one.pk).update(promised_at=since, confirmed_at=since)
    Allocation.objects.filter(attempt=one).update(held_at=since)
    one.refresh_from_db()
    return one


def sampled(one, ago, util, **more):
    node = one.allocations.first().node
    at = clock.now() - ago
    Sample.objects.create(node=node, at=at, resolution=more.pop("resolution", Resolution.RAW), gpu_util=util, **more)


def page(one, name="ada"):
    return browser(name).get(f"/jobs/{one.job}/gpus/")


# --- cost


def test_every_gpu_hour_of_a_job_is_in_one_bucket():
    one = running(hours=2)

    held = ledger_facts.held_by_job(one.job_id, clock.now())

    assert sum(held.values()) / US_PER_HOUR == pytest.approx(8, abs=0.5)
    assert set(held) <= {Bucket.PRODUCTIVE, Bucket.START_UP}
    assert "GPU-hours in all attempts" in page_text(page(one))


def test_job_shows_its_cost_if_gpu_hours_have_a_price():
    one = running(hours=2)
    assert "USD" not in page_text(page(one))

    Cluster.objects.update(gpu_hour_price=2.0)

    assert re.search(r"<b>16\.\d\d USD</b> in all attempts", page_text(page(one)))


def test_work_lost_in_a_failure_stays_in_the_cost():
    one = make.ended(make.job(by="ada", gpus_per_node=4), state="FAILED", exit_code=1)
    since = clock.now() - 3 * HOUR
    Attempt.objects.filter(pk=one.pk).update(promised_at=since, confirmed_at=since)
    Allocation.objects.filter(attempt=one).update(held_at=since)

    held = ledger_facts.held_by_job(one.job_id, clock.now())

    assert held[Bucket.LOST_WORK] / US_PER_HOUR == pytest.approx(12, abs=0.5)


def test_job_that_never_started_has_no_cost():
    job = make.job(by="ada", gpus_per_node=4)

    assert not ledger_facts.held_by_job(job.pk, clock.now())
    text = page_text(browser().get(f"/jobs/{job}/gpus/"))
    assert "No GPU-hours used yet." in text and "not started yet" in text


# --- telemetry


def test_series_covers_only_the_job_own_gpus_while_held():
    one = running(hours=1)
    sampled(one, timedelta(minutes=30), [80.0, 80.0, 60.0, 60.0, 0.0, 0.0, 0.0, 0.0], gpu_power_w=[500.0] * 8)
    sampled(one, timedelta(hours=3), [1.0] * 8)

    (point,) = job_gpus.series(one, clock.now())

    assert (point.util, point.power_w, point.hottest) == (70.0, 2000.0, None)


@pytest.mark.parametrize(
    ("nodes", "hours", "step"),
    [
        (1, 1, Resolution.RAW),
        (1, 24, Resolution.RAW),
        (16, 24, Resolution.FIVE_MINUTES),
        (1250, 1, Resolution.HOUR),
        (1250, 24, Resolution.HOUR),
    ],
)
def test_more_nodes_mean_coarser_steps(nodes, hours, step):
    assert job_gpus._series_resolution(nodes, hours * HOUR, hours * HOUR) == step


def test_page_without_telemetry_still_shows_the_placement():
    one = running()

    text = page_text(page(one))

    assert "No telemetry." in text
    assert "seren-001" in text and text.count('<i class="quiet"') == 4 and text.count('<i class="none"') == 4


def test_cells_show_utilization_and_idle_gpus():
    one = running()
    # In the future, because it would be outdated on a slow machine
    sampled(one, -timedelta(minutes=30), [95.0, 0.0, 50.0, None, 100.0, 100.0, 100.0, 100.0])

    text = page_text(page(one))

    assert "GPU 0: 95% utilized" in text and '<i class="waiting" title="GPU 1: 0% utilized">' in text
    assert "GPU 4: not allocated to this job" in text and '<i class="quiet" title="GPU 3">' in text


def test_only_some_of_very_many_nodes_are_drawn():
    home = make.cluster()
    for number in range(5, 103):
        make.node(f"seren-{number:03d}", cluster=home)
    one = running(nodes=100)

    text = page_text(page(one))

    assert Node.objects.count() == 102
    assert text.count('class="cells"') == job_gpus.MAX_NODES_SHOWN and "and 4 more nodes" in text


# --- permissions


def test_job_of_another_team_is_not_found():
    one = running()

    assert page(one, "ben").status_code == 404
    assert Client().get(f"/jobs/{one.job}/gpus/").status_code == 302


def test_job_page_loads_its_gpus_after_rendering():
    one, waits = running(), make.job(by="ada", gpus_per_node=1)

    assert f'hx-get="/jobs/{one.job}/gpus/"' in page_text(browser().get(f"/jobs/{one.job}/?tab=gpus"))
    assert 'id="gpus"' not in page_text(browser().get(f"/jobs/{waits}/?tab=gpus"))
