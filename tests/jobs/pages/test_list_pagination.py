"""Lists are paginated in every ordering and both directions, always with an index."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection

from jobs.api.jobs import JOB_FILTERS, JOB_ORDERINGS
from jobs.models import Cluster, Job, clock
from jobs.rest import pagination, query_params
from tests.jobs.api import api_make as make
from tests.jobs.api.api_make import Caller

pytestmark = pytest.mark.django_db


@pytest.fixture
def ada():
    make.cluster()
    return Caller(make.person())


@pytest.fixture
def some(ada):
    """Seven jobs: two never started, two started at the same moment."""
    now = clock.now()
    minutes = [5, None, 3, 3, 9, None, 1]
    for priority, ago in enumerate(minutes):
        job = make.job(name=f"j{priority % 3}", priority=-priority)
        started = None if ago is None else now - timedelta(minutes=ago)
        Job.objects.filter(pk=job.pk).update(started_at=started)
    return list(Job.objects.order_by("pk"))


def walk(ada, link, way):
    pages_found = []
    while link:
        page = ada.get(link).json()
        pages_found.append([row["id"] for row in page["results"]])
        link, before = page[way] and page[way].partition("/api/v1/")[2], link
    return pages_found, before


@pytest.mark.parametrize("descending", [False, True])
def test_rows_without_a_value_come_last_in_both_directions(ada, some, descending):
    anomaly = -1 if descending else 1
    valued = sorted((job for job in some if job.started_at), key=lambda j: (j.started_at, j.pk), reverse=descending)
    wanted = valued + sorted((job for job in some if not job.started_at), key=lambda job: anomaly * job.pk)

    forth, last = walk(ada, f"jobs/?limit=2&ordering={'-' if descending else ''}started_at", "next")
    back, _ = walk(ada, last, "previous")

    assert [id for page in forth for id in page] == [str(job) for job in wanted]
    assert [id for page in reversed(back) for id in page] == [str(job) for job in wanted]


EITHER_WAY = [anomaly + ordering for ordering in JOB_ORDERINGS for anomaly in ("", "-")]


@pytest.mark.parametrize("ordering", [*EITHER_WAY, "-priority,submitted_at"])  # the queue has one order
def test_every_ordering_is_read_from_an_index(ordering, django_assert_max_num_queries):
    waiting = ordering == "-priority,submitted_at"
    rows = Job.objects.filter(state="PENDING") if waiting else Job.objects.all()
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_sort = off")
    with django_assert_max_num_queries(2) as asked:
        pagination.paginate(rows, JOB_ORDERINGS, "-id", {"ordering": [ordering]})

    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {asked.captured_queries[0]['sql']}")
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "Index" in plan and "Seq Scan" not in plan
    assert "Incremental Sort  (" in plan or "Sort  (" not in plan


def test_name_filters_are_resolved_before_the_list_query(ada, some):
    make.person("grace")
    other = make.cluster("kalos")
    assert len(ada.get("jobs/?cluster=seren&user=ada").json()["results"]) == len(some)
    assert len(ada.get("jobs/?cluster__in=kalos,seren&team=vision").json()["results"]) == len(some)
    for nobody in ("user=grace", "user=nobody", "cluster=kalos", "team=nowhere"):
        assert ada.get(f"jobs/?{nobody}").json()["results"] == []

    wanted = query_params.parse(JOB_FILTERS, {"cluster": ["kalos"]}, "jobs")
    assert dict(wanted.children) == {"cluster_id__in": [other.pk]}
    assert Cluster.objects.count() == 2
