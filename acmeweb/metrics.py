"""`/metrics` for Prometheus: jobs, nodes and GPUs by state under the names that Slurm's exporters gave them.

A scrape needs a token of scope read, or an address in ACME_METRICS_NETWORKS. Ended jobs are counted over the last day
only: counting a year of them every fifteen seconds would be the most expensive query. Only the info metric has the
job's id as a label, and it contains only jobs that the token may see.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.db import connection
from django.db.models import Count, F, FloatField, QuerySet, Sum
from django.db.models.functions import Extract
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector
from rest_framework.exceptions import AuthenticationFailed

from acmeweb.auth.api_authentication import BearerTokenAuthentication
from acmeweb.common import metrics_store
from acmeweb.loops.health import backlogs, database_connections, read_health
from acmeweb.updates.web_load import read_web_load
from failures.models import Diagnosis, Incident, IncidentState
from jobs.core.lifecycle import NodeState, State
from jobs.models import Cluster, Job, LatestProgress, LoopFailure, Node, ProgressSource, TokenScope, clock
from jobs.models.permissions import Caller
from jobs.queries.cluster_summary import cluster_summaries
from jobs.queries.queue_waits import recent_queue_waits
from scheduling.ledger.reads import figures as ledger_figures
from scheduling.models import EstimateError, Forecast, PowerBudget, RunTimeModel
from scheduling.power.budget_states import budget_states

UNFINISHED_STATES = [State.PENDING, State.RUNNING, State.SUSPENDED]
DAY = timedelta(days=1)
QUANTILES = (0.5, 0.9, 0.99)
FRESH_HEARTBEAT = timedelta(minutes=2)


@login_not_required
@require_safe
def metrics_page(request: HttpRequest) -> HttpResponse:
    try:
        visible = _visible_jobs(request)
    except AuthenticationFailed as error:
        refusal = HttpResponse(f"{error.detail}\n", status=401, content_type="text/plain; charset=utf-8")
        refusal["WWW-Authenticate"] = 'Bearer realm="acme"'
        return refusal
    text = generate_latest(AcmeCollector(clock.now(), visible))
    return HttpResponse(text, content_type=CONTENT_TYPE_PLAIN_0_0_4, headers={"Cache-Control": "no-store"})


def _visible_jobs(request: HttpRequest) -> QuerySet[Job]:
    """Return the jobs that may be named; raise AuthenticationFailed if the caller may see nothing."""
    if request.headers.get("Authorization"):
        credentials = BearerTokenAuthentication().authenticate(request)
        if credentials:
            user, token = credentials
            return Caller(user=user, scope=TokenScope(token.scope), token=token).jobs()
    elif _is_in_networks(request.META.get("REMOTE_ADDR", ""), settings.ACME_METRICS_NETWORKS):
        return Job.objects.all()
    raise AuthenticationFailed("Requires a token of scope read, or a client address in ACME_METRICS_NETWORKS.")


def _is_in_networks(address: str, networks: Iterable[str]) -> bool:
    try:
        client = ipaddress.ip_address(address)
    except ValueError:
        return False
    return any(client in ipaddress.ip_network(network) for network in networks)


@dataclass(frozen=True)
class AcmeCollector(Collector):
    """All metrics of one scrape. Each scrape has its own, because the visible jobs depend on the caller."""

    now: datetime
    visible: QuerySet[Job]

    def collect(self) -> Iterator[Metric]:
        clusters = list(Cluster.objects.all())
        names = {one.pk: one.name for one in clusters}
        yield _unfinished_jobs(names)
        yield _ended_jobs(names, self.now)
        yield _nodes(names)
        yield _gpus(self.now)
        yield from _queue_waits(names, self.now)
        yield _turn_durations()
        yield from _loop_metrics(self.now)
        yield from _contact_metrics(clusters, self.now)
        yield from _power_budgets(clusters, self.now)
        yield _reporting_attempts(self.now)
        yield _incidents(names)
        yield from _failures(names, self.now)
        yield from _estimates()
        yield from _predictions()
        yield from _accounting(names.values())
        yield _job_info(names, self.visible)


def _gauge(
    name: str, help: str, labels: Sequence[str], samples: Iterable[tuple[Sequence[str], float]]
) -> GaugeMetricFamily:
    """Return a gauge with these samples: the values of the labels, and the number."""
    family = GaugeMetricFamily(name, help, labels=labels)
    for values, number in samples:
        family.add_metric(values, number)
    return family


def _unfinished_jobs(names: Mapping[int, str]) -> Metric:
    """Both partial indexes hold unfinished jobs only."""
    counts: Counter[tuple[int, str]] = Counter()
    for states in ([State.PENDING], [State.RUNNING, State.SUSPENDED]):
        rows = Job.objects.filter(state__in=states).order_by().values_list("cluster_id", "state")
        counts.update({(home, state): count for home, state, count in rows.annotate(Count("pk"))})
    samples = [((name, state.lower()), counts[pk, state]) for pk, name in names.items() for state in UNFINISHED_STATES]
    return _gauge("slurm_jobs", "Unfinished jobs by state.", ("cluster", "state"), samples)


def _ended_jobs(names: Mapping[int, str], now: datetime) -> Metric:
    rows = Job.objects.filter(ended_at__gte=now - DAY).order_by().values_list("cluster_id", "state")
    counts = rows.annotate(Count("pk")).order_by("cluster_id", "state")
    samples = [((names[home], state.lower()), count) for home, state, count in counts]
    help = "Jobs that ended within 24 hours, by final state."
    return _gauge("acme_jobs_ended_last_day", help, ("cluster", "state"), samples)


def _nodes(names: Mapping[int, str]) -> Metric:
    counts: Counter[tuple[int, str]] = Counter()
    for node in Node.objects.only("cluster_id", "state", "flags", "drain_requested"):
        counts[node.cluster_id, NodeState(node.state).lower()] += 1
        for flag in node.all_flags:
            counts[node.cluster_id, str(flag).lower()] += 1
    samples = [((names[home], state), count) for (home, state), count in sorted(counts.items())]
    help = "Nodes by state; flags such as drain are counted additionally."
    return _gauge("slurm_nodes", help, ("cluster", "state"), samples)


def _gpus(now: datetime) -> Metric:
    parts = ("total", "allocated", "free", "drained", "down")
    samples = [
        ((one.cluster.name, part), float(getattr(one.capacity, part)))
        for one in cluster_summaries(now)
        for part in parts
    ]
    return _gauge("slurm_gpus", "GPUs by state.", ("cluster", "state"), samples)


OLDEST_WAIT_SQL = """
SELECT cluster_id, extract(epoch FROM %s - min(submitted_at))::float8 FROM jobs_job
WHERE state = 'PENDING' GROUP BY cluster_id ORDER BY cluster_id
"""


def _queue_waits(names: Mapping[int, str], now: datetime) -> Iterator[Metric]:
    with connection.cursor() as cursor:
        cursor.execute(OLDEST_WAIT_SQL, [now])
        oldest = cursor.fetchall()
    waits = [
        ((names[home], str(quantile)), seconds)
        for home, percentiles in recent_queue_waits(now, QUANTILES).by_cluster.items()
        for quantile, seconds in zip(QUANTILES, percentiles, strict=True)
    ]
    help = "Queue wait of the jobs that started within the last hour."
    yield _gauge("acme_queue_wait_seconds", help, ("cluster", "quantile"), waits)
    longest = [((names[home],), max(0.0, seconds)) for home, seconds in oldest]
    yield _gauge("acme_queue_oldest_seconds", "Queue wait of the job that waits longest.", ("cluster",), longest)


def _turn_durations() -> Metric:
    help = "Duration of the scheduling decisions of a turn, including writing them."
    family = HistogramMetricFamily("slurm_schedule_cycle_seconds", help, labels=("cluster",))
    for name, counts in sorted(metrics_store.read_durations("schedule_cycle").items()):
        bounds = (*map(str, metrics_store.BOUNDS_S), "+Inf")
        family.add_metric((name,), list(zip(bounds, (*counts.within, counts.count), strict=True)), counts.total_s)
    return family


def _loop_metrics(now: datetime) -> Iterator[Metric]:
    """How late the loops are, what failed in them, and what waits. The age also grows while a loop fails."""
    rows = [((row.loop.name, row.cluster), row) for row in read_health(now).loops]
    labels = ("loop", "cluster")
    help = "Seconds since the last run of the loop without an error."
    yield _gauge("acme_loop_age_seconds", help, labels, [(to, row.age.total_seconds()) for to, row in rows])
    help = "The loop is late if its age exceeds this."
    bounds = [(to, row.loop.bound.total_seconds()) for to, row in rows]
    yield _gauge("acme_loop_bound_seconds", help, labels, bounds)
    help = "Duration of the last run."
    durations = [(to, row.took.total_seconds()) for to, row in rows if row.took is not None]
    yield _gauge("acme_loop_last_duration_seconds", help, labels, durations)
    help = "How much later than due the last run began."
    delays = [(to, row.delay.total_seconds()) for to, row in rows if row.delay is not None]
    yield _gauge("acme_loop_last_delay_seconds", help, labels, delays)
    errors = CounterMetricFamily("acme_loop_errors", "Errors that the loop logged.", labels=labels)
    counts = LoopFailure.objects.values_list("loop__name", "loop__cluster__name").annotate(total=Sum("count"))
    for name, cluster, total in counts.order_by("loop__name", "loop__cluster__name"):
        errors.add_metric((name, cluster or ""), total)
    yield errors
    waiting = backlogs(now)
    help = "Rows that wait for a loop or a worker."
    yield _gauge("acme_backlog", help, ("kind",), [((row.kind,), row.count) for row in waiting])
    help = "Age of the oldest of them."
    ages = [((row.kind,), row.oldest.total_seconds() if row.oldest else 0) for row in waiting]
    yield _gauge("acme_backlog_oldest_seconds", help, ("kind",), ages)
    used, most = database_connections()
    yield GaugeMetricFamily("acme_database_connections", "Clients of the database server.", value=used)
    yield GaugeMetricFamily("acme_database_connections_limit", "Clients that it accepts.", value=most)
    web = read_web_load()
    yield GaugeMetricFamily("acme_web_sockets", "Open websockets of pages.", value=web.sockets)
    help = "Connections that requests of the web processes use."
    yield GaugeMetricFamily("acme_web_database_connections", help, value=web.connections)
    help = "Requests that wait for a connection of their web process."
    yield GaugeMetricFamily("acme_web_database_waiting_requests", help, value=web.waiting)


def _contact_metrics(clusters: Sequence[Cluster], now: datetime) -> Iterator[Metric]:
    ages = [((one.name,), (now - one.last_contact_at).total_seconds()) for one in clusters if one.last_contact_at]
    help = "Seconds since the cluster last answered."
    yield _gauge("acme_cluster_seconds_since_contact", help, ("cluster",), ages)
    rows = [((one.name,), one.unreadable_count) for one in clusters]
    help = "Rows of the cluster's last response that could not be parsed."
    yield _gauge("acme_cluster_unreadable_rows", help, ("cluster",), rows)


def _reporting_attempts(now: datetime) -> Metric:
    fresh = LatestProgress.objects.filter(updated_at__gte=now - FRESH_HEARTBEAT, source=ProgressSource.REPORTS)
    count = fresh.filter(attempt__ended_at=None).count()
    help = "Attempts that reported progress within two minutes."
    return GaugeMetricFamily("acme_attempts_reporting", help, value=count)


def _incidents(names: Mapping[int, str]) -> Metric:
    """Unresolved incidents have a partial index."""
    rows = Incident.objects.unresolved().order_by().values_list("cluster_id", "state").annotate(Count("pk"))
    counts = {(home, state): count for home, state, count in rows}
    states = (IncidentState("open"), IncidentState("acknowledged"))
    samples = [((name, state.value), counts.get((pk, state), 0)) for pk, name in names.items() for state in states]
    return _gauge("acme_incidents", "Incidents that are not resolved, by state.", ("cluster", "state"), samples)


_GPU_HOURS_LOST = Sum(F("gpus") * Extract("lost", "epoch") / 3600.0, output_field=FloatField())


def _failures(names: Mapping[int, str], now: datetime) -> Iterator[Metric]:
    """Diagnoses are counted over a day, like ended jobs."""
    diagnoses = Diagnosis.objects.failures().between(now - DAY, now).order_by()
    rows = diagnoses.values_list("cluster_id", "category", "root_cause").annotate(Count("pk"), lost=_GPU_HOURS_LOST)
    causes = [((names[home], category, cause), count, lost or 0) for home, category, cause, count, lost in rows]
    labels = ("cluster", "category", "cause")
    help = "Attempts that failed within 24 hours, by cause."
    yield _gauge("acme_failures_last_day", help, labels, [(values, count) for values, count, _ in causes])
    help = "GPU-hours that these attempts lost since their last checkpoints."
    yield _gauge("acme_failures_gpu_hours_lost_last_day", help, labels, [(values, lost) for values, _, lost in causes])
    help = "Failed attempts whose diagnosis or bundle is pending."
    yield GaugeMetricFamily("acme_diagnoses_open", help, value=Diagnosis.objects.open().count())


def _estimates() -> Iterator[Metric]:
    """Yield the accuracy of the start estimates: a few rows, aggregated by the loop that makes the estimates."""
    errors = EstimateError.objects.select_related("cluster")
    rows = [((error.cluster.name, error.lead), error) for error in errors]
    labels = ("cluster", "ahead")
    help = "Median absolute error of the start estimates of the last seven days, by how far ahead they looked."
    yield _gauge("acme_start_estimate_error_seconds", help, labels, [(to, error.median_s) for to, error in rows])
    help = "Share of the jobs that started by their P90 estimate."
    yield _gauge("acme_start_estimate_within_p90_ratio", help, labels, [(to, error.within_p90) for to, error in rows])
    help = "Jobs whose estimates were evaluated."
    yield _gauge("acme_start_estimates_evaluated", help, labels, [(to, error.jobs) for to, error in rows])
    times = [((one.cluster.name,), one.made_at.timestamp()) for one in Forecast.objects.select_related("cluster")]
    help = "When the starts of all pending jobs were last estimated."
    yield _gauge("acme_start_estimates_computed_timestamp_seconds", help, ("cluster",), times)


def _predictions() -> Iterator[Metric]:
    """Yield the accuracy of the run time predictions, as measured by the loop that learns them."""
    models = list(RunTimeModel.objects.select_related("cluster"))
    rows = [((model.cluster.name,), model) for model in models if model.median_ratio is not None]
    help = "Half of the run time predictions of the last 30 days were wrong by at most this factor."
    yield _gauge(
        "acme_run_time_prediction_median_ratio", help, ("cluster",), [(to, row.median_ratio) for to, row in rows]
    )
    help = "Nine of ten run time predictions of the last 30 days were wrong by at most this factor."
    yield _gauge("acme_run_time_prediction_p90_ratio", help, ("cluster",), [(to, row.p90_ratio) for to, row in rows])
    rows = [((model.cluster.name,), model) for model in models if model.trees_median_ratio is not None]
    help = "The same as acme_run_time_prediction_median_ratio, for predictions by trees."
    medians = [(to, row.trees_median_ratio) for to, row in rows]
    yield _gauge("acme_run_time_prediction_trees_median_ratio", help, ("cluster",), medians)
    help = "The same as acme_run_time_prediction_p90_ratio, for predictions by trees."
    p90s = [(to, row.trees_p90_ratio) for to, row in rows]
    yield _gauge("acme_run_time_prediction_trees_p90_ratio", help, ("cluster",), p90s)
    help = "Number of ended jobs from which run times were learned."
    learned = [((model.cluster.name,), model.jobs) for model in models]
    yield _gauge("acme_run_times_learned", help, ("cluster",), learned)


def _accounting(names: Iterable[str]) -> Iterator[Metric]:
    """Yield figures of the last day as a loop computed them some minutes ago; empty families without them."""
    figures = metrics_store.read_figures(ledger_figures.STORED_AS, names)

    def by_key(part: str) -> list[tuple[tuple[str, str], float]]:
        return [((name, key), value) for name, row in figures.items() for key, value in row[part].items()]

    def ratios(of: str) -> list[tuple[tuple[str], float]]:
        return [((name,), row["ratios"][of]) for name, row in figures.items() if of in row["ratios"]]

    help = "Productive part of all GPU-time of the last day."
    yield _gauge("acme_goodput_ratio", help, ("cluster",), ratios("goodput"))
    help = "Productive part of the wall clock of the last day's runs."
    yield _gauge("acme_ettr_ratio", help, ("cluster",), ratios("ettr"))
    help = "GPU-hours of the last day: each is in one bucket, and together they are the capacity."
    yield _gauge("acme_gpu_hours_last_day", help, ("cluster", "bucket"), by_key("gpu_hours"))
    help = "Failed attempts whose jobs were restarted within the last day, by cause."
    yield _gauge("acme_recoveries_last_day", help, ("cluster", "cause"), by_key("recoveries"))
    seconds = [((name,), row["recovery_s"]) for name, row in figures.items() if row["recovery_s"] is not None]
    help = "Median time from such a failure to the next start."
    yield _gauge("acme_recovery_seconds", help, ("cluster",), seconds)
    yield from _energy(figures)
    times = [((name,), row["at"]) for name, row in figures.items()]
    yield _gauge(
        "acme_ledger_computed_timestamp_seconds",
        "When these figures of the last day were computed.",
        ("cluster",),
        times,
    )


def _energy(figures: Mapping[str, Any]) -> Iterator[Metric]:
    """Yield the energy of clusters with telemetry of it."""
    known = {name: row for name, row in figures.items() if "kwh" in row}

    def by_key(part: str) -> list[tuple[tuple[str, str], float]]:
        return [((name, key), value) for name, row in known.items() for key, value in row[part].items()]

    def of(part: str) -> list[tuple[tuple[str], float]]:
        return [((name,), row[part]) for name, row in known.items() if row[part] is not None]

    help = "Energy of the last day: of GPUs by counter, by power, by estimate, and of the nodes beside them."
    yield _gauge("acme_energy_kwh_last_day", help, ("cluster", "basis"), by_key("kwh"))
    help = "Energy of the last day that was lost to failures and preemption, by cause."
    yield _gauge("acme_energy_kwh_lost_last_day", help, ("cluster", "cause"), by_key("kwh_lost"))
    yield _gauge("acme_energy_cost_last_day", "Cost of the last day's energy.", ("cluster",), of("energy_cost"))
    yield _gauge("acme_co2_kg_last_day", "CO2 of the last day's energy.", ("cluster",), of("co2_kg"))


def _power_budgets(clusters: Iterable[Cluster], now: datetime) -> Iterator[Metric]:
    """Yield the power budgets of clusters that have any, and their caps. `place` is empty for the whole cluster."""
    budgeted = set(PowerBudget.objects.order_by().values_list("cluster", flat=True))
    found = [
        ((one.name, state.row.scope, state.row.place), state)
        for one in clusters
        if one.pk in budgeted
        for state in budget_states(one, now)
    ]
    labels = ("cluster", "scope", "place")
    watched = [(place, state.row) for place, state in found if state.row.is_watched]
    limits = [(place, state.row.limit_w) for place, state in found]
    yield _gauge("acme_power_budget_watts", "What the nodes of a power budget may draw together.", labels, limits)
    help = "Predicted peak of the nodes of a power budget with their running jobs."
    yield _gauge("acme_power_predicted_watts", help, labels, [(place, state.predicted_w) for place, state in found])
    shares = [(place, row.share) for place, row in watched if row.share is not None]
    yield _gauge("acme_power_share", "Measured power as a share of its budget.", labels, shares)
    levels = [(place, row.level) for place, row in watched]
    yield _gauge("acme_power_cap_level", "Level of the caps of a power budget; 0: not capped.", labels, levels)


def _job_info(names: Mapping[int, str], visible: QuerySet[Job]) -> Metric:
    rows = visible.filter(state__in=[State.RUNNING, State.SUSPENDED]).order_by("pk")
    values = rows.values_list("public_id", "cluster_id", "team__name", "user__username", "kind")
    samples = [((str(id), names[home], *others), 1) for id, home, *others in values]
    help = "Running jobs with their labels, for joins; always 1."
    return _gauge("acme_job_info", help, ("job", "cluster", "team", "user", "kind"), samples)
