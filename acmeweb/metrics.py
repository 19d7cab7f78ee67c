"""`/metrics` for Prometheus: jobs, nodes and GPUs by state under the names that Slurm's exporters gave them.

Whoever scrapes comes with a token of scope read, or from a network of ACME_METRICS_NETWORKS. Finished jobs are counted
over the last day only: counting a year of them every fifteen seconds would be the heaviest query there is. A job's id
is a label of the info metric alone, and that names only jobs that the token may see.
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
from jobs.models import Cluster, Job, Node, ProgressSource, Pulse, TokenScope, clock
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
        seen = _visible_jobs(request)
    except AuthenticationFailed as error:
        refusal = HttpResponse(f"{error.detail}\n", status=401, content_type="text/plain; charset=utf-8")
        refusal["WWW-Authenticate"] = 'Bearer realm="acme"'
        return refusal
    text = "".join(line for family in metric_families(clock.now(), seen) for line in family.lines())
    return HttpResponse(text, content_type=CONTENT_TYPE, headers={"Cache-Control": "no-store"})


def _reporting_attempts(now: datetime) -> int:
    return Pulse.objects.filter(
        attempt__ended_at=None, heard_at__gte=now - FRESH_HEARTBEAT, source=ProgressSource.REPORTS
    ).count()


def _visible_jobs(request: HttpRequest) -> QuerySet[Job]:
    """The jobs that may be named; AuthenticationFailed when nothing may be told at all."""
    if request.headers.get("Authorization"):
        found = BearerTokenAuthentication().authenticate(request)
        if found:
            user, token = found
            return Caller(user=user, scope=TokenScope(token.scope), token=token).jobs()
    elif _is_in_networks(request.META.get("REMOTE_ADDR", ""), settings.ACME_METRICS_NETWORKS):
        return Job.objects.all()
    raise AuthenticationFailed("This needs a token of scope read, or to come from a network of ACME_METRICS_NETWORKS.")


def _is_in_networks(address: str, networks: Iterable[str]) -> bool:
    try:
        client = ipaddress.ip_address(address)
    except ValueError:
        return False
    return any(client in ipaddress.ip_network(network) for network in networks)


@dataclass(frozen=True)
class MetricFamily:
    name: str
    says: str
    samples: list[tuple[dict[str, str], float]] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        yield f"# HELP {self.name} {self.says}\n# TYPE {self.name} gauge\n"
        for labels, value in self.samples:
            written = ",".join(f'{name}="{_escape_label(text)}"' for name, text in labels.items())
            yield f"{self.name}{{{written}}} {value:.15g}\n"


@dataclass(frozen=True)
class HistogramFamily:
    name: str
    says: str
    label: str
    tallies: dict[str, metrics_store.DurationCounts]

    def lines(self) -> Iterator[str]:
        yield f"# HELP {self.name} {self.says}\n# TYPE {self.name} histogram\n"
        for of, found in sorted(self.tallies.items()):
            mine = f'{self.label}="{_escape_label(of)}"'
            for bound, count in zip(
                (*map(str, metrics_store.BOUNDS_S), "+Inf"), (*found.within, found.count), strict=True
            ):
                yield f'{self.name}_bucket{{{mine},le="{bound}"}} {count}\n'
            yield f"{self.name}_sum{{{mine}}} {found.total_s:.15g}\n{self.name}_count{{{mine}}} {found.count}\n"


def _escape_label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def metric_families(now: datetime, seen: QuerySet[Job]) -> Iterator[MetricFamily | HistogramFamily]:
    names = dict(Cluster.objects.values_list("pk", "name"))
    yield _job_metrics(names)
    yield _ended_job_metrics(names, now)
    yield _node_metrics(names)
    yield _gpu_metrics(now)
    yield from _queue_wait_metrics(names, now)
    says = "How long a turn thought about who starts, and wrote it down."
    yield HistogramFamily(
        "slurm_schedule_cycle_seconds", says, "cluster", metrics_store.read_durations("schedule_cycle")
    )
    yield MetricFamily(
        "acme_cluster_silent_seconds",
        "Since the cluster last answered.",
        [
            ({"cluster": one.name}, (now - one.heard_at).total_seconds())
            for one in Cluster.objects.exclude(heard_at=None)
        ],
    )
    yield MetricFamily(
        "acme_cluster_unreadable_rows",
        "Rows of the cluster's last answer that could not be read.",
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
    rows = seen.filter(state__in=[State.RUNNING, State.SUSPENDED]).order_by("pk")
    rows = rows.values_list("public_id", "cluster_id", "team__name", "user__username", "kind")
    labels = ("job", "cluster", "team", "user", "kind")
    yield MetricFamily(
        "acme_job_info",
        "Running jobs, to join with; 1 each.",
        [(dict(zip(labels, (id, names[home], *rest), strict=True)), 1) for id, home, *rest in rows],
    )


def _failure_metrics(names: dict[int, str], now: datetime) -> Iterator[MetricFamily]:
    """Unresolved incidents have a partial index; verdicts are counted over a day, as ended jobs are."""
    found = Incident.objects.unresolved().order_by().values_list("cluster_id", "state").annotate(Count("pk"))
    counts = {(home, state): count for home, state, count in found}
    states = (IncidentState("open"), IncidentState("acknowledged"))
    incidents = [
        ({"cluster": name, "state": state.value}, float(counts.get((pk, state), 0)))
        for pk, name in names.items()
        for state in states
    ]
    yield MetricFamily("acme_incidents", "Incidents that are not resolved, by state.", incidents)
    said = Diagnosis.objects.failures().between(now - DAY, now).order_by()
    rows = said.values_list("cluster_id", "category", "root_cause").annotate(Count("pk"), lost=_GPU_HOURS_LOST)
    causes = [
        ({"cluster": names[home], "category": kind, "cause": cause}, n, lost) for home, kind, cause, n, lost in rows
    ]
    yield MetricFamily(
        "acme_failures_last_day",
        "Attempts that failed within 24 hours, by what they died of.",
        [(labels, float(count)) for labels, count, _ in causes],
    )
    yield MetricFamily(
        "acme_failures_gpu_hours_lost_last_day",
        "GPU-hours that they lost since their last checkpoints.",
        [(labels, float(lost or 0)) for labels, _, lost in causes],
    )
    yield MetricFamily(
        "acme_diagnoses_open",
        "Failed attempts whose verdict or bundle is still to be made.",
        [({}, float(Diagnosis.objects.open().count()))],
    )


_GPU_HOURS_LOST = Sum(F("gpus") * Extract("lost", "epoch") / 3600.0, output_field=FloatField())


def _accounting_metrics(names: Iterable[str]) -> Iterator[MetricFamily]:
    """Of the last day, as a loop worked it out some minutes ago; without its figures these families are empty."""
    found = metrics_store.read_figures("account", names)

    def labelled_samples(part: str, label: str) -> list[tuple[dict[str, str], float]]:
        return [
            ({"cluster": name, label: key}, value) for name, one in found.items() for key, value in one[part].items()
        ]

    def ratio_samples(of: str) -> list[tuple[dict[str, str], float]]:
        return [({"cluster": name}, one["ratios"][of]) for name, one in found.items() if of in one["ratios"]]

    yield MetricFamily(
        "acme_goodput_ratio", "Productive part of all GPU-time of the last day.", ratio_samples("goodput")
    )
    yield MetricFamily(
        "acme_ettr_ratio", "Productive part of the wall clock of the last day's runs.", ratio_samples("ettr")
    )
    says = "GPU-hours of the last day: each is in one bucket, and together they are the capacity."
    yield MetricFamily("acme_gpu_hours_last_day", says, labelled_samples("gpu_hours", "bucket"))
    says = "Failed attempts whose jobs were started again within the last day, by what they had died of."
    yield MetricFamily("acme_recoveries_last_day", says, labelled_samples("recoveries", "cause"))
    took = [({"cluster": name}, one["recovery_s"]) for name, one in found.items() if one["recovery_s"] is not None]
    yield MetricFamily("acme_recovery_seconds", "From such an end to the next start, in the median.", took)
    made = [({"cluster": name}, one["at"]) for name, one in found.items()]
    yield MetricFamily("acme_account_made_at", "When these figures of the last day were worked out.", made)


def _job_metrics(names: dict[int, str]) -> MetricFamily:
    """Both partial indexes hold unfinished jobs only."""
    found: Counter[tuple[int, str]] = Counter()
    for states in ([State.PENDING], [State.RUNNING, State.SUSPENDED]):
        rows = Job.objects.filter(state__in=states).order_by().values_list("cluster_id", "state")
        found.update({(home, state): count for home, state, count in rows.annotate(Count("pk"))})
    samples = [
        ({"cluster": name, "state": state.lower()}, float(found[pk, state]))
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
    return MetricFamily("acme_jobs_ended_last_day", "Jobs that ended within 24 hours, by what they came to.", samples)


def _node_metrics(names: dict[int, str]) -> MetricFamily:
    found: Counter[tuple[int, str]] = Counter()
    for node in Node.objects.only("cluster_id", "state", "flags", "drain_asked"):
        found[node.cluster_id, NodeState(node.state).lower()] += 1
        for flag in node.all_flags:
            found[node.cluster_id, str(flag).lower()] += 1
    samples = [({"cluster": names[home], "state": state}, float(n)) for (home, state), n in sorted(found.items())]
    return MetricFamily("slurm_nodes", "Nodes by state; a flag such as drain counts besides the state.", samples)


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


# Who started within the hour either lives or ended within it, so two small indexes find them
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
        for home, found in rows
        for quantile, seconds in zip(QUANTILES, found, strict=True)
    ]
    yield MetricFamily("acme_queue_wait_seconds", "How long jobs waited that started within the last hour.", waited)
    longest = [({"cluster": names[home]}, max(0.0, seconds)) for home, seconds in oldest]
    yield MetricFamily("acme_queue_oldest_seconds", "How long the job waits that waits longest.", longest)


def _estimate_metrics() -> Iterator[MetricFamily]:
    """How good the start estimates are: a few rows, summed up by the loop that makes them."""
    rows = [
        ({"cluster": error.cluster.name, "ahead": error.lead}, error)
        for error in EstimateError.objects.select_related("cluster")
    ]
    says = "Half of the start estimates of the last seven days were nearer, by how far ahead they looked."
    yield MetricFamily("acme_start_estimate_error_seconds", says, [(labels, error.median_s) for labels, error in rows])
    says = "Part of the jobs that had started by their P90."
    yield MetricFamily("acme_start_estimate_kept_ratio", says, [(labels, error.within_p90) for labels, error in rows])
    says = "Jobs whose estimates were judged."
    yield MetricFamily("acme_start_estimates_judged", says, [(labels, float(error.jobs)) for labels, error in rows])
    times = [({"cluster": one.cluster.name}, one.made_at) for one in Forecast.objects.select_related("cluster")]
    says = "When the starts of all waiting jobs were last estimated."
    yield MetricFamily("acme_start_estimates_made_at", says, [(labels, made.timestamp()) for labels, made in times])
