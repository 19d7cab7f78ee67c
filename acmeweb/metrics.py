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

from acmeweb.authentication import BearerTokenAuthentication
from failures.models import Diagnosis, Incident, Standing
from jobs import clock, tally
from jobs.glances import glances
from jobs.lifecycle import NodeState, State
from jobs.models import Cluster, Job, Node, Pulse, Scope, Source
from jobs.rights import Caller
from scheduling.models import EstimateError, Forecast

KIND = "text/plain; version=0.0.4; charset=utf-8"
UNFINISHED = [State.PENDING, State.RUNNING, State.SUSPENDED]
DAY = timedelta(days=1)
QUANTILES = (0.5, 0.9, 0.99)
FRESH = timedelta(minutes=2)


@login_not_required
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    try:
        seen = _seen_by(request)
    except AuthenticationFailed as error:
        refusal = HttpResponse(f"{error.detail}\n", status=401, content_type="text/plain; charset=utf-8")
        refusal["WWW-Authenticate"] = 'Bearer realm="acme"'
        return refusal
    text = "".join(line for family in families(clock.now(), seen) for line in family.lines())
    return HttpResponse(text, content_type=KIND, headers={"Cache-Control": "no-store"})


def _reporting(now: datetime) -> int:
    return Pulse.objects.filter(attempt__ended_at=None, heard_at__gte=now - FRESH, source=Source.REPORTS).count()


def _seen_by(request: HttpRequest) -> QuerySet[Job]:
    """The jobs that may be named; AuthenticationFailed when nothing may be told at all."""
    if request.headers.get("Authorization"):
        found = BearerTokenAuthentication().authenticate(request)
        if found:
            user, token = found
            return Caller(user=user, scope=Scope(token.scope), token=token).jobs()
    elif _from(request.META.get("REMOTE_ADDR", ""), settings.ACME_METRICS_NETWORKS):
        return Job.objects.all()
    raise AuthenticationFailed("This needs a token of scope read, or to come from a network of ACME_METRICS_NETWORKS.")


def _from(address: str, networks: Iterable[str]) -> bool:
    try:
        client = ipaddress.ip_address(address)
    except ValueError:
        return False
    return any(client in ipaddress.ip_network(network) for network in networks)


@dataclass(frozen=True)
class Family:
    name: str
    says: str
    samples: list[tuple[dict[str, str], float]] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        yield f"# HELP {self.name} {self.says}\n# TYPE {self.name} gauge\n"
        for labels, value in self.samples:
            written = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
            yield f"{self.name}{{{written}}} {value:.15g}\n"


@dataclass(frozen=True)
class Histogram:
    name: str
    says: str
    label: str
    tallies: dict[str, tally.Tally]

    def lines(self) -> Iterator[str]:
        yield f"# HELP {self.name} {self.says}\n# TYPE {self.name} histogram\n"
        for of, found in sorted(self.tallies.items()):
            mine = f'{self.label}="{_escaped(of)}"'
            for bound, count in zip((*map(str, tally.BOUNDS_S), "+Inf"), (*found.within, found.count), strict=True):
                yield f'{self.name}_bucket{{{mine},le="{bound}"}} {count}\n'
            yield f"{self.name}_sum{{{mine}}} {found.total_s:.15g}\n{self.name}_count{{{mine}}} {found.count}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def families(now: datetime, seen: QuerySet[Job]) -> Iterator[Family | Histogram]:
    names = dict(Cluster.objects.values_list("pk", "name"))
    yield _jobs(names)
    yield _ended(names, now)
    yield _nodes(names)
    yield _gpus(now)
    yield from _waits(names, now)
    says = "How long a turn thought about who starts, and wrote it down."
    yield Histogram("slurm_schedule_cycle_seconds", says, "cluster", tally.read("schedule_cycle"))
    yield Family(
        "acme_cluster_silent_seconds",
        "Since the cluster last answered.",
        [
            ({"cluster": one.name}, (now - one.heard_at).total_seconds())
            for one in Cluster.objects.exclude(heard_at=None)
        ],
    )
    yield Family(
        "acme_cluster_unreadable_rows",
        "Rows of the cluster's last answer that could not be read.",
        [({"cluster": one.name}, float(one.unreadable_count)) for one in Cluster.objects.all()],
    )
    yield Family(
        "acme_attempts_reporting",
        "Attempts that reported progress within two minutes.",
        [({}, _reporting(now))],
    )
    yield from _failures(names, now)
    yield from _estimates()
    yield from _accounts(names.values())
    rows = seen.filter(state__in=[State.RUNNING, State.SUSPENDED]).order_by("pk")
    rows = rows.values_list("public_id", "cluster_id", "team__name", "user__username", "kind")
    labels = ("job", "cluster", "team", "user", "kind")
    yield Family(
        "acme_job_info",
        "Running jobs, to join with; 1 each.",
        [(dict(zip(labels, (id, names[home], *rest), strict=True)), 1) for id, home, *rest in rows],
    )


