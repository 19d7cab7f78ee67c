"""Kill one process of the running demo with -9, then everything, and start again: no job is lost, no GPU held twice."""

import os
import signal

import pytest

from tests.acceptance.instance import Instance
from tests.chaos import judge
from tests.chaos.record import Record
from tests.patience import until

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800)]


def ids(running: Instance) -> set[str]:
    return {row[0] for row in running.sql("SELECT public_id FROM jobs_job")}


def ended(running: Instance) -> dict[str, str]:
    finals = "SELECT public_id, state FROM jobs_job WHERE state NOT IN ('PENDING', 'RUNNING', 'SUSPENDED')"
    return dict(running.sql(finals).fetchall())


def test_no_job_is_lost_and_no_gpu_held_twice(instance):
    instance.start().ready()
    until(lambda: len(ended(instance)) >= 3, what="no job came to an end")
    for victim in ("workers", "web", "valkey", "cluster", "postgres"):
        before, over = ids(instance), ended(instance)
        os.kill(until(lambda: instance.pids().get(victim)), signal.SIGKILL)  # noqa: B023

        instance.process.kill()
        instance.process.wait()
        instance.start().ready()

        assert before <= ids(instance), victim
        assert over.items() <= ended(instance).items(), victim
        until(lambda: len(ended(instance)) >= len(over) + 3, what=f"no job ended after {victim} was killed")  # noqa: B023
        assert judge.violations(Record(instance).evidence({}, over, withdrawn=(), effects=tuple)) == [], victim
    assert instance.stop() == 0
