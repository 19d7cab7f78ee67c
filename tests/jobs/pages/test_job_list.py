"""The job list: folded arrays, CSV export, and bulk actions with a preview."""

from __future__ import annotations

import csv
import io
import re

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs.actions.bulk import background
from jobs.core.lifecycle import State
from jobs.models import Attempt, BulkAction, Event, HoldKind, Job, TeamRole, clock
from jobs.pages import job_list
from jobs.rest.streaming import read_in_threads
from tests import make

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def people():
    make.team("pretraining", ada=TeamRole.RESEARCHER, vera=TeamRole.VIEWER, olga=TeamRole.OPERATOR)
    make.team("speech", ben=TeamRole.RESEARCHER)
    make.cluster()


def listed(query="", name="ada"):
    answer = make.browser(name).get(f"/jobs/?{query}")
    return [job.array_id or job.public_id for job in answer.context["rows"]], answer


def single(name="single", **fields):
    return make.job(by="ada", name=name, gpus_per_node=8, **fields)


def array(tasks, name="sweep"):
    return make.jobs({"name": name, "array": f"1-{tasks}"}, by="ada", gpus_per_node=8)


# --- arrays


def test_an_array_is_one_row_among_the_others():
    first, tasks, last = single("first"), array(60), single("last")

    rows, answer = listed()

    assert rows == [last.public_id, tasks[0].array_id, first.public_id]
    assert answer.context["rows"][1].tasks.count == 60
    assert not answer.context["older"]


def test_an_array_shows_how_many_of_its_tasks_are_in_which_state():
    tasks = array(3)
    make.running(tasks[0])

    _, answer = listed()

    states = [(badge.label, count) for badge, count in answer.context["rows"][0].tasks.states]
    assert states == [("PENDING", 2), ("RUNNING", 1)]


def test_an_array_counts_the_tasks_that_fit_the_filter():
    tasks = array(3)
    make.running(tasks[2])

    rows, answer = listed("state=waiting")

    assert rows == [tasks[0].array_id]
    assert answer.context["rows"][0].tasks.count == 2


def test_pages_contain_each_row_once_wherever_arrays_lie():
    pair = {"name": "single"}, {"name": "sweep", "array": "1-3"}
    jobs = make.jobs(*(pair * job_list.PAGE_SIZE), by="ada", gpus_per_node=8)
    wanted = list(dict.fromkeys(job.array_id or job.public_id for job in jobs))
    # Tasks of an array that came while others were submitted lie between them
    Job.objects.filter(public_id=wanted[0]).update(array_id=wanted[-1])

    told, query = [], ""
    while True:
        rows, answer = listed(query)
        told += rows
        query = answer.context["older"]
        if not query:
            break

    assert told == wanted[:0:-1]


def test_one_array_can_be_unfolded_and_all_of_them():
    tasks = array(3)
    single()

    assert len(listed(f"array={tasks[0].array_id}")[0]) == 3
    assert len(listed("fold=0")[0]) == 4


def test_the_number_of_queries_of_folding_depends_on_arrays_not_on_tasks():
    array(2)
    with CaptureQueriesContext(connection) as few:
        listed()
    array(40)

    with CaptureQueriesContext(connection) as more:
        listed()

    assert len(more) <= len(few) + 2


# --- for spreadsheets


def table(query="", name="ada"):
    answer = make.browser(name).get(f"/jobs/export.csv?{query}")
    return list(csv.DictReader(io.StringIO(answer.getvalue().decode())))


def test_the_csv_has_all_matching_jobs_across_chunks():
    tasks = array(job_list.CSV_CHUNK_ROWS + 1)
    single()

    rows = table("q=sweep")

    assert [row["JobID"] for row in rows] == [job.public_id for job in reversed(tasks)]
    assert rows[0]["State"] == "PENDING" and rows[0]["GPUs"] == "8"


def test_the_csv_has_only_jobs_of_the_users_teams():
    single()

    assert table(name="ben") == []


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@sum"])
def test_a_job_name_is_not_a_formula_in_the_csv(name):
    job = single()
    Job.objects.filter(pk=job.pk).update(name=name)

    assert table()[0]["Name"] == f"'{name}"


async def test_an_asgi_server_gets_the_csv_in_chunks():
    assert [piece async for piece in read_in_threads(iter(["JobID\r\n", "1\r\n"]))] == ["JobID\r\n", "1\r\n"]


# --- one verb on many


def post(name="ada", **fields):
    return make.browser(name).post("/jobs/many/", fields, follow=True)


def outcomes(answer):
    return {one.job.public_id: one.error for one in answer.context["outcomes"]}


def test_a_preview_shows_a_result_per_job_and_changes_nothing():
    waits, over = single(), make.ended(single()).job

    answer = post(verb="cancel", id=[waits.public_id, over.public_id])

    told = outcomes(answer)
    assert told[waits.public_id] == "" and told[over.public_id]
    waits.refresh_from_db()
    assert waits.state == State.PENDING
    assert not Event.objects.filter(job=waits, type="job.state_changed").exists()