def _failures(names: dict[int, str], now: datetime) -> Iterator[Family]:
    """Unresolved incidents have a partial index; verdicts are counted over a day, as ended jobs are."""
    found = Incident.objects.unresolved().order_by().values_list("cluster_id", "state").annotate(Count("pk"))
    counts = {(home, state): count for home, state, count in found}
    states = (Standing("open"), Standing("acknowledged"))
    incidents = [
        ({"cluster": name, "state": state.value}, float(counts.get((pk, state), 0)))
        for pk, name in names.items()
        for state in states
    ]
    yield Family("acme_incidents", "Incidents that are not resolved, by state.", incidents)
    said = Diagnosis.objects.failures().between(now - DAY, now).order_by()
    rows = said.values_list("cluster_id", "category", "root_cause").annotate(Count("pk"), lost=_GPU_HOURS_LOST)
    causes = [
        ({"cluster": names[home], "category": kind, "cause": cause}, n, lost) for home, kind, cause, n, lost in rows
    ]
    yield Family(
        "acme_failures_last_day",
        "Attempts that failed within 24 hours, by what they died of.",
        [(labels, float(count)) for labels, count, _ in causes],
    )
    yield Family(
        "acme_failures_gpu_hours_lost_last_day",
        "GPU-hours that they lost since their last checkpoints.",
        [(labels, float(lost or 0)) for labels, _, lost in causes],
    )
    yield Family(
        "acme_diagnoses_open",
        "Failed attempts whose verdict or bundle is still to be made.",
        [({}, float(Diagnosis.objects.open().count()))],
    )


_GPU_HOURS_LOST = Sum(F("gpus") * Extract("lost", "epoch") / 3600.0, output_field=FloatField())


def _accounts(names: Iterable[str]) -> Iterator[Family]:
    """Of the last day, as a loop worked it out some minutes ago; without its figures these families are empty."""
    found = tally.figures("account", names)

    def each(part: str, label: str) -> list[tuple[dict[str, str], float]]:
        return [
            ({"cluster": name, label: key}, value) for name, one in found.items() for key, value in one[part].items()
        ]

    def ratio(of: str) -> list[tuple[dict[str, str], float]]:
        return [({"cluster": name}, one["ratios"][of]) for name, one in found.items() if of in one["ratios"]]

    yield Family("acme_goodput_ratio", "Productive part of all GPU-time of the last day.", ratio("goodput"))
    yield Family("acme_ettr_ratio", "Productive part of the wall clock of the last day's runs.", ratio("ettr"))
    says = "GPU-hours of the last day: each is in one bucket, and together they are the capacity."
    yield Family("acme_gpu_hours_last_day", says, each("gpu_hours", "bucket"))
    says = "Failed attempts whose jobs were started again within the last day, by what they had died of."
    yield Family("acme_recoveries_last_day", says, each("recoveries", "cause"))
    took = [({"cluster": name}, one["recovery_s"]) for name, one in found.items() if one["recovery_s"] is not None]
    yield Family("acme_recovery_seconds", "From such an end to the next start, in the median.", took)
    made = [({"cluster": name}, one["at"]) for name, one in found.items()]
    yield Family("acme_account_made_at", "When these figures of the last day were worked out.", made)


