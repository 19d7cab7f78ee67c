"""What accounting recorded, in the words of each version, and clusters that have none."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from jobs.core.lifecycle import State
from scheduling.backends import dialect
from scheduling.backends.base import AccountingUnavailable, ClusterUnreachable
from scheduling.backends.dialect import DIALECTS, MalformedResponse
from scheduling.backends.opening import open_backend
from scheduling.backends.slurm import ACCOUNTING_RETRY_S, SlurmBackend
from tests.backends.test_dialect import recorded
from tests.backends.test_slurm import UP, slurmrestd

SINCE = datetime(2026, 5, 1, tzinfo=UTC)
AT = int(SINCE.timestamp())


def row(job_id=7, *, submitted=AT, state="COMPLETED", **changed):
    """In the words of v0.0.40 and later."""
    plain = {
        "job_id": job_id,
        "name": "train",
        "user": "ada",
        "account": "nlp",
        "comment": {"administrator": "", "job": f"acme:k{job_id}", "system": ""},
        "state": {"current": state, "reason": "None"} if isinstance(state, str) else state,
        "exit_code": {"status": ["SUCCESS"], "return_code": {"set": True, "infinite": False, "number": 0}},
        "time": {"submission": submitted, "start": submitted + 1, "end": submitted + 9},
        "nodes": "gpu[1-2]",
    }
    return plain | changed


@pytest.fixture
def asked():
    """(backend, answers of /slurmdb/, heard, a clock to move)"""
    answers, clock = dict(UP), [0.0]
    with slurmrestd(answers) as (address, heard):
        backend = SlurmBackend(address, monotonic=lambda: clock[0])
        yield backend, answers, heard, clock
        backend.close()


def has(answers, *rows):
    found = 200, {"jobs": list(rows), "errors": []}
    answers |= {"GET /slurmdb/job/7": found, "GET /slurmdb/jobs": found}


def test_a_recorded_answer_of_22_05_is_read():
    seen = {job.name: job for job in dialect.parse_accounting_jobs(recorded("accounting-v0.0.38")["accounted_since"])}

    assert {name: (job.state, job.exit_code, job.signal) for name, job in seen.items()} == {
        "gang": (State.RUNNING, None, None),
        "exit3": (State.FAILED, None, None),  # that release says SUCCESS and 0 of every exit code
        "killed": (State.FAILED, 0, 9),
        "waits": (State.PENDING, None, None),
        "cancelled": (State.CANCELLED, 0, None),
        "good": (State.COMPLETED, 0, None),
        "forever": (State.RUNNING, None, None),
    }
    assert seen["good"].key == "good"
    assert seen["gang"].key == ""  # it stores a comment when the job ends
    assert (seen["gang"].nodes, seen["waits"].nodes) == (("node2", "node3"), ())
    assert seen["good"].submitted_at <= seen["good"].started_at <= seen["good"].ended_at


@pytest.mark.parametrize("current", ["COMPLETED", ["COMPLETED"]])
@pytest.mark.parametrize("plain", [True, False])
def test_a_job_is_read_in_either_spelling(current, plain):
    def number(value):
        return value if plain else {"set": True, "infinite": False, "number": value}

    times = {"submission": number(AT), "start": number(AT + 1), "end": number(AT + 9)}
    code = {"status": "SUCCESS", "return_code": number(0)}

    seen = dialect.parse_accounting_job(row(state={"current": current, "reason": "None"}, time=times, exit_code=code))

    assert (seen.backend_id, seen.key, seen.state, seen.exit_code) == ("7", "k7", State.COMPLETED, 0)
    assert (seen.submitted_at, seen.ended_at) == (SINCE, SINCE + timedelta(seconds=9))
    assert (seen.user, seen.account, seen.nodes, seen.reason) == ("ada", "nlp", ("gpu1", "gpu2"), "")


@pytest.mark.parametrize("key", ["signal_id", "id"])
def test_the_signal_that_ended_a_job_is_read(key):
    code = {"status": ["SIGNALED"], "return_code": None, "signal": {key: 9, "name": "Killed"}}

    assert dialect.parse_accounting_job(row(state="FAILED", exit_code=code)).signal == 9


@pytest.mark.parametrize("changed", [{"nodes": "gpu[1-"}, {"nodes": 7}, {"user": None}, {"name": {}}, {"account": 3}])
def test_what_does_not_tell_how_a_job_ended_may_be_odd(changed):
    assert dialect.parse_accounting_job(row(**changed)).state == State.COMPLETED


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"state": "COMPLETED "}, "state"),
        ({"state": {"current": ["ASLEEP"]}}, "job_state"),
        ({"comment": 7}, "comment"),
        ({"time": None}, "time"),
        ({"exit_code": "0:0"}, "exit_code"),
    ],
)
def test_what_tells_how_a_job_ended_may_not_be_odd(changed, field):
    with pytest.raises(MalformedResponse, match=field):
        dialect.parse_accounting_job({**row(), **changed})


@pytest.mark.parametrize("version", DIALECTS)
def test_every_version_is_asked_at_its_own_path(version):
    answers = {**UP, "GET /slurmdb/job/7": (200, {"jobs": [row()], "errors": []})}
    with slurmrestd(answers, api=version) as (address, heard):
        backend = open_backend(address)
        (seen,) = backend.accounted("7")
        backend.close()

    assert seen.key == "k7"
    assert heard[-1][1] == f"/slurmdb/{version}/job/7"


def test_jobs_of_one_id_come_oldest_first(asked):
    backend, answers, *_ = asked
    has(answers, row(submitted=AT + 50), row(submitted=AT))

    assert [job.submitted_at for job in backend.accounted("7")] == [SINCE, SINCE + timedelta(seconds=50)]


@pytest.mark.parametrize(
    "nothing",
    [
        (200, {"jobs": [], "errors": []}),
        (200, {"jobs": [], "errors": [{"error_number": 9003, "error": "Nothing found with query"}]}),
        (404, {"errors": [{"error_number": 2017, "error": "Invalid job id specified"}]}),
    ],
)
def test_a_job_that_accounting_does_not_know_is_no_error(asked, nothing):
    backend, answers, *_ = asked
    answers["GET /slurmdb/job/7"] = nothing

    assert backend.accounted("7") == []


@pytest.mark.parametrize("backend_id", ["", "abc", "7_1", "7/../8"])
def test_an_id_that_is_no_number_is_never_asked_for(asked, backend_id):
    """A slurmrestd of 22.05 ends itself at such a question."""
    backend, _, heard, _ = asked

    assert backend.accounted(backend_id) == []
    assert heard == []


def test_jobs_submitted_since_then_are_chosen_from_those_that_were_alive(asked):
    backend, answers, heard, _ = asked
    has(answers, row(8, submitted=AT + 5), row(9, submitted=AT - 5), row(7, submitted=AT))

    assert [job.backend_id for job in backend.accounted_since(SINCE)] == ["7", "8"]
    assert heard[-1][1] == f"/slurmdb/v0.0.42/jobs?start_time=uts{AT}"


def test_an_unreadable_row_that_may_be_ours_leaves_the_question_open(asked):
    backend, answers, *_ = asked
    has(answers, row(7), {**row(8), "state": None})

    with pytest.raises(ClusterUnreachable, match="job 8: state is missing"):
        backend.accounted_since(SINCE)


def test_an_unreadable_row_of_somebody_else_is_passed_over(asked):
    backend, answers, *_ = asked
    has(answers, row(7), {**row(8), "state": None, "comment": {"job": "theirs"}})

    assert [job.backend_id for job in backend.accounted_since(SINCE)] == ["7"]


def test_a_cluster_without_accounting_says_so_and_is_not_asked_again_for_a_while(asked):
    backend, answers, heard, clock = asked
    answers["GET /slurmdb/job/7"] = 404, "Unable find requested URL."
    for question in (lambda: backend.accounted("7"), lambda: backend.accounted_since(SINCE)):
        with pytest.raises(AccountingUnavailable):
            question()
    assert sum("slurmdb" in path for _, path, *_ in heard) == 1

    has(answers, row())
    clock[0] += ACCOUNTING_RETRY_S
    assert len(backend.accounted("7")) == 1


@pytest.mark.parametrize(
    "said",
    [
        (200, {"jobs": [], "errors": [{"error_number": 7000, "error": "Unable to connect to database"}]}),
        (500, "oops"),
        (401, "Authentication failure"),
        (200, "not json"),
        (200, {"jobs": 7}),
    ],
)
def test_accounting_that_does_not_answer_is_unreachable(asked, said):
    backend, answers, *_ = asked
    answers["GET /slurmdb/job/7"] = said

    with pytest.raises(ClusterUnreachable):
        backend.accounted("7")


def test_a_version_that_is_not_spoken_any_more_does_not_mean_that_there_is_no_accounting():
    with slurmrestd({**UP, "GET /slurmdb/job/7": (200, {"jobs": [row()], "errors": []})}) as (address, _):
        backend = open_backend(address, api="v0.0.38")
        with pytest.raises(ClusterUnreachable):
            backend.accounted("7")

        assert len(backend.accounted("7")) == 1
        backend.close()
