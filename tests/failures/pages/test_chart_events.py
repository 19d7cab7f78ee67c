"""The events that the charts of a training mark."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client

from failures.models import Anomaly
from failures.queries.chart_events import chart_events
from jobs.core.lifecycle import State
from jobs.models import LatestProgress, TeamRole, clock
from tests import make

pytestmark = pytest.mark.django_db


def test_starts_failures_and_anomalies_are_events_in_the_order_of_time():
    first = make.ended(state=State.NODE_FAIL)
    second = make.running(first.job)
    now = clock.now()
    Anomaly.objects.create(
        cluster=first.job.cluster, symptom="loss_spike", severity="warn", attempt=second, since=now, why="Loss 9 < b"
    )
    first.confirmed_at, first.ended_at = now - timedelta(hours=2), now - timedelta(hours=1)
    first.cause = "NodeLost"
    first.save()

    events = chart_events(first.job)

    assert [(event.kind, event.text) for event in events] == [
        ("attempt", "Attempt 1 started."),
        ("failure", "Attempt 1 ended as NODE_FAIL: NodeLost."),
        ("attempt", "Attempt 2 started."),
        ("incident", "loss_spike: Loss 9 < b"),
    ]


def test_the_events_are_a_table_on_the_metrics_tab():
    make.team("pretraining", ada=TeamRole.RESEARCHER)
    attempt = make.running(make.job(by="ada", gpus_per_node=1, kind="pretrain"))
    LatestProgress.objects.create(attempt=attempt, at=clock.now(), step=7, loss=2.0)
    Anomaly.objects.create(
        cluster=attempt.job.cluster, symptom="nan", severity="bad", attempt=attempt, since=clock.now(), why="<b>loss"
    )
    client = Client()
    client.force_login(make.user("ada"))

    shown = client.get(f"/jobs/{attempt.job}/?tab=metrics").content.decode()

    assert 'data-kind="attempt"' in shown and 'data-kind="incident"' in shown and "&lt;b&gt;loss" in shown
    assert "<b>loss" not in shown
