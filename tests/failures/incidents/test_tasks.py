"""Celery tasks are called by name: each name must be registered."""

from __future__ import annotations

import pytest
from celery import current_app
from celery.signals import before_task_publish

from failures import tasks
from jobs.actions import wake
from tests.failures import make


def test_every_beat_entry_names_a_task():
    current_app.loader.import_default_modules()

    assert {line["task"] for line in current_app.conf.beat_schedule.values()} <= set(current_app.tasks)


@pytest.mark.django_db
def test_diagnosis_is_woken_after_the_commit(django_capture_on_commit_callbacks):
    sent = []

    @before_task_publish.connect
    def collect(sender, body, **_):
        arguments, _, _ = body
        sent.append((sender, *arguments))

    with django_capture_on_commit_callbacks(execute=True):
        wake.request_diagnoses()
        assert sent == []

    assert sent == [("failures.diagnose",)]


@pytest.mark.django_db
def test_task_runs_the_loop(tmp_path):
    attempt = make.failed(tmp_path)

    assert (tasks.diagnose_recent_failures(), tasks.diagnose_missed_failures()) == (2, 0)
    assert make.of(attempt).root_cause == "TypeError"
