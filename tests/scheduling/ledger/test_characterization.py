"""The page Characterization: distributions, shares and failures of a period beside the published ones."""

import csv
import io
from datetime import timedelta
from xml.etree import ElementTree

import pytest
from django.contrib.auth.models import Permission
from django.test import Client
from django.utils import timezone

from failures.queries.failure_statistics import failure_table
from jobs.core.lifecycle import JobKind
from jobs.models import Attempt, Job, Node, Resolution, Sample, TeamRole, clock
from scheduling.ledger.pages.characterization import PLOTS
from scheduling.ledger.reads import characterization as queries
from scheduling.ledger.reads.table import table
from scheduling.ledger.rules import characterization as study
from scheduling.ledger.rules.characterization import CauseFigures, JobCell
from scheduling.whatif.replay.acme_study import STUDY_CLUSTERS, study_figures
from tests import make
from tests.failures import make as failures

URL = "/reports/characterization/"


def cell(**fields):
    usual = {"kind": "sft", "state": "COMPLETED", "gpus": 8, "ran": 4, "waited": 0, "jobs": 1, "gpu_s": 100.0}
    return JobCell(**{**usual, **fields})


# --- figures


def test_distribution_counts_jobs_up_to_each_bound():
    points = study.distribution([cell(ran=2, jobs=3), cell(ran=4)], lambda one: one.ran)

    assert points == [(1, 0), (2, 0), (4, 75), (8, 75), (16, 100)]
    assert study.distribution([], lambda one: one.ran) == []


@pytest.mark.parametrize(("percent", "value"), [(40, 1.0), (50, 1.0), (75, 1.4142), (100, 2.0)])
def test_quantile_is_interpolated_on_a_logarithmic_scale(percent, value):
    assert study.quantile([(1.0, 50.0), (2.0, 100.0)], percent) == pytest.approx(value, rel=1e-3)


def test_quantile_beyond_the_known_times_is_unknown():
    assert study.quantile([(1.0, 50.0), (2.0, 90.0)], 99) is None


def test_published_quantiles_are_those_of_the_study():
    seren, kalos = study_figures(JobKind.PRETRAIN)

    assert study.quantile(seren.run_times, 50) == pytest.approx(297, rel=0.01)
    assert study.quantile(kalos.run_times, 90) == pytest.approx(43_161, rel=0.01)
    assert study.quantile(seren.waits, 90) == pytest.approx(26, rel=0.03)


@pytest.mark.parametrize("cluster", STUDY_CLUSTERS.values(), ids=STUDY_CLUSTERS)
def test_published_curves_never_fall_and_shares_add_up(cluster):
    for curve in (cluster.run_at_most, cluster.gpu_util, *cluster.queue_at_most.values()):
        assert list(curve) == sorted(curve)
    assert sum(cluster.jobs_by_state) == pytest.approx(100, abs=0.2)
    assert sum(cluster.gpu_time_by_state) == pytest.approx(100, abs=0.2)


def test_sizes_have_quartiles():
    cells = [cell(gpus=1, jobs=2), cell(gpus=8), cell(gpus=64)]

    assert study.size_quartiles(cells) == (1, 1, 8)
    assert study.size_quartiles([cell(gpus=16)]) == (16, 16, 16)
    assert study.size_quartiles([]) is None


@pytest.mark.parametrize(
    ("state", "group"),
    [("COMPLETED", "completed"), ("TIMEOUT", "failed"), ("PREEMPTED", "preempted"), ("CANCELLED", "cancelled")],
)
def test_final_states_have_the_groups_of_the_study(state, group):
    assert study.state_group(state) == group


def test_gpu_time_is_shared_among_states_and_kinds():
    cells = [cell(state="FAILED", gpu_s=300.0), cell(kind="evaluation", gpu_s=100.0)]

    states, kinds = study.states_plot(cells, study_figures(None)), study.kinds_plot(cells, study_figures(None))

    assert [row[:2] for row in states.rows] == [
        ["completed", "25.0%"],
        ["cancelled", "0.0%"],
        ["failed", "75.0%"],
        ["preempted", "0.0%"],
    ]
    assert dict(row[:2] for row in kinds.rows)["sft"] == "75.0%"


def test_utilization_counts_samples_below_each_percent():
    points = study.utilization_points({0: 1, 99: 2, 100: 1})

    assert (points[0], points[1], points[99], points[100]) == ((0, 0), (1, 25), (99, 25), (100, 75))
    assert points[-1] == (100, 100)


