"""The key figures on the page Now agree with the pages that they lead to, and show the trend of one day."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from django.conf import settings as configured
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from acmeweb.common import metrics_store
from acmeweb.pages.key_figures import incident_figure, shared_figures
from failures.models import Incident
from jobs.models import Cluster, ClusterMinute, Node, TeamRole, clock
from jobs.models.permissions import Caller
from jobs.queries.cluster_summary import cluster_summaries
from scheduling.ledger.loops.figures import update_ledger_metrics_once
from scheduling.ledger.reads import figures as ledger_figures
from tests import make
from tests.scheduling.ledger.test_ledger_facts import ran

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


@pytest.fixture
def cluster():
    """A cluster whose name no other test uses, because tests share Valkey."""
    row = make.cluster(f"c{uuid.uuid4().hex[:12]}")
    Cluster.objects.filter(pk=row.pk).update(created_at=clock.now() - 72 * HOUR)
    yield row
    metrics_store.valkey.ask([("DEL", f"acme:figures:account:{row.name}")])


@pytest.fixture
def ada(cluster):
    make.team("pretraining", ada=TeamRole.RESEARCHER)
    return make.browser("ada")


def figures(now=None):
    now = now or clock.now()
    return {one.id: one for one in shared_figures(cluster_summaries(now), now)}


def store_last_day(name, **changes):
    sums = {"day": [6, 10, 8], "day_before": [5, 10, 8], "hours": [[6, 10, 8]], "gpu_hours": {"productive": 6}}
    metrics_store.store_figures("account", name, {"at": clock.now().timestamp(), **sums, **changes}, 60)


def test_yesterday_is_compared_only_if_every_cluster_has_its_figures(cluster):
    other = f"{cluster.name}-2"
    store_last_day(cluster.name)
    store_last_day(other, day_before=None)

    day = ledger_figures.last_day([cluster.name, other])
    assert (day.goodput.last_day, day.goodput.day_before, day.ettr.day_before) == (0.6, None, None)

    store_last_day(other)

    day = ledger_figures.last_day([cluster.name, other])
    assert (day.goodput.day_before, day.ettr.day_before) == (0.5, 0.625)


def minute(cluster, at, **fields):
    usual = {"gpus": 32, "allocated": 16, "closed": 0, "utilization": 40.0, "running": 2, "waiting": 3, "requested": 8}
    return ClusterMinute.objects.create(cluster=cluster, at=at, **usual | fields)


def test_allocation_counts_all_clusters_and_compares_with_yesterday(cluster):
    other = make.cluster(f"{cluster.name}-2", nodes=2)
    make.running(make.job(by="ada", cluster=cluster, gpus_per_node=8), on=[f"{cluster.name}-001"])
    now = clock.now()
    minute(cluster, now - 24 * HOUR, allocated=24)
    minute(other, now - 24 * HOUR, gpus=16, allocated=0)

    one = figures(now)["allocated"]

    assert (one.value, one.detail) == (17, "8 of 48")
    assert one.change == "▼ 33 points"  # 24 of 48 were allocated


def test_utilization_is_that_of_the_last_minutes_weighted_by_gpus(cluster):
    other, now = make.cluster(f"{cluster.name}-2", nodes=1), clock.now()
    minute(cluster, now - timedelta(minutes=1), utilization=90)
    minute(cluster, now - timedelta(minutes=20), utilization=10)
    minute(other, now - timedelta(minutes=1), gpus=8, utilization=50)
    minute(other, now - timedelta(minutes=2), gpus=8, utilization=None)

    one = figures(now)["utilization"]

    assert one.value == round((90 * 32 + 50 * 8) / 40)
    assert one.change == ""  # nothing was measured yesterday


def test_utilization_is_unknown_without_telemetry(cluster):
    one = figures()["utilization"]

    assert (one.value, one.detail, one.line) == (None, "no telemetry", "")


def test_pending_jobs_show_the_median_wait_and_the_change(cluster):
    make.running(make.job(by="ada", cluster=cluster, gpus_per_node=8))
    make.job(by="ada", cluster=cluster)
    now = clock.now()
    minute(cluster, now - 24 * HOUR, waiting=5)
    minute(cluster, now - HOUR, waiting=7)

    one = figures(now)["pending"]

    assert (one.value, one.change, one.detail) == (1, "▼ 4", "median wait")
    assert one.wait is not None and one.wait >= timedelta(0)
    assert len(one.line.split()) == 2


@pytest.mark.skipif(not configured.VALKEY_URL, reason="no Valkey")
def test_goodput_and_ettr_are_those_of_the_ledger_loop(cluster, ada):
    now = clock.now()
    ran(now, 11, job=make.job(by="ada", cluster=cluster, gpus_per_node=8))
    assert figures(now)["goodput"].value is None
    update_ledger_metrics_once(now)

    found = figures(now)

    page = ada.get("/reports/?days=1").context["table"]
    assert found["goodput"].value == round(100 * page.goodput) > 0
    assert found["ettr"].value == round(100 * page.ettr) > 0
    assert found["goodput"].change == f"▲ {found['goodput'].value} points"
    assert found["goodput"].line


@pytest.mark.skipif(not configured.VALKEY_URL, reason="no Valkey")
def test_ledger_bar_names_no_user_and_sums_to_the_capacity(cluster, ada):
    make.running(make.job(by="ben", name="secret", cluster=cluster, gpus_per_node=8))
    update_ledger_metrics_once(clock.now())

    answer = ada.get("/reports/bar/")

    assert sum(part.share for part in answer.context["whole"].parts) == pytest.approx(100)
    assert "secret" not in answer.content.decode() and "speech" not in answer.content.decode()


def test_ledger_bar_without_figures_says_when_they_come(cluster, ada):
    assert "computed every five minutes" in ada.get("/reports/bar/").content.decode()


def incident(cluster, hours, *, scope="node", resolved=None, state="open", category="Infrastructure"):
    now = clock.now()
    return Incident.objects.create(
        cluster=cluster,
        root_cause="ECCError",
        category=category,
        scope=scope,
        subject="n",
        state=state,
        first_symptom_at=now - hours * HOUR,
        last_symptom_at=now,
        opened_at=now - hours * HOUR,
        resolved_at=None if resolved is None else now - resolved * HOUR,
    )


def test_incidents_of_programs_and_resolved_ones_do_not_count(cluster):
    incident(cluster, 30)
    incident(cluster, 2, state="acknowledged")
    incident(cluster, 40, resolved=3, state="resolved")
    incident(cluster, 1, scope="job", category="Script")
    root = make.user("root", is_superuser=True)

    one = incident_figure(Caller(user=root), clock.now())

    assert (one.value, one.detail) == (2, "1 open, 1 acknowledged")
    assert one.change == "no change"  # two were unresolved yesterday, too
    assert incident_figure(Caller(user=make.user("eve")), clock.now()).value == 0


def test_incident_figure_agrees_with_the_list_that_it_leads_to(cluster):
    incident(cluster, 30)
    incident(cluster, 1, scope="job", category="Script")
    root = make.user("root", is_superuser=True)
    client = Client()
    client.force_login(root)
    one = incident_figure(Caller(user=root), clock.now())

    listed = client.get(one.url).context["incidents"]().rows

    assert len(listed) == one.value == 1


def test_every_figure_has_a_page_and_a_term(cluster, ada):
    page = ada.get("/").content.decode()

    for one in [*figures().values(), incident_figure(Caller(user=make.user("ada")), clock.now())]:
        assert ada.get(one.url).status_code == 200, one.id
        assert f'id="figure-{one.id}"' in page
        assert f'aria-label="What is {one.term}?"' in page


def test_figures_take_the_same_number_of_queries_for_many_rows(cluster):
    now = clock.now()
    with CaptureQueriesContext(connection) as few:
        figures(now)
    make.cluster(f"{cluster.name}-2", nodes=8)
    for number in range(1, 40):
        minute(cluster, now - number * HOUR / 2)
        incident(cluster, number)
    Node.objects.update(state="DOWN")

    with CaptureQueriesContext(connection) as many:
        figures(now)

    assert len(many) == len(few) == 6


def test_fragment_of_the_figures_runs_only_its_own_queries(cluster, ada):
    headers = {"HX-Request": "true", "HX-Target": "section#key-figures"}

    with CaptureQueriesContext(connection) as asked:
        answer = ada.get("/", headers=headers).content.decode()

    assert answer.startswith('<section id="key-figures"') and "<html" not in answer
    assert 'id="capacity"' in answer and answer.count("hx-swap-oob") == 1
    assert not [query for query in asked if "jobs_progress" in query["sql"]]


def test_whole_page_takes_the_same_number_of_queries_for_many_rows(cluster, ada):
    root = make.user("root", is_superuser=True)
    ada.force_login(root)

    def add(number):
        name = f"{cluster.name}-{number % 4 + 1:03d}"
        make.running(make.job(by="ada", cluster=cluster, kind="pretrain"), on=[name], gpus=(number,))
        make.job(by="ada", cluster=cluster)
        minute(cluster, clock.now() - number * HOUR)
        incident(cluster, number)

    add(0)
    ada.get("/")
    with CaptureQueriesContext(connection) as few:
        ada.get("/")
    for number in range(1, 8):
        add(number)

    with CaptureQueriesContext(connection) as many:
        ada.get("/")

    assert len(many) == len(few) == 36
