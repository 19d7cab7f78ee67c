"""`/metrics` for Prometheus: jobs, nodes and GPUs by state under the names that Slurm's exporters gave them.

A scrape needs a token of scope read, or an address in ACME_METRICS_NETWORKS. Ended jobs are counted over the last day
only: counting a year of them every fifteen seconds would be the most expensive query. Only the info metric has the
job's id as a label, and it contains only jobs that the token may see.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.db import connection
from django.db.models import Count, F, FloatField, QuerySet, Sum
from django.db.models.functions import Extract
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe
from rest_framework.exceptions import AuthenticationFailed

from acmeweb.auth.api_authentication import BearerTokenAuthentication
from acmeweb.common import metrics_store
from failures.models import Diagnosis, Incident, IncidentState
from jobs.core.lifecycle import NodeState, State
from jobs.models import Cluster, Job, LatestProgress, Node, ProgressSource, TokenScope, clock
from jobs.models.permissions import Caller
from jobs.queries.cluster_summary import cluster_summaries
from scheduling.models import EstimateError, Forecast

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
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
    text = "".join(line for family in metric_families(clock.now(), visible) for line in family.lines())
    return HttpResponse(text, content_type=CONTENT_TYPE, headers={"Cache-Control": "no-store"})


def _reporting_attempts(now: datetime) -> int:
    return LatestProgress.objects.filter(
        attempt__ended_at=None, updated_at__gte=now - FRESH_HEARTBEAT, source=ProgressSource.REPORTS
    ).count()


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
class MetricFamily:
    name: str
    help: str
    samples: list[tuple[dict[str, str], float]] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        yield f"# HELP {self.name} {self.help}\n# TYPE {self.name} gauge\n"
        for labels, value in self.samples:
            written = ",".join(f'{name}="{_escape_label(text)}"' for name, text in labels.items())
            yield f"{self.name}{{{written}}} {value:.15g}\n"


@dataclass(frozen=True)
class HistogramFamily:
    name: str
    help: str
    label: str
    durations: dict[str, metrics_store.DurationCounts]

    def lines(self) -> Iterator[str]:
        yield f"# HELP {self.name} {self.help}\n# TYPE {self.name} histogram\n"
        for of, counts in sorted(self.durations.items()):
            label = f'{self.label}="{_escape_label(of)}"'
            for bound, count in zip(
                (*map(str, metrics_store.BOUNDS_S), "+Inf"), (*counts.within, counts.count), strict=True
            ):
                yield f'{self.name}_bucket{{{label},le="{bound}"}} {count}\n'
            yield f"{self.name}_sum{{{label}}} {counts.total_s:.15g}\n{self.name}_count{{{label}}} {counts.count}\n"


def _escape_label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def metric_families(now: datetime, visible: QuerySet[Job]) -> Iterator[MetricFamily | HistogramFamily]:
    names = dict(Cluster.objects.values_list("pk", "name"))
    yield _job_metrics(names)
    yield _ended_job_metrics(names, now)
    yield _node_metrics(names)
    yield _gpu_metrics(now)
    yield from _queue_wait_metrics(names, now)
    help = "Duration of the scheduling decisions of a turn, including writing them."
    yield HistogramFamily(
        "slurm_schedule_cycle_seconds", help, "cluster", metrics_store.read_durations("schedule_cycle")
    )
    yield MetricFamily(
        "acme_cluster_seconds_since_contact",
        "Seconds since the cluster last answered.",
        [
            ({"cluster": one.name}, (now - one.last_contact_at).total_seconds())
            for one in Cluster.objects.exclude(last_contact_at=None)
        ],
    )
    yield MetricFamily(
        "acme_cluster_unreadable_rows",
        "Rows of the cluster's last response that could not be parsed.",
        [({"cluster": one.name}, float(one.unreadable_count)) for one in Cluster.objects.all()],
    )
    yield MetricFamily(
        "acme_attempts_reporting",
        "Attempts that reported progress within two minutes.",
        [({}, _reporting_attempts(now))],
    )
    yield from _failure_metrics(names, now)
    yield from _estimate_metrics()
    yield from _accounting_metrics(names.values())
    rows = visible.filter(state__in=[State.RUNNING, State.SUSPENDED]).order_by("pk")
    rows = rows.values_list("public_id", "cluster_id", "team__name", "user__username", "kind")
    labels = ("job", "cluster", "team", "user", "kind")
    yield MetricFamily(
        "acme_job_info",
        "Running jobs with their labels, for joins; always 1.",
        [(dict(zip(labels, (id, names[home], *values), strict=True)), 1) for id, home, *values in rows],
    )


def _failure_metrics(names: dict[int, str], now: datetime) -> Iterator[MetricFamily]:
    """Unresolved incidents have a partial index; diagnoses are counted over a day, like ended jobs."""
    open_counts = Incident.objects.unresolved().order_by().values_list("cluster_id", "state").annotate(Count("pk"))
    counts = {(home, state): count for home, state, count in open_counts}
    states = (IncidentState("open"), IncidentState("acknowledged"))
    incidents = [
        ({"cluster": name, "state": state.value}, float(counts.get((pk, state), 0)))
        for pk, name in names.items()
        for state in states
    ]
    yield MetricFamily("acme_incidents", "Incidents that are not resolved, by state.", incidents)
    diagnoses = Diagnosis.objects.failures().between(now - DAY, now).order_by()
    rows = diagnoses.values_list("cluster_id", "category", "root_cause").annotate(Count("pk"), lost=_GPU_HOURS_LOST)
    causes = [
        ({"cluster": names[home], "category": kind, "cause": cause}, n, lost) for home, kind, cause, n, lost in rows
    ]
    yield MetricFamily(
        "acme_failures_last_day",
        "Attempts that failed within 24 hours, by cause.",
        [(labels, float(count)) for labels, count, _ in causes],
    )
    yield MetricFamily(
        "acme_failures_gpu_hours_lost_last_day",
        "GPU-hours that these attempts lost since their last checkpoints.",
        [(labels, float(lost or 0)) for labels, _, lost in causes],
    )
    yield MetricFamily(
        "acme_diagnoses_open",
        "Failed attempts whose diagnosis or bundle is pending.",
        [({}, float(Diagnosis.objects.open().count()))],
    )


_GPU_HOURS_LOST = Sum(F("gpus") * Extract("lost", "epoch") / 3600.0, output_field=FloatField())


def _accounting_metrics(names: Iterable[str]) -> Iterator[MetricFamily]:
    """Yield figures of the last day as a loop computed them some minutes ago; empty families without them."""
    figures = metrics_store.read_figures("account", names)

    def labelled_samples(part: str, label: str) -> list[tuple[dict[str, str], float]]:
        return [
            ({"cluster": name, label: key}, value) for name, row in figures.items() for key, value in row[part].items()
        ]

    def ratio_samples(of: str) -> list[tuple[dict[str, str], float]]:
        return [({"cluster": name}, row["ratios"][of]) for name, row in figures.items() if of in row["ratios"]]

    yield MetricFamily(
        "acme_goodput_ratio", "Productive part of all GPU-time of the last day.", ratio_samples("goodput")
    )
    yield MetricFamily(
        "acme_ettr_ratio", "Productive part of the wall clock of the last day's runs.", ratio_samples("ettr")
    )
    help = "GPU-hours of the last day: each is in one bucket, and together they are the capacity."
    yield MetricFamily("acme_gpu_hours_last_day", help, labelled_samples("gpu_hours", "bucket"))
    help = "Failed attempts whose jobs were restarted within the last day, by cause."
    yield MetricFamily("acme_recoveries_last_day", help, labelled_samples("recoveries", "cause"))
    seconds = [({"cluster": name}, row["recovery_s"]) for name, row in figures.items() if row["recovery_s"] is not None]
    yield MetricFamily("acme_recovery_seconds", "Median time from such a failure to the next start.", seconds)
    times = [({"cluster": name}, row["at"]) for name, row in figures.items()]
    yield MetricFamily("acme_account_made_at", "When these figures of the last day were computed.", times)


def _job_metrics(names: dict[int, str]) -> MetricFamily:
    """Both partial indexes hold unfinished jobs only."""
    counts: Counter[tuple[int, str]] = Counter()
    for states in ([State.PENDING], [State.RUNNING, State.SUSPENDED]):
        rows = Job.objects.filter(state__in=states).order_by().values_list("cluster_id", "state")
        counts.update({(home, state): count for home, state, count in rows.annotate(Count("pk"))})
    samples = [
        ({"cluster": name, "state": state.lower()}, float(counts[pk, state]))
        for pk, name in names.items()
        for state in UNFINISHED_STATES
    ]
    return MetricFamily("slurm_jobs", "Unfinished jobs by state.", samples)


def _ended_job_metrics(names: dict[int, str], now: datetime) -> MetricFamily:
    rows = Job.objects.filter(ended_at__gte=now - DAY).order_by().values_list("cluster_id", "state")
    samples = [
        ({"cluster": names[home], "state": state.lower()}, float(count))
        for home, state, count in rows.annotate(Count("pk")).order_by("cluster_id", "state")
    ]
    return MetricFamily("acme_jobs_ended_last_day", "Jobs that ended within 24 hours, by final state.", samples)


def _node_metrics(names: dict[int, str]) -> MetricFamily:
    counts: Counter[tuple[int, str]] = Counter()
    for node in Node.objects.only("cluster_id", "state", "flags", "drain_requested"):
        counts[node.cluster_id, NodeState(node.state).lower()] += 1
        for flag in node.all_flags:
            counts[node.cluster_id, str(flag).lower()] += 1
    samples = [({"cluster": names[home], "state": state}, float(n)) for (home, state), n in sorted(counts.items())]
    return MetricFamily("slurm_nodes", "Nodes by state; flags such as drain are counted additionally.", samples)


def _gpu_metrics(now: datetime) -> MetricFamily:
    parts = ("total", "allocated", "free", "drained", "down")
    return MetricFamily(
        "slurm_gpus",
        "GPUs by state.",
        [
            ({"cluster": one.cluster.name, "state": part}, float(getattr(one.capacity, part)))
            for one in cluster_summaries(now)
            for part in parts
        ],
    )


# A job that started within the hour is running or ended within it, so two small indexes find all of them
QUEUE_WAITS_SQL = """
SELECT cluster_id, percentile_cont(%s) WITHIN GROUP (ORDER BY extract(epoch FROM started_at - submitted_at))
FROM jobs_job WHERE (state IN ('RUNNING', 'SUSPENDED') OR ended_at >= %s) AND started_at >= %s
GROUP BY cluster_id ORDER BY cluster_id
"""


def _queue_wait_metrics(names: dict[int, str], now: datetime) -> Iterator[MetricFamily]:
    since = now - timedelta(hours=1)
    with connection.cursor() as cursor:
        cursor.execute(QUEUE_WAITS_SQL, [list(QUANTILES), since, since])
        rows = cursor.fetchall()
        cursor.execute(
            "SELECT cluster_id, extract(epoch FROM %s - min(submitted_at))::float8 FROM jobs_job"
            " WHERE state = 'PENDING' GROUP BY cluster_id ORDER BY cluster_id",
            [now],
        )
        oldest = cursor.fetchall()
    waited = [
        ({"cluster": names[home], "quantile": str(quantile)}, float(seconds))
        for home, waits in rows
        for quantile, seconds in zip(QUANTILES, waits, strict=True)
    ]
    yield MetricFamily("acme_queue_wait_seconds", "Queue wait of the jobs that started within the last hour.", waited)
    longest = [({"cluster": names[home]}, max(0.0, seconds)) for home, seconds in oldest]
    yield MetricFamily("acme_queue_oldest_seconds", "Queue wait of the job that waits longest.", longest)


def _estimate_metrics() -> Iterator[MetricFamily]:
    """Yield the accuracy of the start estimates: a few rows, aggregated by the loop that makes the estimates."""
    rows = [
        ({"cluster": error.cluster.name, "ahead": error.lead}, error)
        for error in EstimateError.objects.select_related("cluster")
    ]
    help = "Median absolute error of the start estimates of the last seven days, by how far ahead they looked."
    yield MetricFamily("acme_start_estimate_error_seconds", help, [(labels, error.median_s) for labels, error in rows])
    help = "Share of the jobs that started by their P90 estimate."
    yield MetricFamily(
        "acme_start_estimate_within_p90_ratio", help, [(labels, error.within_p90) for labels, error in rows]
    )
    help = "Jobs whose estimates were evaluated."
    yield MetricFamily("acme_start_estimates_judged", help, [(labels, float(error.jobs)) for labels, error in rows])
    times = [({"cluster": one.cluster.name}, one.made_at) for one in Forecast.objects.select_related("cluster")]
    help = "When the starts of all pending jobs were last estimated."
    yield MetricFamily("acme_start_estimates_made_at", help, [(labels, made.timestamp()) for labels, made in times])
