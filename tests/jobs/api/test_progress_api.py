"""Reported progress, labels, quotas and usage series in the API. grace is in another team than ada."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs.actions import progress
from jobs.api.jobs import JOB_FILTERS
from jobs.models import Attempt, Checkpoint, ClusterMinute, Job, Quota, TokenScope, clock
from jobs.rest import query_params
from tests.jobs.api import api_make as make
from tests.jobs.api.api_make import Caller

pytestmark = pytest.mark.django_db


@pytest.fixture
def ada():
    make.cluster()
    return Caller(make.person(), TokenScope.SUBMIT)


@pytest.fixture
def grace(ada):
    return Caller(make.person("grace", in_team="speech"))


def running(**asked):
    job = make.running(make.job(gpus_per_node=1, **asked))
    return job, Attempt.objects.get(job=job)


def said(attempt, count, **more):
    began = clock.now() - timedelta(seconds=count)
    beats = [{"step": n, "loss": 10.0 - n / count, "at": began + timedelta(seconds=n), **more} for n in range(count)]
    progress.record_attempt_heartbeats(attempt.key, beats)


def test_a_series_has_its_points_in_order_and_the_newest_point(ada):
    job, attempt = running()
    said(attempt, 20)

    found = ada.get(f"jobs/{job}/progress/").json()

    assert [point["step"] for point in found["points"]] == list(range(20))
    assert found["latest"]["step"] == 19 and found["updated_at"] and found["attempt"] == 1


def test_a_long_series_is_thinned_evenly_and_keeps_its_end(ada):
    job, attempt = running()
    said(attempt, 1000)

    points = ada.get(f"jobs/{job}/progress/", {"points": 50}).json()["points"]

    steps = [point["step"] for point in points]
    assert len(points) == 50 and steps == sorted(steps)
    assert steps[-1] == 999 and max(b - a for a, b in itertools.pairwise(steps)) <= 25


def test_a_non_finite_loss_is_returned_as_text(ada):
    job, attempt = running()
    progress.record_attempt_heartbeats(
        attempt.key, [{"step": 1, "loss": math.nan, "grad_norm": math.inf, "step_time_s": -math.inf}]
    )

    newest = ada.get(f"jobs/{job}/progress/").json()["latest"]

    assert (newest["loss"], newest["grad_norm"], newest["step_time_s"]) == ("NaN", "Infinity", "-Infinity")


def test_jobs_without_attempts_or_reports_have_empty_series(ada):
    waits, (silent, _) = make.job(), running()

    unknown = dict.fromkeys(("updated_at", "latest", "steps_total", "saved_step", "saved_at"))
    nothing = {"attempt": 0, "source": "", "points": [], **unknown}
    assert ada.get(f"jobs/{waits}/progress/").json() == nothing
    assert ada.get(f"jobs/{silent}/progress/").json()["points"] == []


def test_an_impossible_attempt_number_is_refused_with_the_reason(ada):
    job, _ = running()
    far, odd, twice = (
        ada.get(f"jobs/{job}/progress/?{asked}").content.decode()
        for asked in ("attempt=99999999999999", "attempt=x", "attempt=1&attempt=2")
    )

    assert "99999999999999" in far and "is not between 1 and 32000" in far
    assert "is not a whole number" in odd and "is given more than once" in twice


@pytest.mark.parametrize(
    "wrong", ["points=1", "points=5001", "points=x", "attempt=0", "attempt=1&attempt=2", "since=1"]
)
def test_invalid_series_parameters_are_named(ada, wrong):
    job, _ = running()

    answer = ada.get(f"jobs/{job}/progress/?{wrong}")

    assert answer.status_code == 400 and list(answer.json()) == [wrong.partition("=")[0]]


def test_checkpoints_are_listed_for_a_job_and_for_a_team(ada, grace):
    job, attempt = running()
    for step in (100, 200):
        Checkpoint.objects.create(job=job, attempt=attempt, step=step, path=f"/ckpt/{step}")
    Checkpoint.objects.filter(step=100).update(durable_at=clock.now())

    of_job = ada.get(f"jobs/{job}/checkpoints/").json()["results"]
    durable = ada.get("checkpoints/", {"durable_at__isnull": "false", "job": str(job)}).json()["results"]

    assert [(one["step"], one["attempt"], one["job"]) for one in of_job] == [(200, 1, str(job)), (100, 1, str(job))]
    assert [one["step"] for one in durable] == [100]
    assert grace.get("checkpoints/").json()["results"] == []
    assert grace.get(f"jobs/{job}/checkpoints/").status_code == 404


def test_jobs_are_found_by_their_labels(ada):
    big, small = make.job(labels={"run": "7b", "a.b/c": "x"}), make.job(labels={"run": "1b"})
    make.job()

    def ids(**asked):
        return {one["id"] for one in ada.get("jobs/", asked).json()["results"]}

    assert ids(labels__run="7b") == {str(big)}
    assert ids(labels__run=["7b", "1b"]) == {str(big), str(small)}
    assert ids(**{"labels__run": "7b", "labels__a.b/c": "x"}) == {str(big)}
    assert ids(labels__run="7") == set()
    assert ids(**{"labels__run'); DROP TABLE jobs_job; --": "x"}) == set()


def test_labels_without_a_name_are_refused(ada):
    answer = ada.get("jobs/", {"labels": "7b"})

    assert answer.status_code == 400 and "labels__NAME" in answer.json()["labels"][0]


def test_a_verb_takes_labels_as_a_filter(ada):
    job = make.job(labels={"run": "7b"})
    make.job()

    done = ada.post("jobs/actions/", {"action": "hold", "filter": {"labels__run": "7b"}}).json()

    assert [one["id"] for one in done["results"]] == [str(job)]


def test_a_quota_shows_held_and_remaining_gpus(ada, grace, django_assert_max_num_queries):
    for kind, gpus in (("", 16), ("pretrain", 4)):
        Quota.objects.create(team=make.team(), cluster=make.cluster(), kind=kind, gpus=gpus)
    make.running(make.job(gpus_per_node=2, kind="pretrain"), gpus=(0, 1))
    make.running(make.job(gpus_per_node=1, kind="debug"), gpus=(2,))
    make.running(make.job(gpus_per_node=1, kind="pretrain", preemptible=True), gpus=(3,))

    with django_assert_max_num_queries(6):
        found = ada.get("quotas/", {"ordering": "-gpus"}).json()["results"]

    assert [(one["kind"], one["gpus"], one["used"], one["remaining"]) for one in found] == [
        ("", 16, 3, 13),
        ("pretrain", 4, 2, 2),
    ]
    assert grace.get("quotas/").json()["results"] == []


def test_an_empty_value_in_a_list_is_refused_unless_empty_is_a_valid_value(ada):
    answer = ada.get("jobs/", {"state__in": "RUNNING,"})

    assert answer.status_code == 400
    assert answer.json() == {"state__in": ["contains an empty value; separate values with single commas"]}
    assert ada.get("jobs/", {"hold__in": ",user"}).status_code == 200


# --- the course of a cluster


def test_every_user_can_read_the_usage_series_of_a_cluster(ada, grace):
    now = clock.now()
    ClusterMinute.objects.create(
        cluster=make.cluster(),
        at=now - timedelta(minutes=2),
        gpus=32,
        allocated=8,
        closed=0,
        running=1,
        waiting=3,
        requested=9,
    )

    told = ada.get("clusters/seren/usage/", {"hours": 1}).json()

    assert (
        told["step_s"] == 60
        and len({len(told[name]) for name in ("gpus", "allocated", "utilization", "requested")}) == 1
    )
    assert [one for one in told["requested"] if one is not None] == [9.0]
    assert grace.get("clusters/seren/usage/", {"hours": 1}).status_code == 200


@pytest.mark.parametrize("wrong", ["hours=0", "hours=745", "hours=x", "hours=1&hours=2", "days=1"])
def test_a_usage_series_of_an_invalid_length_is_refused_by_name(ada, wrong):
    answer = ada.get(f"clusters/seren/usage/?{wrong}")

    assert answer.status_code == 400 and wrong.partition("=")[0] in answer.json()


def test_an_unknown_cluster_has_no_usage_series(ada):
    assert ada.get("clusters/nowhere/usage/").status_code == 404


# --- a part of a name, which no index knows

NAMES = ["llm-7b", "LLM-104b", "eval_100%", "eval_1000", "back\\slash"]


def named(caller, part):
    answer = caller.get("jobs/", {"name__contains": part, "fields": "name"})
    return sorted(row["name"] for row in answer.json()["results"])


@pytest.mark.usefixtures("ada")
@pytest.mark.parametrize("most", [query_params.MAX_DISTINCT_VALUES, 2])
@pytest.mark.parametrize(
    ("part", "found"),
    [
        ("llm", ["LLM-104b", "llm-7b"]),
        ("0%", ["eval_100%"]),
        ("l_", ["eval_100%", "eval_1000"]),
        ("K\\S", ["back\\slash"]),
    ],
)
def test_a_substring_search_by_distinct_names_and_by_rows_finds_the_same_jobs(part, found, most):
    for name in NAMES:
        make.job(name=name)
    filters = {"name": replace(JOB_FILTERS["name"], max_distinct_values=most)}

    def names(part):
        condition = query_params.parse(filters, {"name__contains": [part]}, "jobs")
        return sorted(Job.objects.filter(condition).values_list("name", flat=True))

    assert names(part) == found
    assert names(f"{part} not") == []


def test_a_substring_search_without_matching_names_scans_no_rows(ada):
    for name in NAMES:
        make.job(name=name)

    with CaptureQueriesContext(connection) as asked:
        assert named(ada, "nosuch") == []

    (walk,) = (one["sql"] for one in asked if "jobs_job" in one["sql"])
    assert "WITH RECURSIVE seen" in walk


def test_names_of_other_teams_are_searched_but_never_returned(ada, grace):
    make.job(make.person("grace"), in_team="speech", name="llm-secret")

    assert named(ada, "llm") == []
    assert named(grace, "llm") == ["llm-secret"]
