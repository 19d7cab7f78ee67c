"""Settings of a requested replay: its limits, and the defaults from the trace or the cluster."""

from __future__ import annotations

from typing import Any

from jobs.models import Node
from scheduling.replay import acme_trace, requests
from scheduling.replay.run import ReplaySetting

MAX_TRACE_JOBS = 700_000  # the whole of Seren
MAX_REPLAYED_JOBS = 2_000_000  # jobs times policies
MAX_HISTORY_DAYS = 366


def replay_setting(trace: str, params: dict[str, Any]) -> ReplaySetting:
    """Return the settings of the request, with defaults from the trace. Raises InvalidReplaySetting."""
    values = {name: params[name] for name in requests.SETTING_NAMES if name in params}
    if site := acme_trace.PUBLISHED_CLUSTERS.get(trace.removeprefix("acme:")):
        values.setdefault("nodes", site.nodes)
    elif trace == "history":
        values = _cluster_shape(params["cluster"]) | values
    return requests.replay_setting(
        **values,
        quotas=requests.quotas_from_rows(params["quota"]) if "quota" in params else (),
        power=requests.power_setting(**{name: params[name] for name in requests.POWER_NAMES if name in params}),
        profiles=requests.profile_table(**{name: params[name] for name in requests.PROFILE_NAMES if name in params}),
    )


def _cluster_shape(cluster: str) -> dict[str, int]:
    """Return the size of the cluster. All nodes of a replay are alike, so they get the GPUs of the largest node."""
    nodes = Node.objects.filter(cluster__name=cluster, gpus__gt=0)
    most = nodes.most_whole_gpus()
    return {"nodes": nodes.count(), "gpus_per_node": most} if most else {}
