"""Unreadable rows: only the row is set aside, the others are read, and nothing is concluded about its job or node."""

from __future__ import annotations

import pytest

from acmeweb.common.errors import MalformedResponse
from jobs.core.lifecycle import State
from scheduling.backends import dialect
from scheduling.backends.base import ClusterUnreachable
from scheduling.backends.dialect import DIALECTS
from scheduling.backends.opening import open_backend
from tests.scheduling.backends.test_dialect import recorded
from tests.scheduling.backends.test_seen import Cluster, job, requested_paths
from tests.scheduling.backends.test_slurm import slurmrestd

NODE = {"name": "n1", "state": ["IDLE"], "cpus": 4}
BAD_STATE, BAD_NODES = {"job_state": ["ASLEEP"]}, {"nodes": "gpu[1-"}


@pytest.fixture
def cluster():
    made = Cluster()
    with slurmrestd(made.answers) as (made.address, made.requests):
        made.backend = open_backend(made.address)
        yield made
        made.backend.close()


def names(listing):
    return [(row.name, row.key) for row in listing.unreadable]


@pytest.mark.parametrize("version", DIALECTS)
@pytest.mark.parametrize("bad", [BAD_STATE, BAD_NODES, {"start_time": {}}, {"exit_code": "x", "job_state": ["FAILED"]}])
def test_one_unreadable_job_among_recorded_ones_is_set_aside(version, bad):
    answer = recorded(version)["jobs"]
    answer["jobs"][2] |= bad
    if bad == {"start_time": {}}:
        answer["jobs"][2]["start_time"] = {"number": "soon"}

    listing = dialect.parse_jobs(answer)

    assert len(listing) == len(answer["jobs"]) - 1
    assert names(listing) == [(str(answer["jobs"][2]["job_id"]), answer["jobs"][2]["comment"].removeprefix("acme:"))]
    assert listing.unreadable[0].sentence.startswith(f"job {answer['jobs'][2]['job_id']}: ")


@pytest.mark.parametrize("version", DIALECTS)
@pytest.mark.parametrize("bad", [{"cpus": "many"}, {"gres": 8}, {"boot_time": 10**30}])
def test_one_unreadable_node_among_recorded_ones_is_set_aside(version, bad):
    answer = recorded(version)["nodes"]
    broken, *others = answer["nodes"]
    broken |= bad

    listing = dialect.parse_nodes(answer)

    assert [node.name for node in listing] == [other["name"] for other in others]
    assert [row.name for row in listing.unreadable] == [broken["name"]]
    assert listing.hides_node(broken["name"])
    assert not listing.hides_node("node5")


@pytest.mark.parametrize("name", [None, "", 7, ["n"], "x" * 1000])
def test_node_without_a_usable_name_may_be_any_unlisted_node(name):
    listing = dialect.parse_nodes({"nodes": [NODE, {"name": name, "state": ["IDLE"]}]})

    assert [node.name for node in listing] == ["n1"]
    assert listing.hides_node("n2") == (not isinstance(name, str) or not name)


@pytest.mark.parametrize("row", [None, 7, "job", [], {}, {"job_id": None, "comment": 7}])
def test_job_without_id_and_key_may_be_any_unlisted_job(row):
    listing = dialect.parse_jobs({"jobs": [job(1, "RUNNING"), row]})

    assert names(listing) == [("", "")]
    assert listing.hides_job("12", "k12")
    assert listing.hides_job("", "k12")


@pytest.mark.parametrize(
    ("row", "hidden"),
    [
        (job(12, "ASLEEP"), True),
        (job(13, "ASLEEP"), False),
        ({**job(12, "ASLEEP"), "comment": "somebody else's"}, True),
        ({**job(13, "ASLEEP"), "comment": "somebody else's"}, False),
        ({**job(13, "ASLEEP"), "comment": 7}, False),
        ({**job(13, "RUNNING"), "job_id": "x", "comment": "acme:k12"}, True),
        ({**job(13, "RUNNING"), "job_id": "x", "comment": "somebody else's"}, False),
    ],
)
def test_unreadable_row_hides_only_the_job_that_it_may_be(row, hidden):
    listing = dialect.parse_jobs({"jobs": [job(1, "RUNNING"), row]})

    assert listing.hides_job("12", "k12") is hidden