def test_a_confirmed_action_is_performed_on_the_jobs_that_allow_it():
    jobs = [single(), single()]

    answer = post(verb="hold", ids=" ".join(job.public_id for job in jobs), confirm="1", why="budget")

    assert set(outcomes(answer).values()) == {""}
    assert set(Job.objects.values_list("hold", flat=True)) == {HoldKind.USER}
    assert Event.objects.filter(why="budget").count() == 2


def test_selecting_an_array_selects_all_its_tasks():
    tasks = array(3)

    post(verb="cancel", id=tasks[0].array_id, confirm="1")

    assert set(Job.objects.values_list("state", flat=True)) == {State.CANCELLED}


def test_select_all_covers_exactly_the_matching_jobs():
    single("a-1"), single("b-1")

    post(verb="cancel", all="1", q="a-", confirm="1")

    assert dict(Job.objects.values_list("name", "state")) == {"a-1": State.CANCELLED, "b-1": State.PENDING}


@pytest.mark.parametrize("name, seen", [("ben", False), ("vera", True)])
def test_users_without_the_role_change_no_jobs(name, seen):
    job = single()

    answer = post(name, verb="cancel", id=job.public_id, confirm="1")

    job.refresh_from_db()
    assert job.state == State.PENDING
    if seen:
        assert "viewer" in outcomes(answer)[job.public_id] or "another user" in outcomes(answer)[job.public_id]
    else:
        assert "No jobs selected" in answer.content.decode()


def test_a_bulk_priority_change_requires_a_number():
    job = single()

    assert "Nothing was changed" in post(verb="priority", id=job.public_id, priority="high").content.decode()
    post(verb="priority", id=job.public_id, priority="-5", confirm="1")

    job.refresh_from_db()
    assert job.priority == -5


@pytest.mark.parametrize("selection", [{"all": "1", "q": "sweep"}, {"id": "the array"}])
def test_an_action_on_many_jobs_is_confirmed_and_runs_in_the_background(rf, selection):
    tasks, other = array(3), single()
    selection = {name: value.replace("the array", tasks[0].array_id) for name, value in selection.items()}

    def sent(**fields):
        request = rf.post("/jobs/many/", {"verb": "cancel", **fields})
        request.user = make.user("ada")
        return job_list.bulk_job_action(request, most=2)

    preview = sent(**selection).content.decode()
    hidden = dict(re.findall(r'<input type="hidden" name="(\w+)"\s+value="([^"]*)">', preview))
    confirmed = sent(**hidden)
    page = make.browser().get(confirmed.url)
    background.run_bulk_actions_once(clock.now)
    fragment = make.browser().get(confirmed.url, headers={"HX-Request": "true", "HX-Target": "section#bulk-action"})

    assert "3 jobs match." in preview and "Cancel" in preview
    assert "remaining 3" in page.content.decode() and "every 1s" in page.content.decode()
    assert "Requested for 3" in fragment.content.decode() and "every 1s" not in fragment.content.decode()
    assert set(Job.objects.filter(state=State.PENDING)) == {other}


def test_progress_of_an_action_is_shown_to_its_user_only():
    row = BulkAction.objects.create(user=make.user("ada"), action="cancel", job_keys=[], matched=0)

    assert make.browser("olga").get(f"/jobs/actions/{row.pk}/").status_code == 404


def test_an_unknown_verb_and_a_get_are_refused():
    assert make.browser().post("/jobs/many/", {"verb": "delete"}).status_code == 404
    assert make.browser().get("/jobs/many/").status_code == 405


def test_job_names_are_escaped_in_the_preview():
    job = single()
    Job.objects.filter(pk=job.pk).update(name="<script>alert(1)</script>")

    assert "<script>alert" not in post(verb="cancel", id=job.public_id).content.decode()


# --- causes of failure


@pytest.fixture
def died():
    one, other = (make.ended(make.job(name=name), "FAILED", exit_code=1) for name in ("typo", "oom"))
    Attempt.objects.filter(pk=one.pk).update(cause="TypeError")
    Attempt.objects.filter(pk=other.pk).update(cause="CUDAOutOfMemory")
    return one.job


def test_list_shows_and_filters_the_cause_of_failure(died):
    everything = make.browser("ada").get("/jobs/").text
    assert 'href="/jobs/?cause=TypeError">TypeError</a>' in everything and "CUDAOutOfMemory" in everything

    filtered = make.browser("ada").get("/jobs/?cause=TypeError").text

    assert ">typo</a>" in filtered and ">oom</a>" not in filtered


def test_csv_and_api_have_the_cause(died):
    assert [row["Cause"] for row in table("cause=TypeError")] == ["TypeError"]
    listed = make.browser("ada").get("/api/v1/jobs/?cause=TypeError").json()["results"]
    assert [job["id"] for job in listed] == [died.public_id]
    assert make.browser("ada").get("/api/v1/jobs/?cause=").status_code == 400
