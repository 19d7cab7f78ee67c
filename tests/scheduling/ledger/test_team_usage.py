"""The usage of a team: the same figures as the ledger's and the scheduler's, and who may see them."""

import csv
import io
from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from jobs.models import Allocation, Attempt, Cluster, Job, Quota, Team, TeamRole, clock
from scheduling.actions.history import count_ended_attempts
from scheduling.ledger.reads.table import table
from scheduling.ledger.reads.team_usage import team_standings, team_usage, usage_at_edges
from scheduling.queries import history, snapshot
from tests import make
from tests.page_text import page_text

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


def held(by, gpus, hours, ago, on, kind="debug", now=None):
    """A job that held GPUs for some hours; with `ago` equal to `hours` it still runs."""
    begin, end = now - ago * HOUR, now - (ago - hours) * HOUR
    ended = end if end < now else None
    times = {"promised_at": begin, "confirmed_at": begin}
    job = make.job(by=by, gpus_per_node=gpus, kind=kind)
    attempt = make.ended(job) if ended else make.running(job, on=[on])
    Attempt.objects.filter(pk=attempt.pk).update(**times, ended_at=ended)
    Job.objects.filter(pk=attempt.job_id).update(submitted_at=begin, ended_at=ended)
    Allocation.objects.filter(attempt=attempt).update(held_at=begin, released_at=ended)


@pytest.fixture
def now(db):
    make.team("pretraining", ada=TeamRole.RESEARCHER)
    make.team("speech", ben=TeamRole.RESEARCHER)
    now = clock.now()
    seren = make.cluster(usage_half_life_hours=48)
    Cluster.objects.filter(pk=seren.pk).update(created_at=now - 1000 * HOUR)
    held("ada", 4, 30, 60, "seren-001", "pretrain", now)
    held("ben", 8, 10, 100, "seren-002", "sft", now)
    held("ada", 2, 5, 5, "seren-004", "debug", now)
    Quota.objects.create(team=make.team("pretraining"), cluster=seren, gpus=16)
    return now


def usage(now, days=7, team="pretraining", until=None):
    until = until or now
    return team_usage(Cluster.objects.get(), Team.objects.get(name=team), until - days * 24 * HOUR, until, now)


@pytest.mark.parametrize("days", [1, 7, 30])
def test_sum_of_the_days_is_the_row_of_the_report(now, days):
    report = {row.name: row for row in table("team", now - days * 24 * HOUR, now).rows}

    hours = sum(report["pretraining"].gpu_us.values()) / 3.6e9
    assert usage(now, days).total == pytest.approx(hours)
    assert hours == pytest.approx({1: 10, 7: 130, 30: 130}[days])


def test_days_divide_the_period_and_kinds_divide_the_days(now):
    days = usage(now).days

    assert [day.end for day in days[:-1]] == [day.start for day in days[1:]]
    assert (days[0].start, days[-1].end) == (now - 168 * HOUR, now)
    kinds = {kind: sum(day.gpu_hours.get(kind, 0) for day in days) for kind in ("pretrain", "debug", "sft")}
    assert kinds == pytest.approx({"pretrain": 120, "debug": 10, "sft": 0})
    assert sum(day.quota_gpu_hours for day in days) == pytest.approx(16 * 168)


@pytest.mark.parametrize("counted", [False, True])
def test_decayed_usage_now_is_that_of_the_schedulers_snapshot(now, counted):
    seren = Cluster.objects.get()
    if counted:
        count_ended_attempts(seren, now)

    known = snapshot.take_snapshot(seren, now).history.usage

    assert usage(now).days[-1].usage * 3600 == pytest.approx(known["pretraining"])
    assert usage(now).days[-1].fair_share * 3600 == pytest.approx(sum(known.values()) / 2)
    assert {one.team: one.usage * 3600 for one in team_standings(seren, known, now)} == pytest.approx(known)


@pytest.mark.parametrize("half_life", [1, 2, 48, 1000])
def test_decayed_usage_of_each_day_is_what_the_scheduler_knew_then(now, half_life):
    seren = make.cluster(usage_half_life_hours=half_life)

    for day in usage(now).days:
        then = history.account_usage(seren, day.end).get("pretraining", 0.0)
        begun = Attempt.objects.filter(job__team__name="pretraining", promised_at__lt=day.end).exists()
        if begun:
            assert day.usage * 3600 == pytest.approx(then, rel=1e-5, abs=1e-3)
        else:
            assert day.usage * 3600 == pytest.approx(0.0, abs=1e-3)