def test_row_with_an_unreadable_comment_may_be_a_submission_with_unknown_outcome():
    readable = dialect.parse_jobs({"jobs": [job(1, "RUNNING"), {**job(13, "ASLEEP"), "comment": "theirs"}]})
    unreadable = dialect.parse_jobs({"jobs": [job(1, "RUNNING"), {**job(13, "ASLEEP"), "comment": 7}]})

    assert not readable.hides_job("", "k12")
    assert unreadable.hides_job("", "k12")


@pytest.mark.parametrize("read", [dialect.parse_jobs, dialect.parse_nodes, dialect.parse_job_states])
def test_response_with_mostly_unreadable_rows_is_malformed(read):
    with pytest.raises(MalformedResponse, match="1 of 1 "):
        read({"jobs": [{}], "nodes": [{}]})


def test_readable_jobs_are_listed_and_the_unreadable_one_is_named(cluster):
    cluster.has(job(1, "RUNNING"), job(2, "ASLEEP"), job(3, "PENDING"))

    seen = cluster.backend.jobs()

    assert [one.backend_id for one in seen] == ["1", "3"]
    assert names(seen) == [("2", "k2")]


def test_job_that_becomes_unreadable_is_set_aside_as_last_seen(cluster):
    cluster.has(job(1, "RUNNING"), job(2, "RUNNING", nodes="n1", gres_detail=["gpu:2(IDX:0-1)"]))
    cluster.backend.jobs()
    cluster.has(job(1, "RUNNING"), job(2, "ASLEEP"))

    seen = cluster.backend.jobs()

    assert [one.backend_id for one in seen] == ["1"]
    assert names(seen) == [("2", "k2")]
    assert seen.unreadable[0].last_seen.gpus == {"n1": (0, 1)}


def test_job_that_was_never_readable_is_fetched_at_each_poll(cluster):
    """The GPUs that it holds are unknown."""
    cluster.has(job(1, "RUNNING"), job(2, "ASLEEP"))
    cluster.backend.jobs()
    cluster.backend.jobs()
    requested_paths(cluster)

    cluster.backend.jobs()

    assert requested_paths(cluster) == ["jobs/state/", "job/2"]


def test_unreadable_job_that_was_read_before_is_fetched_again_when_its_state_changes(cluster):
    cluster.has(job(1, "RUNNING"), job(2, "RUNNING"))
    cluster.backend.jobs()
    cluster.has(job(1, "RUNNING"), job(2, "ASLEEP"))
    cluster.backend.jobs()
    cluster.backend.jobs()
    requested_paths(cluster)

    cluster.backend.jobs()
    assert requested_paths(cluster) == ["jobs/state/"]

    cluster.has(job(1, "RUNNING"), job(2, "COMPLETED"))
    seen = cluster.backend.jobs()
    assert {one.backend_id: one.state for one in seen} == {"1": State.RUNNING, "2": State.COMPLETED}
    assert seen.unreadable == ()


def test_unreadable_job_that_disappears_is_forgotten(cluster):
    cluster.has(job(1, "RUNNING"), job(2, "ASLEEP"))
    cluster.backend.jobs()
    cluster.has(job(1, "RUNNING"))

    assert cluster.backend.jobs().unreadable == ()


def test_row_without_an_id_in_the_list_of_states_may_be_any_absent_job(cluster):
    cluster.has(job(1, "RUNNING"), job(2, "RUNNING"))
    cluster.backend.jobs()
    states = [{"job_id": "1", "state": ["RUNNING"]}, {"job_id": None, "state": ["RUNNING"]}]
    cluster.answers["GET /jobs/state/"] = 200, {"jobs": states, "errors": []}

    seen = cluster.backend.jobs()

    assert [one.backend_id for one in seen] == ["1"]
    assert seen.hides_job("2", "k2")


def test_lookup_by_key_is_unreachable_while_an_unreadable_row_may_be_the_job(cluster):
    cluster.has(job(1, "RUNNING"), {**job(2, "ASLEEP"), "comment": 7})

    assert cluster.backend.find("k1").backend_id == "1"
    with pytest.raises(ClusterUnreachable, match="unreadable"):
        cluster.backend.find("k2")


def test_unreadable_nodes_stay_listed_while_nothing_changes(cluster):
    rows = [NODE, {**NODE, "name": "n2", "cpus": "many"}]
    cluster.answers["GET /nodes"] = 200, {"nodes": rows, "errors": []}
    cluster.backend.nodes()
    cluster.answers["GET /nodes"] = 200, {"nodes": [], "errors": []}

    assert [row.name for row in cluster.backend.nodes().unreadable] == ["n2"]
