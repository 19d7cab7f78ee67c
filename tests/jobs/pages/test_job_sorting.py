"""The order and the columns of the job list: read from an index, stable under pagination, kept per user."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection

from jobs.models import Job, Progress, TeamRole, clock
from jobs.pages import job_list
from jobs.queries import job_arrays
from jobs.queries.job_order import JOB_SORT_CHOICES, JobOrder
from tests import make

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def people():
    make.team("pretraining", ada=TeamRole.RESEARCHER, ben=TeamRole.RESEARCHER)
    make.cluster()


def headings(answer):
    return [cell.column.name for cell in answer.context["table"].headers]


VALUES = {"id": "pk", "name": "name", "gpus": "gpus", "priority": "priority", "submitted": "submitted_at"}
VALUES |= {"started": "started_at", "ended": "ended_at"}


@pytest.fixture
def seven_jobs():
    """Some never started, some start and end at the same time; sizes, names and priorities repeat."""
    now = clock.now()
    jobs = make.jobs(*[{"name": f"j{n % 3}", "gpus_per_node": n % 4, "priority": -(n % 2)} for n in range(7)])
    for job, ago in zip(jobs, [5, None, 3, 3, 9, None, 1], strict=True):
        started = None if ago is None else now - timedelta(minutes=ago)
        Job.objects.filter(pk=job.pk).update(started_at=started, ended_at=started)
    return list(Job.objects.all())


@pytest.mark.parametrize("sort", JOB_SORT_CHOICES)
def test_every_job_is_on_one_page_of_a_sorted_list_and_jobs_without_a_value_come_last(sort, seven_jobs):
    order, found, place = JobOrder(sort), [], None
    while rows := order.rows_after(Job.objects.with_list_columns(), place, 2):
        found += rows
        place = order.place("before", order.cursor(rows[-1])) if sort != "-id" else [rows[-1].pk]

    descends, name = sort.startswith("-"), VALUES[sort.removeprefix("-")]
    known = [job for job in seven_jobs if getattr(job, name) is not None]
    wanted = sorted(known, key=lambda job: (getattr(job, name), job.pk), reverse=descends)
    wanted += sorted((job for job in seven_jobs if job not in known), key=lambda job: job.pk, reverse=descends)
    assert [job.pk for job in found] == [job.pk for job in wanted]


@pytest.mark.parametrize("sort", JOB_SORT_CHOICES)
def test_every_order_of_the_list_is_read_from_an_index(sort, django_assert_max_num_queries):
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_sort = off")
    with django_assert_max_num_queries(2) as asked:
        JobOrder(sort).rows_after(Job.objects.all(), None, 51)

    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {asked.captured_queries[0]['sql']}")
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "Index" in plan and "Seq Scan" not in plan
    assert "Incremental Sort  (" in plan or "Sort  (" not in plan


@pytest.mark.parametrize("sort", ["-id", "name", "-gpus", "started"])
def test_an_array_is_one_row_on_all_pages_of_a_sorted_list(sort):
    sweep = make.jobs({"name": "sweep", "array": "1-5", "gpus_per_node": 2})
    make.jobs(*[{"name": name, "gpus_per_node": 1} for name in ("a", "tail", "b")])
    order, pages, place = JobOrder(sort), [], None
    while rows := job_arrays.folded_job_page(Job.objects.with_list_columns(), order, place, 2)[:2]:
        pages += rows
        place = order.position(rows[-1])

    assert sum(job.array_id == sweep[0].array_id for job in pages) == 1
    assert sorted(job.name for job in pages) == ["a", "b", "sweep", "tail"]


def test_the_pages_of_the_list_keep_its_order_and_filters():
    make.jobs(*[{"name": f"n{number:03d}"} for number in range(job_list.PAGE_SIZE + 3)])
    ada = make.browser()

    first = ada.get("/jobs/?sort=name&state=waiting")
    second = ada.get(f"/jobs/?{first.context['older']}")

    names = [job.name for answer in (first, second) for job in answer.context["rows"]]
    assert names == [f"n{number:03d}" for number in range(job_list.PAGE_SIZE + 3)]
    assert "sort=name" in second.context["newest"] and "state=waiting" in second.context["newest"]


def test_the_csv_has_the_order_of_the_list():
    make.jobs(*[{"name": name} for name in ("b", "c", "a")])

    lines = b"".join(make.browser().get("/jobs/export.csv?sort=name").streaming_content).decode().splitlines()

    assert [line.split(",")[1] for line in lines] == ["Name", "a", "b", "c"]


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("sort=loss", "sort: 'loss' is not one of id, -id, name"),
        ("sort=name&before=12", "before: is not a valid cursor, or belongs to another ordering"),
        ("before=x", "before: 'x' is not a whole number"),
    ],
)
def test_an_order_that_no_index_has_and_a_bad_position_are_named(query, sentence):
    answer = make.browser().get(f"/jobs/?{query}")

    assert answer.status_code == 400
    assert sentence.replace("'", "&#x27;") in answer.content.decode()


def test_the_heading_of_the_sorted_column_says_so_and_links_to_the_opposite_order():
    answer = make.browser().get("/jobs/?sort=-gpus&state=waiting")

    cells = {cell.column.name: cell for cell in answer.context["table"].headers}
    assert (cells["gpus"].aria_sort, cells["gpus"].url) == ("descending", "?state=waiting&sort=gpus")
    assert cells["name"].aria_sort == "" and cells["name"].url == "?state=waiting&sort=name"
    assert cells["user"].url == ""


# --- columns


def test_chosen_columns_are_kept_for_the_user_and_the_list_keeps_its_filters():
    ada = make.browser()
    chosen = ada.post("/jobs/columns/", {"column": ["gpus", "ended", "no such"], "query": "state=failed&sort=-ended"})

    assert chosen.headers["Location"] == "/jobs/?state=failed&sort=-ended"
    assert headings(ada.get("/jobs/?view=0")) == ["id", "name", "state", "gpus", "ended"]
    ada.force_login(make.user("ben"))  # the same browser
    assert "team" in headings(ada.get("/jobs/?view=0"))


def test_no_chosen_columns_and_the_default_button_restore_the_default():
    ada = make.browser()
    for posted in ({"column": []}, {"column": ["gpus"], "reset": "1"}):
        ada.post("/jobs/columns/", {"column": ["gpus"]})
        ada.post("/jobs/columns/", posted)
        assert "team" in headings(ada.get("/jobs/?view=0"))


@pytest.mark.parametrize("query", ["\r\nX-Bad: 1", "next=//evil.example/", "\0"])
def test_hostile_query_of_the_column_form_stays_a_query(query):
    answer = make.browser().post("/jobs/columns/", {"column": ["gpus"], "query": query})

    assert answer.status_code == 302 and answer.headers["Location"].startswith("/jobs/?")


def test_hostile_cookie_shows_the_default_columns():
    ada = make.browser()
    ada.cookies[f"columns_jobs_{make.user('ada').pk}"] = "<script>.;drop"

    assert "team" in headings(ada.get("/jobs/?view=0"))


# --- the line of the loss


def test_running_trainings_have_a_line_of_their_loss_for_two_queries(django_assert_num_queries):
    for number in range(3):
        attempt = make.running(make.job(name=f"t{number}", kind="pretrain", gpus_per_node=1), gpus=(number,))
        for step in range(3):
            at = clock.now() - timedelta(seconds=30 - step)
            Progress.objects.create(attempt=attempt, at=at, step=step, loss=3.0 - step)
    ada = make.browser()
    ada.get("/jobs/?fold=0")

    with django_assert_num_queries(9 + 2):
        answer = ada.get("/jobs/?fold=0")

    assert [job.loss_line != "" for job in answer.context["rows"]] == [True] * 3
    ada.post("/jobs/columns/", {"column": ["gpus"]})
    with django_assert_num_queries(9):
        ada.get("/jobs/?fold=0")