def test_ten_causes_with_the_most_gpu_time_are_shown():
    fields = {"category": "c", "failures": 1, "ran_min": 2.0, "restart_min": None, "hours_per_failure": None}
    causes = [
        CauseFigures(cause=f"C{number}", gpu_time_pct=number, published_pct=None, **fields) for number in range(12)
    ]

    plot = study.failures_plot(causes)

    assert [row[0] for row in plot.rows] == [f"C{number}" for number in range(11, 1, -1)]
    assert plot.rows[0][5:] == ["2 min", "–", "–"]


# --- queries


@pytest.fixture
def history(db):
    """Two evaluations that waited 4 s and ran 16 s, a training that was restarted, and a job that never ran."""
    make.team("pretraining", ada=TeamRole.RESEARCHER, grace=TeamRole.VIEWER)
    make.team("evaluation", ben=TeamRole.RESEARCHER)
    now = clock.now()
    for _ in range(2):
        past(make.ended(make.job(by="ada", kind="evaluation", gpus_per_node=1)), now, waited=4, ran=16)
    past(make.ended(make.job(by="ben", kind="pretrain", nodes=2, gpus_per_node=8), state="FAILED"), now, 60, 3600)
    make.job(by="ada", gpus_per_node=8)
    return now


def past(attempt, now, waited, ran):
    submitted = now - timedelta(hours=5)
    start = submitted + timedelta(seconds=waited)
    end = start + timedelta(seconds=ran)
    Job.objects.filter(pk=attempt.job_id).update(
        submitted_at=submitted, started_at=start, ended_at=end, state=attempt.state
    )
    Attempt.objects.filter(pk=attempt.pk).update(promised_at=start, confirmed_at=start, ended_at=end)
    return attempt


def counted(now, cluster=None, days=1):
    return queries.job_counts(cluster, now - timedelta(days=days), now)


def test_jobs_are_counted_by_kind_state_size_and_time(history):
    found = counted(history)

    assert (found.jobs, found.nth) == (3, 1)
    assert sorted(found.cells, key=lambda one: one.gpus) == [
        JobCell(kind="evaluation", state="COMPLETED", gpus=1, ran=4, waited=2, jobs=2, gpu_s=32.0),
        JobCell(kind="pretrain", state="FAILED", gpus=16, ran=12, waited=6, jobs=1, gpu_s=57_600.0),
    ]


def test_wait_ends_with_the_first_start_and_gpu_time_has_all_attempts(history):
    job = Job.objects.get(kind="pretrain")
    first = job.attempts.get()
    start = first.ended_at + timedelta(hours=1)
    end = start + timedelta(seconds=100)
    Attempt.objects.create(
        job=job, number=2, key="again", promised_at=start, confirmed_at=start, ended_at=end, state="FAILED"
    )
    Job.objects.filter(pk=job.pk).update(started_at=start, ended_at=end)

    training = next(one for one in counted(history).cells if one.kind == "pretrain")

    assert (training.waited, training.ran, training.gpu_s) == (6, 7, 16 * 3700)


def test_only_the_cluster_and_the_period_count(history):
    other = make.cluster("kalos")

    assert counted(history, other).jobs == 0
    assert counted(history, Job.objects.first().cluster).jobs == 3
    assert counted(history - timedelta(days=1)).jobs == 0


def test_utilization_reads_the_samples_of_the_period(history):
    node = Node.objects.first()
    hour = history.replace(minute=0, second=0, microsecond=0) - timedelta(hours=2)
    Sample.objects.create(node=node, at=hour, resolution=Resolution.FIVE_MINUTES, gpu_util=[0.0, 99.5, None])
    Sample.objects.create(node=node, at=hour - timedelta(days=2), resolution=Resolution.FIVE_MINUTES, gpu_util=[50.0])

    found = queries.utilization_counts(None, history - timedelta(days=1), history)

    assert (found.counts, found.resolution) == ({0: 1, 99: 1}, Resolution.FIVE_MINUTES)
    assert queries.utilization_counts(make.cluster("kalos"), history - timedelta(days=1), history).counts == {}