def _jobs(names: dict[int, str]) -> Family:
    """Both partial indexes hold unfinished jobs only."""
    found: Counter[tuple[int, str]] = Counter()
    for states in ([State.PENDING], [State.RUNNING, State.SUSPENDED]):
        rows = Job.objects.filter(state__in=states).order_by().values_list("cluster_id", "state")
        found.update({(home, state): count for home, state, count in rows.annotate(Count("pk"))})
    samples = [
        ({"cluster": name, "state": state.lower()}, float(found[pk, state]))
        for pk, name in names.items()
        for state in UNFINISHED
    ]
    return Family("slurm_jobs", "Unfinished jobs by state.", samples)


def _ended(names: dict[int, str], now: datetime) -> Family:
    rows = Job.objects.filter(ended_at__gte=now - DAY).order_by().values_list("cluster_id", "state")
    samples = [
        ({"cluster": names[home], "state": state.lower()}, float(count))
        for home, state, count in rows.annotate(Count("pk")).order_by("cluster_id", "state")
    ]
    return Family("acme_jobs_ended_last_day", "Jobs that ended within 24 hours, by what they came to.", samples)


def _nodes(names: dict[int, str]) -> Family:
    found: Counter[tuple[int, str]] = Counter()
    for node in Node.objects.only("cluster_id", "state", "flags", "drain_asked"):
        found[node.cluster_id, NodeState(node.state).lower()] += 1
        for flag in node.all_flags:
            found[node.cluster_id, str(flag).lower()] += 1
    samples = [({"cluster": names[home], "state": state}, float(n)) for (home, state), n in sorted(found.items())]
    return Family("slurm_nodes", "Nodes by state; a flag such as drain counts besides the state.", samples)


def _gpus(now: datetime) -> Family:
    parts = ("total", "allocated", "free", "drained", "down")
    return Family(
        "slurm_gpus",
        "GPUs by state.",
        [
            ({"cluster": one.cluster.name, "state": part}, float(getattr(one.capacity, part)))
            for one in glances(now)
            for part in parts
        ],
    )


# Who started within the hour either lives or ended within it, so two small indexes find them
WAITS = """
SELECT cluster_id, percentile_cont(%s) WITHIN GROUP (ORDER BY extract(epoch FROM started_at - submitted_at))
FROM jobs_job WHERE (state IN ('RUNNING', 'SUSPENDED') OR ended_at >= %s) AND started_at >= %s
GROUP BY cluster_id ORDER BY cluster_id
"""


def _waits(names: dict[int, str], now: datetime) -> Iterator[Family]:
    since = now - timedelta(hours=1)
    with connection.cursor() as cursor:
        cursor.execute(WAITS, [list(QUANTILES), since, since])
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
    yield Family("acme_queue_wait_seconds", "How long jobs waited that started within the last hour.", waited)
    longest = [({"cluster": names[home]}, max(0.0, seconds)) for home, seconds in oldest]
    yield Family("acme_queue_oldest_seconds", "How long the job waits that waits longest.", longest)


def _estimates() -> Iterator[Family]:
    """How good the start estimates are: a few rows, summed up by the loop that makes them."""
    rows = [
        ({"cluster": error.cluster.name, "ahead": error.lead}, error)
        for error in EstimateError.objects.select_related("cluster")
    ]
    says = "Half of the start estimates of the last seven days were nearer, by how far ahead they looked."
    yield Family("acme_start_estimate_error_seconds", says, [(labels, error.median_s) for labels, error in rows])
    says = "Part of the jobs that had started by their P90."
    yield Family("acme_start_estimate_kept_ratio", says, [(labels, error.within_p90) for labels, error in rows])
    says = "Jobs whose estimates were judged."
    yield Family("acme_start_estimates_judged", says, [(labels, float(error.jobs)) for labels, error in rows])
    times = [({"cluster": one.cluster.name}, one.made_at) for one in Forecast.objects.select_related("cluster")]
    says = "When the starts of all waiting jobs were last estimated."
    yield Family("acme_start_estimates_made_at", says, [(labels, made.timestamp()) for labels, made in times])
