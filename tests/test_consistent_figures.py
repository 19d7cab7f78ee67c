"""No two pages show different values of the same figure, over the thirty days of the demo's two clusters."""

from __future__ import annotations

import csv
import io
from datetime import timedelta

import pytest
from django.template.defaultfilters import floatformat
from django.test import Client
from django.urls import reverse
from prometheus_client.parser import text_string_to_metric_families

from failures.models import Diagnosis
from jobs.core.charts.gpu_map import FREE_GPU
from jobs.models import Event, TokenScope, clock
from scheduling.ledger.loops.figures import update_ledger_metrics_once
from scheduling.ledger.loops.periods import store_periods_once
from scheduling.ledger.reads.table import GROUPINGS
from scheduling.simulation.demo import users
from scheduling.simulation.demo.history import write
from tests import make
from tests.jobs.api import api_make
from tests.page_text import page_text

pytestmark = pytest.mark.django_db
DAYS = 30
CLUSTERS = ("seren", "kalos")


@pytest.fixture(scope="module", autouse=True)
def history(rows_for_module):
    """Thirty days of two small clusters, and jobs that run and wait now."""
    seren = make.cluster(name="seren", nodes=4)
    kalos = make.cluster(name="kalos", nodes=3, address="kubernetes:///etc/acme/tokens/kalos")
    users.create_teams_and_users()
    write.reserve_keys()
    write.write_history(dict.fromkeys((seren, kalos), lambda logs: None), clock.now(), lambda share: None, days=DAYS)
    outage = {"node": seren.nodes.first(), "cluster": seren, "at": clock.now() - timedelta(days=3)}
    Event.objects.create(type="node.state_changed", from_state="IDLE", to_state="DOWN", by="sync", **outage)
    make.running(make.job(cluster=seren, nodes=2, gpus_per_node=8), on=["seren-001", "seren-002"])
    make.running(make.job(cluster=kalos, nodes=1, gpus_per_node=8), on=["kalos-001"])
    make.job(cluster=seren, nodes=4, gpus_per_node=8)
    make.job(cluster=kalos, nodes=3, gpus_per_node=8)
    store_periods_once(clock.now())
    update_ledger_metrics_once(clock.now())
    return {"seren": seren, "kalos": kalos}


@pytest.fixture(scope="module")
def admin(history):
    return make.user("root", is_superuser=True, is_staff=True)


@pytest.fixture
def browser(admin):
    client = Client()
    client.force_login(admin)
    return client


@pytest.fixture
def api(admin):
    """A function that reads a resource of the API."""
    headers = {"Authorization": f"Bearer {api_make.token(admin, TokenScope.READ)}"}

    def read(path, **query):
        response = Client().get(f"/api/v1/{path}", query, headers=headers)
        assert response.status_code == 200, response.content
        return response.json()

    read.headers = headers
    return read


@pytest.fixture
def metrics(admin):
    headers = {"Authorization": f"Bearer {api_make.token(admin, TokenScope.READ)}"}
    text = Client().get("/metrics", headers=headers).content.decode()
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def key_figures(browser):
    return {one.id: one for one in browser.get(reverse("home")).context["key_figures"]()}


def summaries(browser):
    return {one.cluster.name: one for one in browser.get(reverse("home")).context["clusters"]()}


def capacities(browser):
    return {name: summary.capacity for name, summary in summaries(browser).items()}


def metric(metrics, name, **labels):
    """The value of the series with these labels."""
    (found,) = [one.value for one in metrics if one.name == name and one.labels == labels]
    return found


def report(browser, by="cluster", days=DAYS):
    return browser.get(reverse("reports"), {"days": days, "by": by}).context


def csv_rows(response):
    return list(csv.DictReader(io.StringIO(response.getvalue().decode())))


def api_ledger(api, by="cluster", days=DAYS):
    until = clock.now()
    return api("ledger/", **{"from": (until - timedelta(days=days)).isoformat(), "to": until.isoformat(), "by": by})


# --- now: home, map, nodes, jobs, queue, API and metrics


@pytest.mark.parametrize("name", CLUSTERS)
def test_gpus_of_a_cluster_by_use(name, browser, api, metrics):
    capacity = capacities(browser)[name]
    holders = browser.get(reverse("map-data", args=[name])).json()["who"]
    free = metric(metrics, "slurm_gpus", cluster=name, state="free")

    assert len(holders) == capacity.total == metric(metrics, "slurm_gpus", cluster=name, state="total")
    assert sum(holder != FREE_GPU for holder in holders) == capacity.allocated > 0
    assert metric(metrics, "slurm_gpus", cluster=name, state="allocated") == capacity.allocated
    assert free == capacity.free == holders.count(FREE_GPU)
    assert sum(node["gpus_allocated"] for node in api("nodes/", cluster=name)["results"]) == capacity.allocated
    rows = browser.get(reverse("nodes"), {"cluster": name}).context["rows"]
    assert sum(row.held for row in rows) == capacity.allocated


def test_gpus_of_all_clusters_by_use(browser, api):
    found = capacities(browser).values()
    allocated, total = sum(one.allocated for one in found), sum(one.total for one in found)

    assert key_figures(browser)["allocated"].detail == f"{allocated} of {total}" == "24 of 56"
    assert sum(row.held for row in browser.get(reverse("nodes")).context["rows"]) == allocated


@pytest.mark.parametrize("name", CLUSTERS)
def test_pending_and_running_jobs_of_a_cluster(name, browser, api, metrics):
    cluster = summaries(browser)[name]

    for state, count in (("PENDING", cluster.waiting), ("RUNNING", cluster.running)):
        assert count == len(api("jobs/", state=state, cluster=name)["results"]) == 1
        assert metric(metrics, "slurm_jobs", cluster=name, state=state.lower()) == count
        assert len(csv_rows(browser.get(reverse("jobs-csv"), {"state": state, "cluster": name}))) == count


