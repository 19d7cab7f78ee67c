"""The judge finds preemptions outside a contract in the rows that a preemption really writes."""

from datetime import timedelta

import pytest
from django.db import connection

from jobs.actions import jobs as job_actions
from jobs.actions import journal, progress
from jobs.models import ClusterCommand, Job
from tests import make
from tests.chaos import judge
from tests.chaos.record import read_preemptions

LIMITS = {"max_exempt_minutes": 60, "checkpoint_clause": "optional", "min_preemptions_per_day": 0, "policy": "acme"}


@pytest.fixture
def preempted(db):
    """A job without terms that was preempted."""
    make.cluster(nodes=1, **LIMITS)
    attempt = make.running(make.job(gpus_per_node=8, preemptible=True, checkpoint_dir="/ckpt"))
    job_actions.preempt(attempt.job, author=journal.SCHEDULER, why="Others need the GPUs.")
    return attempt


def breaches():
    with connection.cursor() as cursor:
        return list(judge.preempted_outside_contract(read_preemptions(cursor.cursor)))


def test_preemption_within_its_contract_is_no_violation(preempted):
    with connection.cursor() as cursor:
        assert [found.attempt for found in read_preemptions(cursor.cursor)] == [preempted.key]
    assert breaches() == []


@pytest.mark.parametrize(
    ("terms", "breach"),
    [
        ({"preempt_exempt_time": timedelta(minutes=30)}, "within 1800 s of its start"),
        ({"preempt_at_checkpoint": True}, "without a new checkpoint"),
        (
            {"preemptions_per_day": 0},
            "although it had been preempted 0 times within a day, of 0 allowed",
        ),
        ({"preemptible": False}, "although its job is not preemptible"),
    ],
)
def test_preemption_outside_its_contract_is_found(preempted, terms, breach):
    Job.objects.filter(pk=preempted.job_id).update(**terms)  # as if Acme had not kept to the terms

    assert breaches() == [f"{preempted.key} was preempted {breach}"]


def test_checkpoint_before_the_preemption_keeps_the_contract(db):
    make.cluster(nodes=1, **LIMITS)
    job = make.job(gpus_per_node=8, preemptible=True, checkpoint_dir="/ckpt", preempt_at_checkpoint=True)
    attempt = make.running(job)
    noted = progress.record_attempt_heartbeats(attempt.key, [])
    saved = [progress.CheckpointReport(path="/ckpt/1", step=1, durable=True)]
    progress.record_checkpoints(noted, saved, journal.Author(by=attempt.key))

    job_actions.preempt(attempt.job, author=journal.SCHEDULER, why="Others need the GPUs.")

    assert breaches() == []


def test_withdrawn_preemption_does_not_count(preempted):
    Job.objects.filter(pk=preempted.job_id).update(preempt_at_checkpoint=True)
    ClusterCommand.objects.filter(attempt=preempted, kind="cancel").delete()

    assert breaches() == []
