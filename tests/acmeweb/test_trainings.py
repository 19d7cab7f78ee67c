"""Trainings on the home page: visibility, ETTR, and the time since the last checkpoint."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from acmeweb.pages.home_trainings import running_trainings
from jobs.models import Attempt, Checkpoint, Job, LatestProgress, Progress, TeamRole, clock
from scheduling.ledger.reads import facts as ledger_facts
from tests import make

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def people():
    make.team("pretraining", ada=TeamRole.RESEARCHER)
    make.team("speech", ben=TeamRole.RESEARCHER)


def training(by="ada", name="pretrain", on="seren-001", hours=4, **fields):
    one = make.running(make.job(by=by, name=name, gpus_per_node=8, **{"kind": "pretrain"} | fields), on=[on])
    now = clock.now()
    Attempt.objects.filter(pk=one.pk).update(promised_at=now - hours * HOUR, confirmed_at=now - hours * HOUR)
    for step in range(5):
        Progress.objects.create(attempt=one, at=now - timedelta(minutes=60 - step), step=step, loss=3 - step / 5)
    LatestProgress.objects.create(attempt=one, at=now, step=4, loss=2.2)
    return one


def seen(name="ada"):
    return running_trainings(Job.objects.visible_to(make.user(name)), clock.now())


def test_a_training_shows_its_loss_as_a_line_and_its_share_of_useful_time():
    training()

    (one,) = seen()

    assert len(one.line.split()) == 5
    assert one.efficiency.ettr == pytest.approx(0.25, abs=0.01)  # its first step came after three of four hours


def test_training_without_reports_is_shown():
    make.running(make.job(by="ada", name="silent", kind="pretrain", gpus_per_node=8), on=["seren-003"])
    client = Client()
    client.force_login(make.user("ada"))

    (one,) = seen()
    text = client.get("/").content.decode()

    assert one.latest_progress is None and one.line == "" and one.efficiency is None
    assert "Running trainings" in text and "never</span>" in text


def test_other_users_and_evaluations_are_excluded():
    training()
    training(name="evaluate", on="seren-002", kind="evaluation")

    assert [one.job.name for one in seen()] == ["pretrain"]
    assert seen("ben") == []


def test_work_at_risk_counts_from_the_last_good_checkpoint():
    one, now = training(), clock.now()
    for step, hours, verdict in ((1, 3, ""), (2, 2, ""), (3, 1, "bad")):
        at = now - hours * HOUR
        Checkpoint.objects.create(
            job=one.job, attempt=one, step=step, path=f"/c/{step}", saved_at=at, durable_at=at, verdict=verdict
        )

    assert seen()[0].saved_at == now - 2 * HOUR


def test_lost_work_of_a_failed_attempt_reduces_ettr():
    one, now = training(hours=2), clock.now()
    Attempt.objects.filter(pk=one.pk).update(ended_at=now - HOUR, state="NODE_FAIL")
    Attempt.objects.create(job=one.job, number=2, key="again", promised_at=now - HOUR, confirmed_at=now - HOUR / 2)

    # two hours on the wall; the first try saved nothing, the second began to run half an hour ago
    assert ledger_facts.job_efficiency([one.job_id], now)[one.job_id].ettr == pytest.approx(0.25, abs=0.01)


def test_wait_between_two_attempts_reduces_ettr_but_not_goodput():
    one, now = training(hours=4), clock.now()
    Attempt.objects.filter(pk=one.pk).update(ended_at=now - 3 * HOUR, state="NODE_FAIL")
    Attempt.objects.create(job=one.job, number=2, key="again", promised_at=now - HOUR, confirmed_at=now - HOUR)

    efficiency = ledger_facts.job_efficiency([one.job_id], now)[one.job_id]

    # of two hours in which it held GPUs one was lost; two more hours it waited
    assert (efficiency.goodput, efficiency.ettr) == pytest.approx((0.5, 0.25), abs=0.01)


def test_home_page_shows_trainings_with_a_constant_number_of_queries():
    client = Client()
    client.force_login(make.user("ada"))
    training()
    client.get("/")
    with CaptureQueriesContext(connection) as few:
        assert "Running trainings" in client.get("/").content.decode()
    training(name="second", on="seren-002")

    with CaptureQueriesContext(connection) as more:
        assert "second" in client.get("/").content.decode()

    assert len(more) == len(few)
