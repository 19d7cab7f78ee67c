"""Parsing of accounting records in each version, and clusters without accounting."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from acmeweb.common.errors import MalformedResponse
from jobs.core.lifecycle import State
from scheduling.backends import dialect
from scheduling.backends.base import AccountingUnavailable, ClusterUnreachable
from scheduling.backends.dialect import DIALECTS
from scheduling.backends.opening import open_backend
from scheduling.backends.slurm import ACCOUNTING_RETRY_S, SlurmBackend
from tests.scheduling.backends.test_dialect import recorded
from tests.scheduling.backends.test_slurm import UP, slurmrestd

SINCE = datetime(2026, 5, 1, tzinfo=UTC)
AT = int(SINCE.timestamp())


def row(job_id=7, *, submitted=AT, state="COMPLETED", **changed):
    """A row in the format of v0.0.40 and later."""
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
def accounting():
    """(backend, responses of /slurmdb/, received requests, a clock that tests can move)"""
    answers, clock = dict(UP), [0.0]
    with slurmrestd(answers) as (address, requests):
        backend = SlurmBackend(address, monotonic=lambda: clock[0])
        yield backend, answers, requests, clock
        backend.close()


def has(answers, *rows):
    found = 200, {"jobs": list(rows), "errors": []}
    answers |= {"GET /slurmdb/job/7": found, "GET /slurmdb/jobs": found}


def test_recorded_response_of_22_05_is_parsed():
    seen = {job.name: job for job in dialect.parse_accounting_jobs(recorded("accounting-v0.0.38")["accounted_since"])}

    assert {name: (job.state, job.exit_code, job.signal) for name, job in seen.items()} == {
        "gang": (State.RUNNING, None, None),
        "exit3": (State.FAILED, None, None),  # that release reports SUCCESS and 0 for every exit code
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
def test_job_is_parsed_in_both_formats(current, plain):
    def number(value):
        return value if plain else {"set": True, "infinite": False, "number": value}

    times = {"submission": number(AT), "start": number(AT + 1), "end": number(AT + 9)}
    code = {"status": "SUCCESS", "return_code": number(0)}

    seen = dialect.parse_accounting_job(row(state={"current": current, "reason": "None"}, time=times, exit_code=code))

    assert (seen.backend_id, seen.key, seen.state, seen.exit_code) == ("7", "k7", State.COMPLETED, 0)
    assert (seen.submitted_at, seen.ended_at) == (SINCE, SINCE + timedelta(seconds=9))
    assert (seen.user, seen.account, seen.nodes, seen.reason) == ("ada", "nlp", ("gpu1", "gpu2"), "")


@pytest.mark.parametrize("key", ["signal_id", "id"])
def test_signal_that_ended_a_job_is_parsed(key):
    code = {"status": ["SIGNALED"], "return_code": None, "signal": {key: 9, "name": "Killed"}}

    assert dialect.parse_accounting_job(row(state="FAILED", exit_code=code)).signal == 9


@pytest.mark.parametrize("changed", [{"nodes": "gpu[1-"}, {"nodes": 7}, {"user": None}, {"name": {}}, {"account": 3}])
def test_malformed_fields_that_do_not_affect_the_outcome_are_ignored(changed):
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
def test_malformed_fields_that_affect_the_outcome_raise(changed, field):
    with pytest.raises(MalformedResponse, match=field):
        dialect.parse_accounting_job({**row(), **changed})


@pytest.mark.parametrize("version", DIALECTS)
def test_accounting_of_each_version_is_requested_at_its_own_path(version):
    answers = {**UP, "GET /slurmdb/job/7": (200, {"jobs": [row()], "errors": []})}
    with slurmrestd(answers, api=version) as (address, requests):
        backend = open_backend(address)
        (seen,) = backend.accounting_jobs("7")
        backend.close()

    assert seen.key == "k7"
    assert requests[-1][1] == f"/slurmdb/{version}/job/7"


def test_jobs_with_the_same_id_are_listed_oldest_first(accounting):
    backend, answers, *_ = accounting
    has(answers, row(submitted=AT + 50), row(submitted=AT))

    assert [job.submitted_at for job in backend.accounting_jobs("7")] == [SINCE, SINCE + timedelta(seconds=50)]


@pytest.mark.parametrize(
    "nothing",
    [
        (200, {"jobs": [], "errors": []}),
        (200, {"jobs": [], "errors": [{"error_number": 9003, "error": "Nothing found with query"}]}),
        (404, {"errors": [{"error_number": 2017, "error": "Invalid job id specified"}]}),
    ],
)
def test_job_unknown_to_accounting_is_not_an_error(accounting, nothing):
    backend, answers, *_ = accounting
    answers["GET /slurmdb/job/7"] = nothing

    assert backend.accounting_jobs("7") == []


@pytest.mark.parametrize("backend_id", ["", "abc", "7_1", "7/../8"])
def test_id_that_is_not_a_number_is_never_requested(accounting, backend_id):
    """Such a request crashes slurmrestd 22.05."""
    backend, _, requests, _ = accounting

    assert backend.accounting_jobs(backend_id) == []
    assert requests == []


def test_accounting_jobs_since_lists_only_jobs_submitted_since_then(accounting):
    backend, answers, requests, _ = accounting
    has(answers, row(8, submitted=AT + 5), row(9, submitted=AT - 5), row(7, submitted=AT))

    assert [job.backend_id for job in backend.accounting_jobs_since(SINCE)] == ["7", "8"]
    assert requests[-1][1] == f"/slurmdb/v0.0.42/jobs?start_time=uts{AT}"


def test_unreadable_row_that_may_be_ours_raises_unreachable(accounting):
    backend, answers, *_ = accounting
    has(answers, row(7), {**row(8), "state": None})

    with pytest.raises(ClusterUnreachable, match="job 8: state is missing"):
        backend.accounting_jobs_since(SINCE)


def test_unreadable_row_of_another_user_is_ignored(accounting):
    backend, answers, *_ = accounting
    has(answers, row(7), {**row(8), "state": None, "comment": {"job": "theirs"}})

    assert [job.backend_id for job in backend.accounting_jobs_since(SINCE)] == ["7"]


def test_cluster_without_accounting_is_not_asked_again_for_a_while(accounting):
    backend, answers, requests, clock = accounting
    answers["GET /slurmdb/job/7"] = 404, "Unable find requested URL."
    for question in (lambda: backend.accounting_jobs("7"), lambda: backend.accounting_jobs_since(SINCE)):
        with pytest.raises(AccountingUnavailable):
            question()
    assert sum("slurmdb" in path for _, path, *_ in requests) == 1

    has(answers, row())
    clock[0] += ACCOUNTING_RETRY_S
    assert len(backend.accounting_jobs("7")) == 1


@pytest.mark.parametrize(
    "response",
    [
        (200, {"jobs": [], "errors": [{"error_number": 7000, "error": "Unable to connect to database"}]}),
        (500, "oops"),
        (401, "Authentication failure"),
        (200, "not json"),
        (200, {"jobs": 7}),
    ],
)
def test_failing_accounting_is_unreachable(accounting, response):
    backend, answers, *_ = accounting
    answers["GET /slurmdb/job/7"] = response

    with pytest.raises(ClusterUnreachable):
        backend.accounting_jobs("7")


def test_unsupported_version_does_not_count_as_missing_accounting():
    with slurmrestd({**UP, "GET /slurmdb/job/7": (200, {"jobs": [row()], "errors": []})}) as (address, _):
        backend = open_backend(address, api="v0.0.38")
        with pytest.raises(ClusterUnreachable):
            backend.accounting_jobs("7")

        assert len(backend.accounting_jobs("7")) == 1
        backend.close()
