"""A look costs what moved: only those are asked for in full, and everybody now and then."""

from __future__ import annotations

import pytest

from jobs.core.lifecycle import State
from scheduling.backends.base import ClusterUnreachable
from scheduling.backends.opening import open_backend
from scheduling.backends.seen import FULL_LISTING_EVERY, MAX_SINGLE_JOB_REQUESTS
from tests.backends.test_slurm import UP, slurmrestd


def job(number, *states, **more):
    return {"job_id": number, "name": f"j{number}", "job_state": list(states), "comment": f"acme:k{number}", **more}


def standing(*jobs):
    return [{"job_id": str(one["job_id"]), "state": one["job_state"]} for one in jobs]


class Cluster:
    """Jobs behind a slurmrestd of v0.0.42 that counts what it was asked."""

    def __init__(self):
        self.answers = dict(UP)

    def has(self, *jobs):
        self.answers["GET /jobs"] = 200, {"jobs": list(jobs), "errors": []}
        self.answers["GET /jobs/state/"] = 200, {"jobs": standing(*jobs), "errors": []}
        for one in jobs:
            self.answers[f"GET /job/{one['job_id']}"] = 200, {"jobs": [one], "errors": []}


@pytest.fixture
def cluster():
    made = Cluster()
    with slurmrestd(made.answers) as (made.address, made.heard):
        made.backend = open_backend(made.address)
        yield made


def asked(cluster):
    """Paths since the last time."""
    paths = [path.removeprefix("/slurm/v0.0.42/") for _, path, *_ in cluster.heard]
    cluster.heard.clear()
    return [path for path in paths if not path.endswith("ping")]


def test_the_second_look_asks_for_states_alone(cluster):
    cluster.has(job(1, "RUNNING"), job(2, "PENDING"))
    first = cluster.backend.jobs()
    assert asked(cluster) == ["jobs"]

    assert cluster.backend.jobs() == first
    assert asked(cluster) == ["jobs/state/"]


def test_whoever_moved_or_came_is_asked_for_and_whoever_is_gone_is_gone(cluster):
    cluster.has(job(1, "RUNNING"), job(2, "PENDING"), job(3, "RUNNING"))
    cluster.backend.jobs()
    asked(cluster)

    cluster.has(job(1, "RUNNING"), job(2, "RUNNING", nodes="n1"), job(4, "PENDING"))
    seen = cluster.backend.jobs()

    assert {one.backend_id: one.state for one in seen} == {"1": "RUNNING", "2": "RUNNING", "4": "PENDING"}
    assert asked(cluster) == ["jobs/state/", "job/2", "job/4"]


def test_a_flag_that_went_is_a_move(cluster):
    cluster.has(job(1, "COMPLETED", "COMPLETING"))
    cluster.backend.jobs()

    cluster.has(job(1, "COMPLETED", exit_code={"return_code": 0}))

    assert cluster.backend.jobs()[0].flags == frozenset()


def test_when_many_moved_one_look_is_cheaper(cluster):
    cluster.has(*[job(number, "PENDING") for number in range(1, MAX_SINGLE_JOB_REQUESTS + 2)])
    cluster.backend.jobs()
    asked(cluster)

    cluster.has(*[job(number, "RUNNING") for number in range(1, MAX_SINGLE_JOB_REQUESTS + 2)])

    assert {one.state for one in cluster.backend.jobs()} == {State.RUNNING}
    assert asked(cluster) == ["jobs/state/", "jobs"]


def test_one_that_was_forgotten_between_two_questions_does_no_harm(cluster):
    cluster.has(job(1, "RUNNING"))
    cluster.backend.jobs()
    cluster.has(job(1, "RUNNING"), job(2, "PENDING"))
    gone = {"errors": [{"error_number": 2017, "error": "Invalid job id specified"}]}
    cluster.answers["GET /job/2"] = 404, gone
    cluster.answers["GET /jobs"] = 200, {"jobs": [job(1, "RUNNING")], "errors": []}

    assert [one.backend_id for one in cluster.backend.jobs()] == ["1"]


def test_everything_is_asked_for_anew_now_and_then(cluster):
    cluster.has(job(1, "RUNNING", state_description="old"))
    for _ in range(FULL_LISTING_EVERY):
        cluster.backend.jobs()
    cluster.has(job(1, "RUNNING", state_description="new"))  # a reason is none of what a state tells

    assert cluster.backend.jobs()[0].reason == "new"


def test_a_doubtful_submission_is_found_though_it_came_a_moment_ago(cluster):
    cluster.has()
    cluster.backend.jobs()

    cluster.has(job(7, "PENDING"))

    assert cluster.backend.find("k7").backend_id == "7"


def test_nodes_that_did_not_move_are_not_sent_again(cluster):
    node = {"name": "n1", "state": ["IDLE"], "cpus": 4}
    cluster.answers["GET /nodes"] = 200, {"nodes": [node], "errors": []}
    first = cluster.backend.nodes()

    cluster.answers["GET /nodes"] = 200, {"nodes": [], "warnings": [{"description": "No node changes"}], "errors": []}
    assert cluster.backend.nodes() == first
    assert "nodes?update_time=" in asked(cluster)[-1]

    cluster.answers["GET /nodes"] = 200, {"nodes": [{**node, "state": ["DOWN"]}], "errors": []}
    assert cluster.backend.nodes()[0].state == "DOWN"


def test_the_oldest_version_says_in_one_word_that_nothing_moved():
    one = {"job_id": 1, "name": "j", "job_state": "RUNNING"}
    answers = {**UP, "GET /jobs": (200, {"jobs": [one], "errors": []})}
    with slurmrestd(answers, api="v0.0.38") as (address, heard):
        backend = open_backend(address)
        first = backend.jobs()
        answers["GET /jobs"] = 304, ""

        assert backend.jobs() == first
        assert "update_time=" in heard[-1][1]


def test_a_question_for_news_that_fails_is_followed_by_one_for_everything(cluster):
    node = {"name": "n1", "state": ["IDLE"], "cpus": 4}
    cluster.answers["GET /nodes"] = 200, {"nodes": [node], "errors": []}
    cluster.backend.nodes()

    cluster.answers["GET /nodes"] = 500, {"errors": [{"description": "Unspecified error", "error_number": -1}]}
    with pytest.raises(ClusterUnreachable, match="Unspecified"):
        cluster.backend.nodes()

    assert ["update_time" in path for path in asked(cluster)[-2:]] == [True, False]
