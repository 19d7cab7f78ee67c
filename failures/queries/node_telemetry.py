"""The telemetry of nodes over the last minutes, from their samples. Read-only.

One query by the index on time: 40 narrow rows per node.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from failures.detection.node_health import NodeTelemetryWindow
from jobs.models import Resolution, Sample

SAMPLE_WINDOW = timedelta(minutes=10)
SUSTAINED_SAMPLES = 4  # a single hot sample is normal
NVLINK_COUNTERS = ("nvlink_crc", "nvlink_data", "nvlink_replay", "nvlink_recovery")


def recent_samples(cluster_id: int, now: datetime, names: Iterable[str] | None = None) -> Mapping[int, list[Sample]]:
    """The samples of the last minutes by node id, in order; of the nodes with these names, or of all nodes."""
    rows = Sample.objects.filter(
        resolution=Resolution.RAW, at__gt=now - SAMPLE_WINDOW, at__lte=now, node__cluster=cluster_id
    )
    if names is not None:
        rows = rows.filter(node__name__in=names)
    by_node = defaultdict(list)
    for row in rows.only("node_id", "at", "gpu_temperature_c", "xid", "counted").order_by("at"):
        by_node[row.node_id].append(row)
    return by_node


def build_reading(
    name: str, rows: Sequence[Sample], since: datetime | None = None, held: Sequence[int] = (), holds_ecc: bool = False
) -> NodeTelemetryWindow:
    """The telemetry window of a node from its samples.

    `held` are the Xids of its ongoing anomaly, and `holds_ecc` says that the anomaly contains memory errors. Both last
    until the driver is reloaded.
    """
    shown = {int(code) for code in rows[-1].xid if code}
    hottest = [max((value for value in row.gpu_temperature_c if value is not None), default=None) for row in rows]
    recent = [value for value in hottest[-SUSTAINED_SAMPLES:] if value is not None]
    newest = rows[-1].counted
    return NodeTelemetryWindow(
        node=name,
        last_sample_at=rows[-1].at.timestamp(),
        xids=[*(code for code in held if code in shown), *_new_xids(rows, since)],
        hottest_c=min(recent) if len(recent) == SUSTAINED_SAMPLES else None,
        ecc_uncorrected=_sum_counter(newest, "ecc_dbe") if holds_ecc else _counter_growth(rows, "ecc_dbe", since),
        ecc_corrected=_counter_growth(rows, "ecc_sbe", since),
        rows_pending=_sum_counter(newest, "rows_pending"),
        remap_failed=_sum_counter(newest, "remap_failed") > 0,
        nvlink_errors=sum(_counter_growth(rows, kind, since) for kind in NVLINK_COUNTERS),
        nics_down=_long_down_ports(rows),
        throttled=_throttled_fraction(rows),
    )


def _sum_counter(counted: Mapping[str, Any], name: str) -> int:
    return int(sum(value for value in counted.get(name, ()) if value))


def _counter_growth(rows: Sequence[Sample], name: str, since: datetime | None) -> int:
    """How much a counter grew on all GPUs since then.

    A counter that is lower than before was reset. Growth across unmeasured samples is unknown and does not count.
    """
    last_values: dict[int, float] | None = None
    grown = 0.0
    for row in rows:
        if "unmeasured" in row.counted:
            last_values = None
            continue
        now = {gpu: value or 0.0 for gpu, value in enumerate(row.counted.get(name, ()))}
        if last_values is not None and (since is None or row.at > since):
            previous = last_values
            grown += sum(value - previous.get(gpu, 0.0) for gpu, value in now.items() if value > previous.get(gpu, 0.0))
        last_values = now
    return int(grown)


def _long_down_ports(rows: Sequence[Sample]) -> list[str]:
    """Ports that were down in all of the last samples. A short outage is a normal retraining of the link."""
    recent = [set(row.counted.get("nics_down", ())) for row in rows[-SUSTAINED_SAMPLES:]]
    return sorted(set.intersection(*recent)) if len(recent) == SUSTAINED_SAMPLES else []


def _throttled_fraction(rows: Sequence[Sample]) -> float | None:
    """The fraction of measured samples with throttling by heat or power; None if there are too few samples."""
    measured = [row for row in rows if "unmeasured" not in row.counted]
    if len(measured) < SUSTAINED_SAMPLES:
        return None
    return sum(_sum_counter(row.counted, "slowed") > 0 for row in measured) / len(measured)


def _new_xids(rows: Sequence[Sample], since: datetime | None) -> list[int]:
    """The Xids that appeared since then, in order."""
    last_codes: dict[int, float | None] = {}
    codes = []
    for row in rows:
        for gpu, code in enumerate(row.xid):
            if gpu in last_codes and code and code != last_codes[gpu] and (since is None or row.at > since):
                codes.append(int(code))
            last_codes[gpu] = code
    return codes
