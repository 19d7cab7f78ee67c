"""Past jobs of a cluster, and uploaded files, as traces. Reads only."""

from __future__ import annotations

import gzip
import io
from collections.abc import Collection
from datetime import datetime, timedelta

from jobs.models import Job
from jobs.traces.rows import read_text_trace
from jobs.traces.trace import Trace, trace_from_columns
from scheduling.models import UploadedTrace

TRACE_COLUMNS = (
    *("public_id", "user__username", "team__name", "kind", "name", "state", "submitted_at", "started_at", "ended_at"),
    *("nodes", "gpus_per_node", "cpus_per_node", "memory_per_node_mb", "time_limit"),
)


def history_trace(
    cluster: str, since: datetime, until: datetime, most: int, teams: Collection[int] | None = None
) -> Trace:
    """Return the jobs of the cluster that were submitted in the period and have run and ended; at most the newest
    `most`. `teams` limits them to these teams."""
    rows = Job.objects.filter(cluster__name=cluster, submitted_at__gte=since, submitted_at__lt=until)
    rows = rows.filter(started_at__isnull=False, ended_at__isnull=False)
    if teams is not None:
        rows = rows.filter(team_id__in=sorted(teams))
    jobs = list(rows.order_by("-submitted_at", "-id").values_list(*TRACE_COLUMNS)[:most])[::-1]
    columns = dict(zip(TRACE_COLUMNS, zip(*jobs, strict=True) if jobs else [()] * len(TRACE_COLUMNS), strict=True))
    nodes, wide = columns["nodes"], columns["gpus_per_node"]
    queued = [
        (start - submitted).total_seconds()
        for submitted, start in zip(columns["submitted_at"], columns["started_at"], strict=True)
    ]
    return trace_from_columns(
        f"history of {cluster}",
        ids=columns["public_id"],
        users=columns["user__username"],
        pools=columns["team__name"],
        kinds=columns["kind"],
        names=columns["name"],
        states=columns["state"],
        submit_s=[submitted.timestamp() for submitted in columns["submitted_at"]],
        runtime_s=[
            max(0.0, (end - start).total_seconds())
            for start, end in zip(columns["started_at"], columns["ended_at"], strict=True)
        ],
        queue_s=queued,
        limit_s=[_seconds(limit) for limit in columns["time_limit"]],
        gpus=[count * gpus for count, gpus in zip(nodes, wide, strict=True)],
        nodes=nodes,
        cpus=[count * cpus for count, cpus in zip(nodes, columns["cpus_per_node"], strict=True)],
        memory_mb=columns["memory_per_node_mb"],
    )


def load_uploaded_trace(number: int) -> Trace:
    """Return the content of an uploaded trace. Raises UploadedTrace.DoesNotExist."""
    row = UploadedTrace.objects.get(pk=number)
    with gzip.open(io.BytesIO(bytes(row.packed)), "rt", encoding="utf-8", newline="") as lines:
        return read_text_trace(lines, row.name)


def _seconds(limit: timedelta | None) -> float:
    return limit.total_seconds() if limit else float("nan")