def test_past_period_ends_at_its_own_usage(now):
    seren, until = Cluster.objects.get(), now - 24 * HOUR

    past = usage(now, days=3, until=until)

    expected = usage_at_edges(*_closed_form(seren, now, until))[0]
    assert past.days[-1].usage * 3600 == pytest.approx(expected)


def _closed_form(seren, now, until):
    used = history.used_per_window(seren, [until, now], now)["pretraining"]
    return history.account_usage(seren, now)["pretraining"], used, [-24 * 3600.0, 0.0], 48 * 3600.0


def test_usage_is_never_negative_after_a_longer_half_life():
    assert usage_at_edges(1.0, [5.0], [0.0, 10.0], 10.0) == [0.0, 1.0]


# --- the page


def browser(name, **fields):
    client = Client()
    client.force_login(make.user(name, **fields))
    return client


def test_page_shows_the_teams_of_the_user_only(now):
    page = page_text(browser("ada").get("/reports/teams/"))

    assert "pretraining" in page and "speech" not in page
    assert "130 in all" in page
    assert browser("ada").get("/reports/teams/?team=speech").status_code == 400


def test_superuser_sees_all_teams(now):
    page = page_text(browser("root", is_superuser=True).get("/reports/teams/?team=speech"))

    assert "pretraining" in page and "speech" in page


def test_csv_has_the_days_of_the_page(now):
    answer = browser("ada").get("/reports/teams/usage.csv?team=pretraining&cluster=seren&days=7")

    rows = list(csv.DictReader(io.StringIO(answer.content.decode())))
    assert sum(float(row["total"]) for row in rows) == pytest.approx(130, abs=0.01)
    assert sum(float(row["pretrain"]) for row in rows) == pytest.approx(120, abs=0.01)
    assert browser("ada").get("/reports/teams/usage.csv?team=speech").status_code == 400


def test_user_without_a_team_is_told_so(now):
    assert "not a member of any team" in page_text(browser("cleo").get("/reports/teams/"))


def test_cluster_without_usage_says_so(now):
    make.cluster("kalos")

    page = page_text(browser("ada").get("/reports/teams/?cluster=kalos&days=1"))

    assert "Your teams have used no GPUs of kalos yet." in page and "No values in this period." in page


def test_number_of_queries_does_not_grow_with_the_jobs(now, django_assert_max_num_queries):
    client = browser("ada")
    with CaptureQueriesContext(connection) as few:
        client.get("/reports/teams/")
    for _ in range(5):
        make.ended(make.job(by="ada", gpus_per_node=1))

    with django_assert_max_num_queries(len(few)):
        client.get("/reports/teams/")


def answer(query="", user="ada", team="pretraining"):
    client = Client()
    client.force_login(make.user(user))
    return client.get(f"/api/v1/teams/{team}/usage/{query}")


def test_api_has_the_figures_of_the_page(now):
    until = f"{now:%Y-%m-%dT%H:%M:%S.%fZ}"
    found = answer(f"?cluster=seren&to={until}").json()

    page = usage(now)
    assert found["gpu_hours"] == pytest.approx(page.total)
    assert (found["team"], found["cluster"], found["quota_gpus"]) == ("pretraining", "seren", 16)
    assert found["half_life_hours"] == 48
    for day, expected in zip(found["days"], page.days, strict=True):
        assert day["gpu_hours"] == pytest.approx(dict(expected.gpu_hours))
        assert day["quota_gpu_hours"] == pytest.approx(expected.quota_gpu_hours)
        assert day["decayed_usage_gpu_hours"] == pytest.approx(expected.usage)
        assert day["fair_share_gpu_hours"] == pytest.approx(expected.fair_share)


def test_api_shows_own_teams_only(now):
    assert answer(team="speech").status_code == 404
    assert answer(team="speech", user="ben").json()["quota_gpus"] is None


def test_cluster_may_be_omitted_only_if_there_is_one(now):
    assert answer().json()["cluster"] == "seren"

    make.cluster("kalos", nodes=1)

    assert "cluster" in answer().json()
    assert answer().status_code == 400


@pytest.mark.parametrize("query", ["?cluster=nowhere", "?from=2020-01-01T00:00:00Z", "?days=7", "?to=yesterday"])
def test_invalid_request_names_its_field(now, query):
    response = answer(query)

    assert response.status_code == 400
    assert list(response.json()) == [query[1:].partition("=")[0]]
