"""The metrics for Prometheus, and access to them."""

from __future__ import annotations

import re
import uuid
from datetime import timedelta

import pytest
import redis
from django.conf import settings as configured
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from prometheus_client.parser import text_string_to_metric_families

from acmeweb.common import metrics_store
from acmeweb.common.env import EnvReader, InvalidEnvSetting
from failures.actions import incidents as incident_actions
from jobs.models import Cluster, Node, TokenScope, clock
from scheduling.actions import estimates as estimate_actions
from scheduling.models import EstimateError, EstimateLead, RunTimeModel
from tests import make as rows
from tests.failures import make as failures
from tests.jobs.api import api_make as make

pytestmark = pytest.mark.django_db
LINE = re.compile(r'[a-z_]+(?:\{(?:[a-z]+="(?:[^"\\\n]|\\.)*",?)+\})? -?[0-9.e+-]+')


@pytest.fixture
def scrape():
    make.cluster()
    token = make.token(make.person("ada"), TokenScope.READ)

    def ask():
        answer = Client().get("/metrics", headers={"Authorization": f"Bearer {token}"})
        assert answer.status_code == 200, answer.content
        return answer.content.decode()

    return ask


def samples(text):
    """Return the value of each series, independent of the order of the labels and of the form of numbers."""
    found = [one for family in text_string_to_metric_families(text) for one in family.samples]
    values = {(one.name, frozenset(one.labels.items())): one.value for one in found}
    assert len(values) == len(found), "a series occurs twice"
    return values


def assert_exports(text, *lines):
    found, expected = samples(text), samples("\n".join(lines))
    assert {series: found.get(series) for series in expected} == pytest.approx(expected, rel=1e-12)


def test_jobs_nodes_and_waits_by_state(scrape):
    make.running(make.job(gpus_per_node=2), gpus=(0, 1))
    make.job()
    Node.objects.filter(name="gpu004").update(drain_requested=True)

    said = scrape()

    assert_exports(
        said,
        'slurm_jobs{cluster="seren",state="pending"} 1',
        'slurm_jobs{cluster="seren",state="running"} 1',
        'slurm_nodes{cluster="seren",state="idle"} 4',
        'slurm_nodes{cluster="seren",state="drain"} 1',
        'slurm_gpus{cluster="seren",state="total"} 32',
        'slurm_gpus{cluster="seren",state="allocated"} 2',
    )
    assert 'acme_queue_wait_seconds{cluster="seren",quantile="0.5"} ' in said
    assert 'acme_queue_oldest_seconds{cluster="seren"} ' in said


@pytest.fixture
def unique_name():
    """The name of a cluster that only this test stores figures of: tests share Valkey."""
    if not configured.VALKEY_URL:
        pytest.skip("no Valkey")
    name = uuid.uuid4().hex
    yield name
    with redis.Redis.from_url(configured.VALKEY_URL) as server:
        server.delete(f"acme:figures:account:{name}")
        for field in server.hkeys("acme:tally:schedule_cycle"):
            if name.encode() in field:
                server.hdel("acme:tally:schedule_cycle", field)


def test_turn_duration_is_a_histogram(scrape, unique_name):
    for seconds in (0.004, 0.246, 0.5):
        metrics_store.record_duration("schedule_cycle", f'{unique_name}"odd', seconds)

    said = scrape().replace(unique_name, "it")

    assert "# TYPE slurm_schedule_cycle_seconds histogram\n" in said
    assert_exports(
        said,
        'slurm_schedule_cycle_seconds_bucket{cluster="it\\"odd",le="0.005"} 1',
        'slurm_schedule_cycle_seconds_bucket{cluster="it\\"odd",le="0.25"} 2',
        'slurm_schedule_cycle_seconds_bucket{cluster="it\\"odd",le="+Inf"} 3',
        'slurm_schedule_cycle_seconds_sum{cluster="it\\"odd"} 0.75',
        'slurm_schedule_cycle_seconds_count{cluster="it\\"odd"} 3',
    )


def test_incidents_by_state_and_failures_by_cause(scrape, tmp_path):
    died = failures.diagnosed(tmp_path, by="ada")
    failures.diagnosed(tmp_path, failures.STORAGE, by="ada")
    incident_actions.acknowledge(died.incident, author=rows.author(), now=clock.now())

    said = scrape()

    assert_exports(
        said,
        'acme_incidents{cluster="seren",state="open"} 1',
        'acme_incidents{cluster="seren",state="acknowledged"} 1',
        'acme_failures_last_day{cluster="seren",category="Script",cause="TypeError"} 1',
        "acme_diagnoses_open 0",
    )
    lost = [value for (name, _), value in samples(said).items() if name == "acme_failures_gpu_hours_lost_last_day"]
    assert lost == [pytest.approx(16, abs=0.1), pytest.approx(16, abs=0.1)]


def test_accuracy_of_start_estimates_is_exported(scrape):
    seren, now = make.cluster(), clock.now()
    estimate_actions.record_forecast(seren, now=now, jobs=3, took=timedelta(seconds=1), seen="")
    EstimateError.objects.create(
        cluster=seren, lead=EstimateLead.HOUR, jobs=7, median_s=90.5, within_p90=0.75, updated_at=now
    )

    said = scrape()

    assert_exports(
        said,
        'acme_start_estimate_error_seconds{cluster="seren",ahead="1h"} 90.5',
        'acme_start_estimate_within_p90_ratio{cluster="seren",ahead="1h"} 0.75',
        'acme_start_estimates_evaluated{cluster="seren",ahead="1h"} 7',
        f'acme_start_estimates_computed_timestamp_seconds{{cluster="seren"}} {now.timestamp()!r}',
    )


