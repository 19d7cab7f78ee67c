"""Cost of polling: only changed jobs are fetched in full, and all jobs at intervals."""

from __future__ import annotations

import pytest

from jobs.core.lifecycle import State
from scheduling.backends.base import ClusterUnreachable
from scheduling.backends.opening import open_backend
from scheduling.backends.seen import FULL_LISTING_EVERY, MAX_SINGLE_JOB_REQUESTS
from tests.scheduling.backends.test_slurm import UP, slurmrestd


def job(number, *states, **more):
    return {"job_id": number, "name": f"j{number}", "job_state": list(states), "comment": f"acme:k{number}", **more}


def state_rows(*jobs):
    return [{"job_id": str(row["job_id"]), "state": row["job_state"]} for row in jobs]


class Cluster:
    """Jobs behind a slurmrestd of v0.0.42 that records its requests."""

    def __init__(self):
        self.answers = dict(UP)

    def has(self, *jobs):
        self.answers["GET /jobs"] = 200, {"jobs": list(jobs), "errors": []}
        self.answers["GET /jobs/state/"] = 200, {"jobs": state_rows(*jobs), "errors": []}
        for row in jobs:
            self.answers[f"GET /job/{row['job_id']}"] = 200, {"jobs": [row], "errors": []}


@pytest.fixture
def cluster():
    server = Cluster()
    with slurmrestd(server.answers) as (server.address, server.requests):
        server.backend = open_backend(server.address)
        yield server


def requested_paths(cluster):
    """Paths requested since the last call."""
    paths = [path.removeprefix("/slurm/v0.0.42/") for _, path, *_ in cluster.requests]
    cluster.requests.clear()
    return [path for path in paths if not path.endswith("ping")]


def test_second_poll_requests_only_states(cluster):
    cluster.has(job(1, "RUNNING"), job(2, "PENDING"))
    first = cluster.backend.jobs()
    assert requested_paths(cluster) == ["jobs"]

    assert cluster.backend.jobs() == first
    assert requested_paths(cluster) == ["jobs/state/"]


def test_new_and_changed_jobs_are_fetched_and_missing_ones_are_dropped(cluster):
    cluster.has(job(1, "RUNNING"), job(2, "PENDING"), job(3, "RUNNING"))
    cluster.backend.jobs()
    requested_paths(cluster)

    cluster.has(job(1, "RUNNING"), job(2, "RUNNING", nodes="n1"), job(4, "PENDING"))
    seen = cluster.backend.jobs()

    assert {row.backend_id: row.state for row in seen} == {"1": "RUNNING", "2": "RUNNING", "4": "PENDING"}
    assert requested_paths(cluster) == ["jobs/state/", "job/2", "job/4"]


def test_removed_flag_counts_as_a_change(cluster):
    cluster.has(job(1, "COMPLETED", "COMPLETING"))
    cluster.backend.jobs()

    cluster.has(job(1, "COMPLETED", exit_code={"return_code": 0}))

    assert cluster.backend.jobs()[0].flags == frozenset()


def test_many_changes_are_fetched_with_one_listing(cluster):
    cluster.has(*[job(number, "PENDING") for number in range(1, MAX_SINGLE_JOB_REQUESTS + 2)])
    cluster.backend.jobs()
    requested_paths(cluster)

    cluster.has(*[job(number, "RUNNING") for number in range(1, MAX_SINGLE_JOB_REQUESTS + 2)])

    assert {row.state for row in cluster.backend.jobs()} == {State.RUNNING}
    assert requested_paths(cluster) == ["jobs/state/", "jobs"]


def test_job_forgotten_between_two_requests_is_dropped(cluster):
    cluster.has(job(1, "RUNNING"))
    cluster.backend.jobs()
    cluster.has(job(1, "RUNNING"), job(2, "PENDING"))
    gone = {"errors": [{"error_number": 2017, "error": "Invalid job id specified"}]}
    cluster.answers["GET /job/2"] = 404, gone
    cluster.answers["GET /jobs"] = 200, {"jobs": [job(1, "RUNNING")], "errors": []}

    assert [row.backend_id for row in cluster.backend.jobs()] == ["1"]


def test_all_jobs_are_fetched_again_at_intervals(cluster):
    cluster.has(job(1, "RUNNING", state_description="old"))
    for _ in range(FULL_LISTING_EVERY):
        cluster.backend.jobs()
    cluster.has(job(1, "RUNNING", state_description="new"))  # a reason is not part of the state

    assert cluster.backend.jobs()[0].reason == "new"


def test_submission_with_unknown_outcome_is_found_immediately(cluster):
    cluster.has()
    cluster.backend.jobs()

    cluster.has(job(7, "PENDING"))

    assert cluster.backend.find("k7").backend_id == "7"


def test_unchanged_nodes_are_not_fetched_again(cluster):
    node = {"name": "n1", "state": ["IDLE"], "cpus": 4}
    cluster.answers["GET /nodes"] = 200, {"nodes": [node], "errors": []}
    first = cluster.backend.nodes()

    cluster.answers["GET /nodes"] = 200, {"nodes": [], "warnings": [{"description": "No node changes"}], "errors": []}
    assert cluster.backend.nodes() == first
    assert "nodes?update_time=" in requested_paths(cluster)[-1]

    cluster.answers["GET /nodes"] = 200, {"nodes": [{**node, "state": ["DOWN"]}], "errors": []}
    assert cluster.backend.nodes()[0].state == "DOWN"


def test_oldest_version_responds_not_modified_without_changes():
    row = {"job_id": 1, "name": "j", "job_state": "RUNNING"}
    answers = {**UP, "GET /jobs": (200, {"jobs": [row], "errors": []})}
    with slurmrestd(answers, api="v0.0.38") as (address, requests):
        backend = open_backend(address)
        first = backend.jobs()
        answers["GET /jobs"] = 304, ""

        assert backend.jobs() == first
        assert "update_time=" in requests[-1][1]


def test_failed_request_for_changes_is_followed_by_a_full_listing(cluster):
    node = {"name": "n1", "state": ["IDLE"], "cpus": 4}
    cluster.answers["GET /nodes"] = 200, {"nodes": [node], "errors": []}
    cluster.backend.nodes()

    cluster.answers["GET /nodes"] = 500, {"errors": [{"description": "Unspecified error", "error_number": -1}]}
    with pytest.raises(ClusterUnreachable, match="Unspecified"):
        cluster.backend.nodes()

    assert ["update_time" in path for path in requested_paths(cluster)[-2:]] == [True, False]
