"""The accounting storage: jobs that the controller forgot, queries, and retention."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jobs.core.lifecycle import State
from scheduling.simulation.machines.values import ProcessExit, SimulatedJob
from scheduling.simulation.slurm.accounting import parse_accounting_query
from scheduling.simulation.slurm.store import ACCOUNTING_RETENTION_S, StateStore
from scheduling.simulation.slurm.values import StateChanges
from scheduling.simulation.slurm.wire import InvalidRequest
from tests.scheduling.simulation.machines.make import NOW, request

from .make import snapshot


def ended_job(job_id: int, *, at: float = NOW, **changed) -> SimulatedJob:
    job_request = request(comment=f"acme:k3v9q2m7:j{job_id}.1", **changed)
    job = SimulatedJob(id=job_id, request=job_request, submitted_at=at - 100, started_at=at - 90, ended_at=at)
    return replace(job, state=State.FAILED, exit=ProcessExit(code=3))


@pytest.fixture
def store(tmp_path):
    store = StateStore(tmp_path / "cluster.sqlite3", most_accounted=5)
    store.begin(snapshot())
    yield store
    store.close()


def forget(store: StateStore, *jobs: SimulatedJob) -> None:
    store.write(StateChanges(jobs=jobs))
    store.write(StateChanges(forgotten=jobs))


def test_forgotten_job_is_accounted_with_its_comment_and_without_its_script(store):
    job = ended_job(1)

    forget(store, job)

    (stored,) = store.accounting_jobs(1)
    assert (stored.request.comment, stored.exit, stored.ended_at) == (job.request.comment, job.exit, job.ended_at)
    assert (stored.request.script, dict(stored.request.environment)) == ("", {})
    assert store.load().jobs == ()


def test_job_that_was_never_written_before_it_was_forgotten_is_accounted(store):
    store.write(StateChanges(forgotten=(ended_job(1),)))

    assert [job.id for job in store.accounting_jobs_since(0)] == [1]


def test_unknown_job_is_not_accounted(store):
    assert store.accounting_jobs(1) == []


def test_accounting_keeps_a_job_for_thirty_days(store):
    forget(store, ended_job(1), ended_job(2, at=NOW + 10))

    forget(store, ended_job(3, at=NOW + 5 + ACCOUNTING_RETENTION_S))

    assert [job.id for job in store.accounting_jobs_since(0)] == [2, 3]


def test_accounting_keeps_a_limited_number_of_jobs(store):
    forget(store, *(ended_job(number) for number in range(1, 9)))

    assert [job.id for job in store.accounting_jobs_since(0)] == [4, 5, 6, 7, 8]


def test_store_without_accounting_keeps_no_forgotten_job(tmp_path):
    store = StateStore(tmp_path / "cluster.sqlite3", accounting=False)
    store.begin(snapshot())

    forget(store, ended_job(1))

    assert store.accounting_jobs(1) == store.accounting_jobs_since(0) == []
    assert store.load().jobs == ()
    store.close()


@pytest.mark.parametrize(
    ("query", "matches"),
    [
        ({}, True),
        ({"start_time": str(int(NOW))}, True),
        ({"start_time": str(int(NOW) + 1)}, False),
        ({"start_time": f"uts{int(NOW)}"}, True),
        ({"start_time": "2000-01-01T00:00:00"}, True),
        ({"start_time": "2100-01-01T00:00:00+00:00"}, False),
        ({"end_time": str(int(NOW) - 100)}, True),
        ({"end_time": str(int(NOW) - 101)}, False),
        ({"users": "eve,ada"}, True),
        ({"users": "eve"}, False),
        ({"account": "nlp"}, False),
        ({"job_name": "train"}, True),
        ({"job_name": "trai"}, False),
        ({"users": "ada", "job_name": "other"}, False),
    ],
)
def test_query_matches_jobs_by_period_and_names(query, matches):
    assert parse_accounting_query(query).matches(ended_job(1)) is matches


def test_pending_job_is_in_every_period_after_its_submission():
    waiting = replace(ended_job(1), ended_at=0.0, state=State.PENDING)

    assert parse_accounting_query({"start_time": str(int(NOW) + 5000)}).matches(waiting)


@pytest.mark.parametrize("text", ["soon", "-1", "1" * 13, "٣", "2024-13-01"])
@pytest.mark.parametrize("field", ["start_time", "end_time"])
def test_a_moment_that_is_none_names_the_parameter(field, text):
    with pytest.raises(InvalidRequest, match=field):
        parse_accounting_query({field: text})