def test_accuracy_of_run_time_predictions_is_exported(scrape):
    seren = make.cluster()
    RunTimeModel.objects.create(cluster=seren, jobs=70, updated_at=clock.now(), median_ratio=1.5, p90_ratio=4.0)
    RunTimeModel.objects.update(trees_median_ratio=1.25, trees_p90_ratio=3.0)

    assert_exports(
        scrape(),
        'acme_run_time_prediction_trees_median_ratio{cluster="seren"} 1.25',
        'acme_run_time_prediction_trees_p90_ratio{cluster="seren"} 3.0',
        'acme_run_time_prediction_median_ratio{cluster="seren"} 1.5',
        'acme_run_time_prediction_p90_ratio{cluster="seren"} 4.0',
        'acme_run_times_learned{cluster="seren"} 70.0',
    )


def test_ledger_of_the_last_day_is_exported_as_stored_by_its_loop(scrape, unique_name):
    Cluster.objects.update(name=unique_name)
    day = {"at": 1.5e9, "ratios": {"goodput": 0.25}, "gpu_hours": {"free": 576.0, "productive": 192.0}}
    day |= {"recoveries": {"ECCError": 2}, "recovery_s": 90.0}
    day |= {"kwh": {"counter": 12.5, "estimate": 0.5}, "kwh_lost": {"ECCError": 1.5}}
    day |= {"energy_cost": 3.0, "co2_kg": None}
    metrics_store.store_figures("account", unique_name, day, 600)

    said = scrape().replace(unique_name, "seren")

    assert_exports(
        said,
        'acme_goodput_ratio{cluster="seren"} 0.25',
        'acme_gpu_hours_last_day{cluster="seren",bucket="productive"} 192',
        'acme_recoveries_last_day{cluster="seren",cause="ECCError"} 2',
        'acme_recovery_seconds{cluster="seren"} 90',
        'acme_energy_kwh_last_day{cluster="seren",basis="counter"} 12.5',
        'acme_energy_kwh_lost_last_day{cluster="seren",cause="ECCError"} 1.5',
        'acme_energy_cost_last_day{cluster="seren"} 3',
        'acme_ledger_computed_timestamp_seconds{cluster="seren"} 1500000000',
    )
    assert "acme_ettr_ratio{" not in said
    assert "acme_co2_kg_last_day{" not in said


def test_start_reported_in_whole_seconds_before_the_submission_is_no_negative_wait(scrape):
    job = make.running(make.job(gpus_per_node=1))
    job.started_at = job.submitted_at - timedelta(seconds=0.4)
    job.save(update_fields=["started_at"])

    assert_exports(scrape(), 'acme_queue_wait_seconds{cluster="seren",quantile="0.5"} 0')


def test_output_is_valid_prometheus_text(scrape):
    make.running(make.job(gpus_per_node=1))

    lines = scrape().splitlines()

    assert all(line.startswith("# ") or LINE.fullmatch(line) for line in lines)
    series = [line.rpartition(" ")[0] for line in lines if not line.startswith("#")]
    assert len(set(series)) == len(series)


def test_only_the_info_metric_names_jobs_and_only_visible_ones(scrape):
    mine = make.running(make.job(make.person("ada"), gpus_per_node=1))
    theirs = make.running(make.job(make.person("grace", "speech"), "speech", gpus_per_node=1), gpus=(1,))

    said = scrape()

    (line,) = [line for line in said.splitlines() if str(mine) in line]
    expected = f'acme_job_info{{job="{mine}",cluster="seren",team="vision",user="ada",kind="other"}} 1'
    assert samples(line) == samples(expected)
    assert str(theirs) not in said and 'slurm_jobs{cluster="seren",state="running"} 2.0\n' in said


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer x"}, {"Authorization": "Basic x"}])
def test_anonymous_scrape_is_refused(headers):
    answer = Client().get("/metrics", headers=headers)

    assert answer.status_code == 401
    assert b"slurm" not in answer.content and "WWW-Authenticate" in answer.headers


def test_configured_network_needs_no_token(settings):
    settings.ACME_METRICS_NETWORKS = ["10.0.0.0/8"]

    assert Client(REMOTE_ADDR="10.1.2.3").get("/metrics").status_code == 200
    assert Client(REMOTE_ADDR="11.1.2.3").get("/metrics").status_code == 401
    assert Client(REMOTE_ADDR="").get("/metrics").status_code == 401


def test_invalid_network_stops_the_process():
    with pytest.raises(InvalidEnvSetting, match="ACME_METRICS_NETWORKS"):
        EnvReader({"ACME_METRICS_NETWORKS": "10.0.0.0/8,10.1/99"}).networks("ACME_METRICS_NETWORKS")


def test_number_of_queries_does_not_grow_with_jobs(scrape):
    make.job()
    scrape()
    with CaptureQueriesContext(connection) as few:
        scrape()
    for _ in range(20):
        make.job()

    with CaptureQueriesContext(connection) as many:
        scrape()

    assert len(many) == len(few) <= 30