def test_failures_have_the_figures_of_the_pages_failures_and_reports(db, tmp_path):
    row = failures.diagnosed(tmp_path)
    since, until = row.failed_at - timedelta(days=1), timezone.now() + timedelta(hours=1)

    causes = queries.cause_figures(None, since, until, None)

    published = failure_table("cause", since, until, None)
    assert [(one.cause, one.failures, one.ran_min) for one in causes] == [
        (one.reason, one.num, one.time_to_failure_min_avg) for one in published.rows
    ]
    mttf = table("cluster", since, until).mttf_by_cause
    assert [one.hours_per_failure for one in causes] == [
        mttf[one.cause].mean if one.cause in mttf else None for one in causes
    ]
    assert queries.cause_figures(make.cluster("kalos"), since, until, None) == []
    assert queries.cause_figures(None, since, until, []) == []


# --- the page


def browser(name):
    client = Client()
    client.force_login(make.user(name))
    return client


def text(response):
    return response.content.decode()


def test_page_compares_own_jobs_with_the_study(history):
    page = browser("ben").get(URL)

    assert page.status_code == 200
    assert [panel.plot.key for panel in page.context["panels"]] == list(PLOTS[:-1])
    for words in ("3 jobs</strong>", "Seren 2023", "Kalos 2023", "Queue wait", "CC BY 4.0"):
        assert words in text(page), words
    assert page.context["panels"][0].plot.rows[0][0] == "Your jobs"


def test_kind_selects_the_jobs_of_the_distributions(history):
    page = browser("ada").get(f"{URL}?kind=pretrain&days=1&cluster=seren")

    run_times = page.context["panels"][0].plot
    assert run_times.chart.curves[0].points[-1] == (4096.0, 100.0)
    assert "kind=pretrain" in page.context["panels"][0].svg_url
    assert "cluster=seren" in page.context["panels"][0].csv_url


def test_empty_period_is_shown_as_such(history):
    page = browser("ada").get(f"{URL}?month=2026-01")

    assert page.status_code == 200 and "0 jobs</strong>" in text(page)
    assert "Your jobs" not in text(page).partition("Queue wait")[0]


@pytest.mark.parametrize("plot", PLOTS)
def test_every_plot_is_exported_as_svg_and_csv(history, tmp_path, plot):
    failures.diagnosed(tmp_path)
    ada = browser("ada")

    svg, table_ = (ada.get(f"{URL}?plot={plot}&export={form}") for form in ("svg", "csv"))

    assert svg.headers["Content-Type"].startswith("image/svg+xml")
    assert svg.headers["Content-Disposition"].startswith(f'attachment; filename="{plot}-')
    assert ElementTree.fromstring(text(svg)).tag.endswith("svg")
    rows = list(csv.reader(io.StringIO(text(table_))))
    assert rows[0][0] == "series" and len(rows) > 1


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("days=5", "days: '5' is not one of 1, 7, 30"),
        ("cluster=atlantis", "cluster: 'atlantis' is not a known cluster"),
        ("kind=lottery", "kind: 'lottery' is not one of pretrain"),
        ("plot=rainbow", "plot: 'rainbow' is not one of run-time"),
        ("export=png", "export: 'png' is not one of svg, csv"),
    ],
)
def test_invalid_address_is_reported(history, query, sentence):
    ada = browser("ada")

    exported = ada.get(f"{URL}?export=svg&{query}")

    assert exported.status_code == 400 and sentence.replace("'", "") in text(exported).replace("'", "")
    assert ada.get(f"{URL}?{query}").status_code == 400


def test_failures_come_as_a_fragment_and_count_the_teams_of_the_viewer(history, tmp_path):
    failures.diagnosed(tmp_path)
    marks = {"HX-Request": "true", "HX-Target": "div#failures-plot"}
    operator = make.user("olga")
    operator.user_permissions.add(Permission.objects.get(codename="operate_cluster"))

    whole = text(browser("ada").get(f"{URL}?plot=failures"))
    of_others, of_all = (text(browser(name).get(f"{URL}?plot=failures", headers=marks)) for name in ("ben", "olga"))

    assert "Failures by cause" in whole and "<html" in whole
    assert "<html" not in of_all and "Failures are those of your teams." not in of_all
    assert "Failures are those of your teams." in of_others
    assert of_others.count("<tr>") <= of_all.count("<tr>")


def test_page_is_refused_without_a_login(db):
    assert Client().get(URL).status_code == 302


def test_number_of_queries_does_not_depend_on_the_jobs(history, django_assert_num_queries):
    ada = browser("ada")
    ada.get(URL)
    # session, user, clock; roles; jobs (2), utilization (4), failures; clusters
    with django_assert_num_queries(14):
        ada.get(URL)