def test_pending_jobs_of_all_clusters(browser, api):
    waiting = sum(one.waiting for one in summaries(browser).values())

    assert key_figures(browser)["pending"].value == waiting == len(api("jobs/", state="PENDING")["results"])


def test_open_incidents(browser, api, metrics):
    response = browser.get(reverse("home"))
    figure = response.context["incident_figure"]()
    incidents = api("incidents/", limit=200)["results"]
    unresolved = [one for one in incidents if one["state"] in ("open", "acknowledged")]
    platform = [one for one in unresolved if one["scope"] != "job"]

    assert figure.value == len(platform)
    for name in CLUSTERS:
        of_cluster = [one["state"] for one in unresolved if one["cluster"] == name]
        for state in ("open", "acknowledged"):
            assert metric(metrics, "acme_incidents", cluster=name, state=state) == of_cluster.count(state)


# --- the last day: home, report, API and metrics


def test_goodput_and_ettr_of_the_last_day(browser, api):
    figures, table, ledger = key_figures(browser), report(browser, days=1)["table"], api_ledger(api, days=1)

    for name in ("goodput", "ettr"):
        assert ledger[name] == pytest.approx(getattr(table, name), abs=0.002)
        assert figures[name].value == pytest.approx(100 * ledger[name], abs=0.7)


@pytest.mark.parametrize("name", CLUSTERS)
def test_goodput_of_a_cluster_in_the_last_day(name, browser, api, metrics):
    exported = metric(metrics, "acme_goodput_ratio", cluster=name)
    in_report = {row.name: row.goodput for row in report(browser, days=1)["table"].rows}
    in_api = {row["name"]: row["goodput"] for row in api_ledger(api, days=1)["rows"]}

    assert exported == pytest.approx(in_report[name], abs=0.002) == pytest.approx(in_api[name], abs=0.002)


# --- thirty days: report, failures, characterization, API, CSV


def test_gpu_hours_by_every_grouping(browser, api):
    whole, ledger = report(browser)["whole"], api_ledger(api, "kind")

    assert ledger["capacity_gpu_hours"] == pytest.approx(whole.hours)
    for part in whole.parts:
        in_api = sum(ledger["gpu_hours"][bucket] for bucket in part.group.buckets)
        assert in_api == pytest.approx(part.hours, rel=1e-3), part.group.name
    for by in GROUPINGS:
        table = csv_rows(browser.get(reverse("report-csv"), {"days": DAYS, "by": by}))
        for part in whole.parts:
            in_csv = sum(float(row[bucket]) for row in table for bucket in part.group.buckets)
            assert in_csv == pytest.approx(part.hours, rel=1e-3), (by, part.group.name)


def test_causes_of_lost_and_closed_gpu_hours_add_up_to_their_columns(browser, api):
    context, ledger = report(browser), api_ledger(api)
    columns = {part.group.name: part.hours for part in context["whole"].parts}

    for name in ("lost", "closed"):
        assert sum(hours for _, hours, *_ in context[name]) == pytest.approx(columns[name]) != 0
        assert sum(row["gpu_hours"] for row in ledger[name]) == pytest.approx(columns[name], rel=1e-3)


def test_number_of_failures_and_their_causes(browser, api):
    since, until = clock.now() - timedelta(days=DAYS), clock.now()
    period = {"from": since.isoformat(), "to": until.isoformat()}
    table, statistics = report(browser)["table"], api("failures/statistics/", **period)
    page = browser.get(reverse("failures")).context["figures"]().table
    study = browser.get(reverse("characterization"), {"days": DAYS}).context["failures"]().plot
    in_csv = Client().get("/api/v1/failures/statistics/", period | {"format": "csv"}, headers=api.headers)

    assert table.mttf.failures == statistics["num"] == page.num
    causes = {row["reason"]: row["num"] for row in statistics["rows"]}
    assert {cause: mttf.failures for cause, mttf in table.mttf_by_cause.items()} == causes
    assert {row["reason"]: int(row["num"]) for row in csv_rows(in_csv)} == causes
    assert {row.reason: row.num for row in page.rows} == causes
    shown = {row[0]: row[1:] for row in study.rows}
    assert shown.keys() <= {*causes, "others"}


def test_lemon_scores_of_nodes(browser):
    rows = browser.get(reverse("nodes")).context["rows"]

    assert any(row.lemon for row in rows)
    for row in rows:
        page = page_text(browser.get(reverse("node", args=[row.node.cluster.name, row.node.name])))
        assert (f"lemon score {floatformat(row.lemon, 1)} of" in page) == (row.lemon > 0)


# --- one job: its page, the lists, the API


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_a_failed_job_has_the_same_cause_and_times_everywhere(cluster, browser, api):
    failed = Diagnosis.objects.filter(attempt__job__state="FAILED", cluster__name=cluster)
    diagnosis = failed.select_related("attempt__job").latest("failed_at")
    job = diagnosis.attempt.job
    resource, verdict = api(f"jobs/{job.public_id}/"), api(f"jobs/{job.public_id}/diagnosis/")
    rows = csv_rows(browser.get(reverse("jobs-csv"), {"cause": diagnosis.root_cause}))
    (row,) = [one for one in rows if one["JobID"] == job.public_id]
    page = page_text(browser.get(reverse("job", args=[job.public_id])))

    assert verdict["root_cause"] == row["Cause"] == diagnosis.root_cause
    assert diagnosis.root_cause in page
    assert resource["state"] == row["State"] == "FAILED"
    assert len(api(f"jobs/{job.public_id}/attempts/")["results"]) == job.attempts.count()
