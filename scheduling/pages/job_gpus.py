"""The GPU panel of a job's page: nodes and GPUs of its newest attempt, their telemetry, and the cost of the job.

The job's page loads this fragment after it is shown. The series reads one row per node and step of the attempt; the
step is coarser for more nodes, which limits the rows read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.utils.cache import patch_cache_control
from django.views.decorators.http import require_safe

from jobs.core.charts import sparkline
from jobs.models import SAMPLE_RETENTION, Allocation, Attempt, Node, Resolution, Sample, clock
from jobs.models.permissions import Caller
from scheduling.ledger.reads import facts as ledger_facts
from scheduling.ledger.reads import table as ledger_table
from scheduling.ledger.rules import report_rows
from scheduling.ledger.rules.waste import IDLE_BELOW
from scheduling.power.reads import energy
from scheduling.power.reads.caps import job_cap_times
from scheduling.power.rules.energy_use import total_use

SERIES_SPAN = timedelta(hours=24)  # the series covers the last day of the attempt
MAX_NODES_SHOWN = 96  # limits the drawing only; the totals cover all nodes
MAX_CAPS_SHOWN = 5
MAX_SAMPLE_ROWS = 100_000
MAX_SAMPLE_AGE = timedelta(minutes=1)

# One point per interval over the job's own GPUs: mean utilization, highest temperature, total power, mean memory
GPU_SERIES_SQL = """
SELECT s.at, avg(s.gpu_util[al.gpu + 1]), max(s.gpu_temperature_c[al.gpu + 1]), sum(s.gpu_power_w[al.gpu + 1]),
  avg(s.gpu_memory_mib[al.gpu + 1])
FROM jobs_allocation al JOIN jobs_sample s ON s.node_id = al.node_id AND s.resolution = %(resolution)s
  AND s.at >= greatest(al.held_at, %(since)s) AND s.at <= least(coalesce(al.released_at, %(until)s), %(until)s)
WHERE al.attempt_id = %(attempt)s AND al.gpu IS NOT NULL GROUP BY 1 ORDER BY 1
"""


@dataclass(frozen=True, kw_only=True)
class GpuSeriesPoint:
    at: datetime
    util: float | None
    hottest: float | None
    power_w: float | None
    memory_mib: float | None


@dataclass(frozen=True, kw_only=True)
class GpuCell:
    tone: str
    says: str


@dataclass(frozen=True, kw_only=True)
class NodeGpus:
    """A node with one cell per GPU."""

    node: str
    rack: str
    cells: Sequence[GpuCell]

    @property
    def label(self) -> str:
        """The cells for screen readers."""
        return ", ".join(cell.says for cell in self.cells)


@require_safe
def job_gpus_fragment(request: HttpRequest, public_id: str) -> HttpResponse:
    row = get_object_or_404(Caller(user=request.user).jobs().select_related("cluster"), public_id=public_id)
    now = clock.now()
    attempt = row.attempts.order_by("-number").first()
    held = ledger_facts.held_by_job(row.pk, now)
    points = series(attempt, now) if attempt else []
    known = [point for point in points if point.util is not None]
    places = _attempt_nodes(attempt, now) if attempt else []
    attempts = list(row.attempts.values_list("pk", flat=True))
    caps = job_cap_times(attempts, now)
    context = {
        "job": row,
        "attempt": attempt,
        "spent": report_rows.report_row(
            row.name, held, None, ledger_table.bucket_costs(held, row.cluster.gpu_hour_price)
        ),
        "energy": total_use(energy.attempt_energy(attempts).values()),
        "caps": [cap.text(now) for cap in caps[:MAX_CAPS_SHOWN]],
        "more_caps": max(0, len(caps) - MAX_CAPS_SHOWN),
        "places": places[:MAX_NODES_SHOWN],
        "more_places": max(0, len(places) - MAX_NODES_SHOWN),
        "newest": known[-1] if known else None,
        "mean": sum(point.util or 0 for point in known) / len(known) if known else None,
        "line": sparkline.sparkline_points([point.util for point in points]),
        "since": known[0].at if known else None,
        "now": now,
    }
    response = render(request, "scheduling/gpus.html", context)
    patch_cache_control(response, private=True, no_cache=True)
    return response


def series(attempt: Attempt, now: datetime) -> list[GpuSeriesPoint]:
    until = attempt.ended_at or now
    since = max(attempt.promised_at, until - SERIES_SPAN)
    nodes = Allocation.objects.filter(attempt=attempt, gpu__isnull=False).values("node").distinct().count()
    finest = _series_resolution(nodes, until - since, now - since)
    steps = [step for step in Resolution.values if step >= finest]
    # Coarser values may be all there is, as in the history of the demo
    return next(filter(None, (_series_points(attempt, step, since, until) for step in steps)), [])


def _series_points(attempt: Attempt, step: int, since: datetime, until: datetime) -> list[GpuSeriesPoint]:
    params = {"resolution": step, "since": since, "until": until, "attempt": attempt.pk}
    with connection.cursor() as cursor:
        cursor.execute(GPU_SERIES_SQL, params)
        return [
            GpuSeriesPoint(at=at, util=util, hottest=hottest, power_w=power, memory_mib=memory)
            for at, util, hottest, power, memory in cursor.fetchall()
        ]


def _series_resolution(nodes: int, span: timedelta, age: timedelta) -> Resolution:
    """Return the finest resolution that is still stored and within the row limit. Hourly means would hide a job that
    ran for minutes."""
    for step in (Resolution.RAW, Resolution.FIVE_MINUTES):
        if age < SAMPLE_RETENTION[step] and nodes * 8 * span.total_seconds() / step <= MAX_SAMPLE_ROWS:
            return Resolution(step)
    return Resolution(Resolution.HOUR)


def _attempt_nodes(attempt: Attempt, now: datetime) -> list[NodeGpus]:
    """Return the attempt's nodes. While it runs, the tone of each of its GPUs shows the utilization."""
    held: dict[int, set[int]] = {}
    rows = attempt.allocations.filter(gpu__isnull=False).order_by("node__leaf", "node__rack", "node__name", "gpu")
    nodes = {}
    for row in rows.select_related("node"):
        nodes[row.node_id] = row.node
        held.setdefault(row.node_id, set()).add(row.gpu or 0)
    busy = _recent_utilization(list(nodes), now) if attempt.ended_at is None else {}
    return [
        NodeGpus(
            node=node.name,
            rack=node.rack,
            cells=[
                _cell(node, gpu, gpu in held[pk], busy.get(pk, ())) for gpu in range(max(node.gpus, max(held[pk]) + 1))
            ],
        )
        for pk, node in nodes.items()
    ]


def _recent_utilization(nodes: Sequence[int], now: datetime) -> dict[int, Sequence[float | None]]:
    rows = Sample.objects.filter(resolution=Resolution.RAW, at__gt=now - MAX_SAMPLE_AGE, node__in=nodes)
    return dict(rows.order_by("node_id", "-at").distinct("node_id").values_list("node_id", "gpu_util"))


def _cell(node: Node, gpu: int, is_held: bool, busy: Sequence[float | None]) -> GpuCell:
    profile = node.slice_profiles.get(gpu)
    name = f"MIG slice {gpu} ({profile})" if profile else f"GPU {gpu}"
    if not is_held:
        return GpuCell(tone="none", says=f"{name}: not allocated to this job")
    percent = busy[gpu] if gpu < len(busy) else None
    if percent is None:
        return GpuCell(tone="quiet", says=name)
    return GpuCell(tone="waiting" if percent < IDLE_BELOW else "running", says=f"{name}: {percent:.0f}% utilized")
