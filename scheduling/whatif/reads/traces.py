"""Past jobs of a cluster, and uploaded files, as traces. Changes no rows."""

from __future__ import annotations

import gzip
import io
import math
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from tempfile import NamedTemporaryFile

import numpy as np
from django.core.files.uploadedfile import UploadedFile

from acmeweb.common.errors import InvalidField, InvalidInput
from jobs.core.lifecycle import State
from jobs.core.parsing import UNPRINTABLE
from jobs.models import Attempt, Job
from jobs.rest.throttle import PerUserThrottle
from jobs.traces.files import TraceLimits, read_trace, write_trace
from jobs.traces.rows import read_text_trace
from jobs.traces.trace import Trace, trace_from_columns
from scheduling.models import UploadedTrace
from scheduling.whatif.reads.simulations import MAX_TRACE_JOBS
from scheduling.whatif.replay.recorded import RecordedAttempts

MAX_FILE_BYTES = 64 << 20
UPLOAD_LIMITS = TraceLimits(jobs=MAX_TRACE_JOBS, unpacked_bytes=128 << 20)
MAX_QUOTED_ROWS = 5
TRACE_COLUMNS = (
    *("public_id", "user__username", "team__name", "kind", "name", "state", "submitted_at", "started_at", "ended_at"),
    *("nodes", "gpus_per_node", "gpu_milli", "cpus_per_node", "memory_per_node_mb", "time_limit"),
    "deadline_at",
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
        deadline_s=[at.timestamp() if at else math.nan for at in columns["deadline_at"]],
        gpus=[count * gpus for count, gpus in zip(nodes, wide, strict=True)],
        gpu_milli=columns["gpu_milli"],
        nodes=nodes,
        cpus=[count * cpus for count, cpus in zip(nodes, columns["cpus_per_node"], strict=True)],
        memory_mb=columns["memory_per_node_mb"],
    )


def recorded_attempts(cluster: str, trace: Trace) -> RecordedAttempts:
    """Return all ended attempts of the jobs of a history, from the allocation of the GPUs to the end."""
    number = {one: row for row, one in enumerate(trace.ids)}
    first = datetime.fromtimestamp(trace.began_s, UTC) - timedelta(seconds=1)  # the float is not exact
    rows = Attempt.objects.filter(job__cluster__name=cluster, job__submitted_at__gte=first, ended_at__isnull=False)
    columns = rows.order_by().values_list("job__public_id", "promised_at", "ended_at", "state")
    found = [(number[job], *rest) for job, *rest in columns.iterator(10_000) if job in number]
    return RecordedAttempts(
        job=np.array([job for job, *_ in found], dtype=np.int32),
        start_s=np.array([start.timestamp() for _, start, *_ in found], dtype=np.float64) - trace.began_s,
        end_s=np.array([max(start, end).timestamp() for _, start, end, _ in found], dtype=np.float64) - trace.began_s,
        preempted=np.array([state == State.PREEMPTED for *_, state in found], dtype=np.bool_),
    )


def load_uploaded_trace(number: int) -> Trace:
    """Return the content of an uploaded trace. Raises UploadedTrace.DoesNotExist."""
    row = UploadedTrace.objects.get(pk=number)
    with gzip.open(io.BytesIO(bytes(row.packed)), "rt", encoding="utf-8", newline="") as lines:
        return read_text_trace(lines, row.name)


def _seconds(limit: timedelta | None) -> float:
    return limit.total_seconds() if limit else float("nan")


class TraceUploadThrottle(PerUserThrottle):
    """Limits the uploads of a user per minute, on pages and API together, because parsing a trace takes seconds."""

    name = "traces:"
    most = 10


def refuse_large_file(file: UploadedFile) -> None:
    if (file.size or 0) > MAX_FILE_BYTES:
        raise InvalidField("trace_file", f"has {file.size:,} bytes; at most {MAX_FILE_BYTES:,} are allowed")


def read_uploaded_trace(file: UploadedFile) -> UploadedTrace:
    """Parse an uploaded file. Raises InvalidField."""
    refuse_large_file(file)
    name = UNPRINTABLE.sub("?", file.name or "trace")[:80]
    with NamedTemporaryFile(prefix="acme-trace-") as copy:
        for chunk in file.chunks():
            copy.write(chunk)
        copy.flush()
        try:
            return parse_upload(read_trace(copy.name, name, UPLOAD_LIMITS), name)
        except InvalidInput as error:
            raise InvalidField("trace_file", str(error)) from None


def parse_upload(trace: Trace, name: str) -> UploadedTrace:
    """The row to save. Takes seconds for a long trace, so call it outside a transaction. Raises InvalidField."""
    if not len(trace):
        raise InvalidField("trace_file", f"{name} contains no job that ran{_first_bad_row(trace)}")
    return UploadedTrace(
        name=name,
        jobs=len(trace),
        span_s=float(trace.submit_s[-1] - trace.submit_s[0]),
        skipped_rows=trace.bad_count,
        skipped_examples=[str(row).replace("\x00", "") for row in trace.bad[:MAX_QUOTED_ROWS]],
        packed=_compress_trace(trace),
    )


def _compress_trace(trace: Trace) -> bytes:
    raw = io.BytesIO()
    with gzip.open(raw, "wt", encoding="utf-8", newline="", compresslevel=4) as out:
        write_trace(trace, out)  # type: ignore[arg-type]
    return raw.getvalue()


def _first_bad_row(trace: Trace) -> str:
    return f": {trace.bad[0]}" if trace.bad else ""
