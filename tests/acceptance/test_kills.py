"""Kill one process of the running demo with -9, then everything, and start again: no job is lost, no GPU held twice."""

import os
import signal

import pytest

from tests.acceptance.instance import Instance
from tests.chaos import judge
from tests.chaos.record import Record
from tests.patience import until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1800)]


def ids(running: Instance) -> set[str]:
    return {row[0] for row in running.sql("SELECT public_id FROM jobs_job")}


def ended(running: Instance) -> dict[str, str]:
    finals = "SELECT public_id, state FROM jobs_job WHERE state NOT IN ('PENDING', 'RUNNING', 'SUSPENDED')"
    return dict(running.sql(finals).fetchall())


@pytest.mark.parametrize("victim", ["workers", "beat", "web", "valkey", "postgres", "cluster"])
def test_no_job_is_lost_and_no_gpu_held_twice(instance, victim):
    instance.start().ready()
    until(lambda: len(ended(instance)) >= 3, what="no job came to an end")
    os.kill(until(lambda: instance.pids().get(victim)), signal.SIGKILL)
    before, over = (set(), {}) if victim == "postgres" else (ids(instance), ended(instance))

    instance.process.kill()
    instance.process.wait()
    instance.start().ready()

    assert before <= ids(instance)
    assert over.items() <= ended(instance).items()
    until(lambda: len(ended(instance)) >= len(over) + 5, what="jobs do not move any more")
    assert judge.violations(Record(instance).evidence(accepted={}, final_once=over)) == []
    assert instance.stop() == 0
